"""What config_from_scheme writes is read back equal; what no key can say is refused."""

import copy
import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conformance.peers import MODELS, Peer, variants_of
from posenc import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    MRope,
    NTKByParts,
    Proportional,
    Rope,
    Scheme,
    Yarn,
)
from posenc.contracts import Pairing
from posenc.interop.hf import (
    FAMILIES,
    ConfigError,
    ModelScheme,
    config_from_scheme,
    scheme_from_config,
)

CONFIGS = Path(__file__).with_name("configs")
WRITTEN = [
    "llama-3.1-8b", "llama-4-scout", "gemma-2-9b", "gemma-3-1b", "gemma-3-4b", "gemma-4-text",
    "gpt-j-6b", "gpt-neox-20b", "phi-3-mini-128k", "deepseek-v3", "gpt-oss-20b", "olmo-3-7b",
    "smollm3-3b", "command-r7b", "modernbert-base", "qwen2-vl-7b", "qwen3-vl-8b",
    "qwen3-next-80b", "internlm2-7b", "granite-3.1-8b", "falcon-7b", "dbrx-base",
    "llava-1.5-7b", "exaone-4-32b", "mistral-7b-v0.1",
]  # fmt: skip

FACTORS = st.floats(1, 64)
LENGTHS = st.integers(64, 1 << 20)
AMPLITUDES = st.none() | st.floats(0.5, 2)
RULES: tuple[Literal["sqrt", "yarn"], ...] = ("sqrt", "yarn")


@st.composite
def scalings(draw: st.DrawFn, pairs: int) -> Any:
    """Any method that a config can say, with any of its options."""
    factor, length = draw(FACTORS), draw(LENGTHS)
    low, rule = draw(st.floats(0.25, 4)), draw(st.sampled_from(RULES))
    slow = draw(st.floats(0.5, 4))
    lists = st.lists(st.floats(1, 64), min_size=pairs, max_size=pairs).map(tuple)
    yarn = Yarn(
        factor, length, slow + draw(st.floats(1, 60)), slow, draw(st.booleans()),
        draw(AMPLITUDES), draw(AMPLITUDES), draw(AMPLITUDES),
    )  # fmt: skip
    longrope = LongRope(
        draw(lists), draw(lists), factor, length, draw(AMPLITUDES), rule,
        short_attention_factor=draw(AMPLITUDES), long_attention_factor=draw(AMPLITUDES),
    )  # fmt: skip
    llama3 = Llama3(factor, length, low, low + draw(st.floats(0, 8)))
    dynamic = DynamicNTK(factor, length)
    return draw(st.sampled_from([None, Linear(factor), dynamic, yarn, longrope, llama3]))


@st.composite
def ropes(draw: st.DrawFn) -> tuple[str, Rope]:
    """A family and a rotation that it can have."""
    pairs = draw(st.integers(1, 64))
    scaling = draw(scalings(pairs))
    assume(not isinstance(scaling, DynamicNTK) or pairs > 1)
    base = draw(st.floats(2, 1e9))
    family = draw(st.sampled_from(["llama", "cohere", "gpt_neox", "glm4", "deepseek_v3"]))
    if family in ("llama", "cohere"):
        pairing: Pairing = "half" if family == "llama" else "adjacent"
        return family, Rope(2 * pairs, base, pairing, scaling=scaling)
    width = 2 * pairs
    head_dim = width + draw(st.integers(0, 200))
    if family == "deepseek_v3":
        pairing = draw(st.sampled_from(["half", "adjacent"]))
        if isinstance(scaling, Yarn) and scaling.mscale_all_dim:
            scaling = Yarn(**{**vars(scaling), "scale_softmax": True})
        return family, Rope(head_dim, base, pairing, width, scaling, placement="trailing")
    pairing = "half" if family == "gpt_neox" else "adjacent"
    return family, Rope(head_dim, base, pairing, width, scaling)


@given(ropes())
def test_any_rope_is_read_back_equal(case: tuple[str, Rope]) -> None:
    family, rope = case
    model = ModelScheme(family, (Scheme(rotary=rope),) * 3, layer_types=(None,) * 3)
    for form in ("current", "legacy"):
        written = json.loads(json.dumps(config_from_scheme(model, form=form)))
        again = scheme_from_config(written)
        assert again.scheme.rotary == rope
        assert len(again.layers) == 3


@pytest.mark.parametrize("name", WRITTEN)
def test_a_real_model_is_read_back_equal(name: str) -> None:
    model = scheme_from_config(CONFIGS / f"{name}.json")
    written = config_from_scheme(model)
    raw = json.loads((CONFIGS / f"{name}.json").read_text())
    beside = {} if "head_dim" in written else {k: raw[k] for k in BESIDE.get(name, ())}
    assert scheme_from_config({**beside, **json.loads(json.dumps(written))}) == model


# Falcon's class computes head_dim and takes none: what it computes it from stays in the config.
BESIDE = {"falcon-7b": ("hidden_size", "num_attention_heads")}

# One of each way to keep a rotation: names of its own, types of layers, switches, decoupled heads.
CLASSES = [
    "llama", "bamba", "recurrent_gemma", "falcon", "zamba2", "gptj", "gpt_neox", "gemma3_text",
    "gemma4_text", "laguna", "deepseek_v3", "deepseek_v4", "mistral4", "smollm3", "granite_swa",
    "qwen2_vl_text", "qwen3_vl_text", "dbrx", "ernie4_5_vl_moe_text", "hunyuan_vl_text", "phi3",
    "modernbert", "nanochat", "minimax", "llama4_text",
]  # fmt: skip
VARIED = [(name, variant) for name in CLASSES for variant in variants_of(name)]


def check_class(name: str, variant: str) -> bool:
    """What is written goes through the model's own config class and comes back equal."""
    try:
        config = Peer.of(name).config(variant)
    except Exception:  # whatever the class's own validation raises
        return False
    raw = json.loads(json.dumps(config.to_dict(), default=str))
    try:
        model = scheme_from_config(raw, model_type=name)
        written = json.loads(json.dumps(config_from_scheme(model)))
    except ConfigError:
        return False
    rope = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
    kept = {key: value for key, value in raw.items() if key not in (*rope, *written)}
    again = type(config)(**copy.deepcopy({**kept, **written})).to_dict()
    made = scheme_from_config(json.loads(json.dumps(again, default=str)), model_type=name)
    assert made == model
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSES)
def test_the_class_of_a_family_takes_what_is_written(name: str) -> None:
    assert check_class(name, "default")
    for variant in ("yarn", "longrope", "dynamic alpha"):
        if (name, variant) in VARIED:
            check_class(name, variant)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("~")])
def test_the_class_of_every_family_takes_what_is_written(name: str) -> None:
    taken = [check_class(name, variant) for variant in variants_of(name)]
    assert any(taken) or name == "esm" or FAMILIES[name].refuse  # esm: no keys of a rotation


def test_yarns_rule_for_longrope_is_read_back_equal() -> None:
    lists = ((1.0,) * 4, (2.0,) * 4)
    rope = Rope(8, scaling=LongRope(*lists, 32.0, 4096, attention_rule="yarn"))
    written = {"model_type": "llama", "num_hidden_layers": 1, **config_from_scheme(rope)}
    assert scheme_from_config(written).scheme.rotary == rope
    expected = 0.1 * math.log(32) + 1
    assert rope.frequencies().attention_factor == pytest.approx(expected, rel=1e-15)


def test_the_keys_are_those_of_transformers() -> None:
    rope = Rope(128, 5e5, rotary_dim=64, scaling=Yarn(4.0, 32768))
    section = {
        "rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 32768, "truncate": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    assert config_from_scheme(rope) == {"head_dim": 128, "rope_parameters": section}
    legacy = config_from_scheme(Scheme(rotary=rope), form="legacy")
    assert legacy["rope_theta"] == 5e5 and legacy["partial_rotary_factor"] == 0.5
    assert legacy["rope_scaling"]["type"] == "yarn" and "rope_theta" not in legacy["rope_scaling"]
    assert config_from_scheme(Rope(64), form="legacy")["rope_scaling"] is None


def test_what_is_only_another_base_is_written_as_one() -> None:
    for scaling in (NTK(4.0), NTK(4.0, rule="plain")):
        rope = Rope(64, scaling=scaling)
        base = config_from_scheme(rope)["rope_parameters"]["rope_theta"]
        assert (
            Rope(64, base).frequencies().inv_freq.allclose(rope.frequencies().inv_freq, rtol=1e-14)
        )
    parts = Rope(64, scaling=NTKByParts(4.0, 2048))
    section = config_from_scheme(parts)["rope_parameters"]
    assert (section["rope_type"], section["attention_factor"]) == ("yarn", 1.0)
    share = config_from_scheme(Rope(64, scaling=Proportional(0.25)))["rope_parameters"]
    assert (share["rope_type"], share["partial_rotary_factor"]) == ("proportional", 0.25)


def test_a_swapped_scaling_changes_the_config_of_a_real_model() -> None:
    model = scheme_from_config(CONFIGS / "qwen3-8b.json")
    rope = Rope(128, 1e6, scaling=Yarn(4.0, 32768))
    longer = ModelScheme("qwen3", (Scheme(rotary=rope),) * len(model.layers), max_length=131072)
    written = config_from_scheme(longer)
    raw = json.loads((CONFIGS / "qwen3-8b.json").read_text())
    del raw["rope_theta"], raw["rope_scaling"]
    assert scheme_from_config({**raw, **written}).scheme.rotary == rope


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Rope(64, scaling=NTK(2.0, rule="fixed")), "no config says"),
        (Rope(64, scaling=DynamicNTK(2.0, 2048, length=4096)), "before at_length"),
        (Scheme(), "only a Rope or an MRope"),
        (MRope(Rope(8), (2, 2), (1, 0, 1, 0)), "which coordinate turns each pair"),
        (ModelScheme("llama", (Scheme(rotary=Rope(64, pairing="adjacent")),)), "pairs 'half'"),
        (ModelScheme("bert", (Scheme(),)), "has none"),
    ],
)
def test_what_no_key_says_is_refused(scheme: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_scheme(scheme)
    with pytest.raises(ValueError, match="'current' or 'legacy'"):
        config_from_scheme(Rope(64), form="old")  # pyright: ignore[reportArgumentType]
