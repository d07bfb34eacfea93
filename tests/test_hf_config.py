"""What cannot be meant is refused by name, and a fuzz of mutated configs."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from posenc.interop import other_positions
from posenc.interop.hf import FAMILIES, ConfigError, ModelScheme, scheme_from_config

CONFIGS = Path(__file__).with_name("configs")
RAW = {path.stem: json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))}


def llama(section: dict[str, Any]) -> dict[str, Any]:
    """A small Llama with this rope_scaling."""
    return {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
        "max_position_embeddings": 32768, "rope_theta": 10000.0, "rope_scaling": section,
    }  # fmt: skip


def read(name: str, **changes: Any) -> ModelScheme:
    return scheme_from_config({**RAW[name], **changes})


# What is refused ----------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"rope_type": "longrope", "original_max_position_embeddings": 4096,
         "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}  # fmt: skip

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"type": "magic", "factor": 2.0}}, r"rope_scaling.type = 'magic'"),
    (
        {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4.0}},
        "keys that agree",
    ),
    ({"rope_scaling": {"type": "linear", "factor": 0.25}}, r"factor = 0.25: .* at least 1"),
    ({"rope_scaling": {"type": "linear", "factor": "4"}}, r"factor = '4': expected a finite"),
    ({"rope_scaling": {"type": "linear", "factor": True}}, "factor = True"),
    ({"rope_scaling": {"type": "linear", "factor": math.nan}}, "factor = nan"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {**YARN, "atention_factor": 1.0}}, "atention_factor = 1.0: .* no such key"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max.* is missing"),
    ({"rope_scaling": {**YARN, "truncate": "no"}}, "truncate = 'no': expected true or false"),
    ({"rope_scaling": LLAMA3}, "original_max_position_embeddings is missing"),
    ({"rope_scaling": {**LISTS, "short_factor": [1.0] * 7}}, "8 entries.* not 7"),
    ({"rope_scaling": {**LISTS, "long_factor": ["1"] * 8}}, "a list of finite numbers"),
    ({"rope_scaling": {**LISTS, "factor": 16.0}}, "factor = 16.0: .* = 8: the"),
    ({"rope_scaling": {"type": {}, "factor": 4.0}}, r"rope_scaling.type = \{\}: expected one of"),
    ({"rope_scaling": {"type": "linear", "factor": {}}}, r"factor = \{\}: expected a finite"),
    ({"rope_scaling": {**YARN, "beta_slow": 1e-320}}, "beta_slow > 0 is needed, got 32.0 and 1e-"),
    ({"rope_scaling": YARN, "rope_theta": 0.25}, r"theta = 0.25, rope_scaling: .* base above 1"),
    (
        {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 1.5}},
        "partial_rotary_factor = 1.5: expected a share",
    ),
    ({"rope_scaling": [1]}, r"rope_scaling = \[1\]: expected an object"),
    ({"rope_scaling": None, "rope_parameters": {"sliding_attention": {}}}, "a layer type of this"),
    ({"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}}, "keys that agree"),
    ({"rope_theta": 0}, "rope_theta = 0: expected a finite number above 0"),
    ({"rope_theta": -1e4}, "rope_theta = -10000.0"),
    ({"rope_theta": True}, "rope_theta = True"),
    (
        {"rope_theta": 1e-320, "head_dim": 512},
        "rope_theta = 1e-320, rope_parameters: no finite rotation",
    ),
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta = 10000.0: .* agree"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5: expected all 16 channels"),
    ({"partial_rotary_factor": 1.7e308}, r"partial_rotary_factor = 1.7e\+308: expected all 16"),
    ({"rotary_dim": 8}, "rotary_dim = 8"),
    ({"hidden_size": 65}, "hidden_size = 65: expected a multiple of num_attention_heads = 4"),
    ({"hidden_size": "64"}, "hidden_size = '64': expected a whole number"),
    ({"head_dim": 15}, "an even number of rotated channels"),
    ({"num_hidden_layers": 10**9}, "a whole number from 1 to 4096"),
    ({"num_attention_heads": None}, "num_attention_heads is missing"),
    ({"rope_ratio": 2}, "rope_ratio = 2: expected no such key"),
    ({"alibi": True}, "alibi = True: expected no such key"),
    ({"layer_types": ["full_attention"]}, "2 entries, one for each layer, not 1"),
    ({"model_type": "nosuch"}, "model_type = 'nosuch': expected a family that is known"),
    ({"model_type": "neucodec"}, "not supported: it rotates by the index of the head"),
    ({"model_type": 5}, "model_type = 5: expected a string"),
    ({"model_type": None}, "model_type is missing"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_be_meant_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = {**llama({"type": "linear", "factor": 2.0}), **changes}
    if "rope_scaling" not in changes:
        config.pop("rope_scaling")
    with pytest.raises(ConfigError, match=message):
        scheme_from_config(config)
    assert issubclass(ConfigError, ValueError)


def test_a_base_that_nobody_published_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    config = llama({"type": "linear", "factor": 2.0})
    del config["rope_theta"]
    known = scheme_from_config(config)
    assert known.defaults_used["rope_scaling.rope_theta"] == 1e4
    yi: Any = scheme_from_config({**config, "model_type": "Yi"}).scheme.rotary
    assert yi.base == 5e6  # the default of its own class, not Llama's
    monkeypatch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], theta=None))
    with pytest.raises(ConfigError, match="rope_theta is missing: this family has no published"):
        scheme_from_config(config)


OWN_NAMES: list[tuple[str, dict[str, Any], str]] = [
    ("gpt-j-6b", {"n_embd": "4"}, "n_embd = '4': expected a whole number"),
    ("gpt-j-6b", {"n_embd": 4097}, "n_embd = 4097: expected a multiple of n_head = 16"),
    ("gpt-j-6b", {"n_layer": None}, "n_layer is missing"),
    ("chatglm3-6b", {"kv_channels": True}, "kv_channels = True"),
    ("chatglm3-6b", {"rope_ratio": 0.25}, "rope_ratio = 0.25: .* at least 1"),
    ("chatglm3-6b", {"rope_ratio": 2, "rope_theta": 1e4}, "rope_ratio = 2.0 but rope_theta = 1"),
    ("t5-small", {"num_heads": []}, r"num_heads = \[\]"),
    ("smollm3-3b", {"no_rope_layers": False}, "no_rope_layers = False: expected a list of 36"),
    ("smollm3-3b", {"no_rope_layers": {}}, r"no_rope_layers = \{\}: expected a list of 36"),
    ("qwen3-next-80b", {"full_attention_interval": 0}, "full_attention_interval = 0: .* from 1"),
    ("modernbert-base", {"global_attn_every_n_layers": False}, "every_n_layers = False"),
    ("exaone-4-32b", {"sliding_window_pattern": False, "sliding_window": None}, "pattern = False"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), OWN_NAMES)
def test_a_key_is_named_as_the_config_names_it(
    name: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(name, **changes)


WRONG_VALUES: list[Any] = [
    0.25, "4", True, False, math.nan, math.inf, 10**400, -(10**30), -1, 0, 1e-320, 1.5, "magic",
    [1.0, None], [None], [True], [], {},
]  # fmt: skip
# What a wrong value of these keys leads to is told about the key that they are needed for.
TOLD_ELSEWHERE = {"_name_or_path", "text_config"}


def keys_of(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*path, key))


@pytest.mark.parametrize("name", RAW)
def test_every_refusal_names_the_key_and_its_value(name: str) -> None:
    """Each key that is read, with each wrong value: it can be meant, or the error says what it is."""
    config, used, refused = RAW[name], set(read(name).used_keys), 0
    for path in keys_of(config):
        if ".".join(path) not in used or path[0] in TOLD_ELSEWHERE:
            continue
        for value in WRONG_VALUES:
            changed = copy.deepcopy(config)
            place = changed
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            before = repr(changed)
            try:
                scheme_from_config(changed)
            except ConfigError as error:
                refused += 1
                said = str(error)
                assert path[-1] in said
                shown = (repr(value)[:20], "is missing", "-1e+30" if value == -(10**30) else "…")
                assert any(text in said for text in shown), said
            assert repr(changed) == before
    assert refused > 0


def test_a_config_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted before it is made; here at a thousandth of what fills a machine."""
    monkeypatch.setattr(other_positions, "MAX_NUMBERS", 1 << 18)
    wide = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    disentangled = {"model_type": "sew-d", **wide, "max_position_embeddings": 512}
    with pytest.raises(ConfigError, match=r"num_hidden_layers = 2: .* 262144 learned numbers, not"):
        scheme_from_config({**disentangled, "pos_att_type": ["c2p", "p2c"]})
    swin = {"model_type": "swin", "depths": [2, 2], "num_heads": [96] * 2, "window_size": 32,
            "image_size": 224, "patch_size": 4}  # fmt: skip
    with pytest.raises(ConfigError, match=r"depths = \[2, 2\]: .* not 1524096"):  # 63² · 96 · 4
        scheme_from_config(swin)
    small = scheme_from_config({**swin, "num_heads": [3, 6], "window_size": 7})
    tables = [module for x in small.layers for module in x.modules().values()]
    assert len(tables) == 4
    assert all(x.device.type == "cpu" for table in tables for x in table.parameters())


def test_a_family_without_a_published_width_asks_for_it() -> None:
    config = {key: value for key, value in RAW["gpt-j-6b"].items() if key != "rotary_dim"}
    with pytest.raises(ConfigError, match="rotary_dim is missing"):
        scheme_from_config(config)
    with pytest.raises(ConfigError, match=r"4096 .* or 5120"):
        read("baichuan2-7b", hidden_size=2048)
    with pytest.raises(ConfigError, match="model_type='chatglm2'"):
        read("chatglm2-6b-32k", _name_or_path="")
    unnamed = {**RAW["chatglm2-6b-32k"], "_name_or_path": ""}
    rope: Any = scheme_from_config(unnamed, model_type="chatglm3").scheme.rotary
    assert rope.base == 5e5


# Mutated configs ----------------------------------------------------------------------------------

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70000), st.sampled_from([10**30, -(10**30), 0.25, 4]),
    st.floats(), st.text(max_size=5), st.lists(st.floats(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["yarn", "linear", "longrope", "full_attention", "llama", "gemma3_text", "t5"]),
)  # fmt: skip
KEYS = sorted({key for config in RAW.values() for key in config} | {
    "rope_parameters", "rope_type", "partial_rotary_factor", "qk_rope_head_dim", "alibi",
    "layer_rope_theta", "mrope_section", "rotary_dim", "global_head_dim", "attn_layer_indices",
})  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A real config with up to four keys changed, dropped, doubled or moved, at any depth."""
    config: Any = copy.deepcopy(RAW[draw(st.sampled_from(sorted(RAW)))])
    for _ in range(draw(st.integers(1, 4))):
        place = config
        while True:
            inner = [key for key, value in place.items() if isinstance(value, dict)]
            if not inner or draw(st.booleans()):
                break
            place = place[draw(st.sampled_from(inner))]
        key = draw(st.sampled_from(sorted(place) or ["rope_theta"]))
        match draw(st.integers(0, 4)):
            case 0:
                place.pop(key, None)
            case 1:
                place[key] = draw(JUNK)
            case 2:
                place[draw(st.sampled_from(KEYS))] = draw(JUNK)
            case 3:
                place["model_type"] = draw(st.sampled_from(sorted(FAMILIES)))
            case _:
                value = place.get(key)
                number = isinstance(value, int | float) and not isinstance(value, bool)
                place[key] = (
                    value * draw(st.sampled_from([-1, 0, 0.5, 2, 1e9])) if number else [value]
                )
    return config


def check_mutated(config: dict[str, Any]) -> None:
    """A scheme with finite frequencies or a ConfigError, and the caller's object untouched."""
    before = copy.deepcopy(config)
    try:
        model = scheme_from_config(config)
    except ConfigError:
        model = None
    for scheme in set(model.layers) if model else ():
        rotary: Any = scheme.rotary
        assert rotary is None or rotary.frequencies().inv_freq.isfinite().all()
    assert repr(config) == repr(before)  # NaN is not equal to itself


FUZZ = {
    "deadline": None,
    "database": None,
    "phases": (Phase.generate,),
    "suppress_health_check": list(HealthCheck),
}


@settings(max_examples=2000, **FUZZ)
@given(mutated())
def test_mutated_configs_are_read_or_refused(config: dict[str, Any]) -> None:
    check_mutated(config)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, derandomize=False, **FUZZ)
@given(mutated())
def test_many_mutated_configs_are_read_or_refused(config: dict[str, Any]) -> None:
    check_mutated(config)
