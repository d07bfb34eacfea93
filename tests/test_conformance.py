"""transformers' own rotary modules against what scheme_from_config makes of their configs.

scripts/conformance.py runs all cases and writes docs/conformance.md; here is a fixed sample of
them, and, marked slow, the default of every model type.
"""

import copy
import json
import random
import runpy
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import torch
import transformers

from conformance.compare import UNNAMED, Case, run
from conformance.peers import EXTRA, MODELS, OVERRIDES, Peer, variants_of
from conformance.reasons import REASONS, reason
from posenc.interop.hf import FAMILIES, scheme_from_config
from posenc.interop.model_scheme import described

CASES = [(name, variant) for name in MODELS for variant in variants_of(name)]
# One of each way to turn, under every variant; and a seeded rest.
EACH = ("llama", "gpt_neox", "phi", "glm4", "gptj", "cohere2", "deepseek_v2", "deepseek_v3",
        "minicpm3", "deepseek_v4", "gemma4_text", "olmo3", "gpt_oss", "llama4_text", "qwen2_vl_text",
        "qwen3_vl_text", "ernie4_5_vl_moe_text", "neomme")  # fmt: skip
SAMPLE = sorted(
    {case for case in CASES if case[0] in EACH or case[1] in EXTRA.get(case[0], {})}
    | set(random.Random(0).sample(CASES, 100))
)

pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def check(case: Case) -> None:
    """Equal, or with a reason, or beyond what transformers itself can run."""
    if case.status in ("differs", "refused"):
        assert reason(case.model_type, case.variant), f"{case.status}: {case.why}"


@pytest.mark.parametrize(("model_type", "variant"), SAMPLE)
def test_a_model_type_turns_as_its_own_code_does(model_type: str, variant: str) -> None:
    check(run(model_type, variant))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
def test_the_default_of_every_model_type_is_equal(model_type: str) -> None:
    case = run(model_type, "default")
    check(case)
    assert case.status in ("equal", "refused"), case.why


@pytest.mark.parametrize("key", REASONS)
def test_every_reason_is_still_needed(key: tuple[str, str]) -> None:
    name, variant = (
        x.replace("*", y) for x, y in zip(key, ("gemma3_text", "default"), strict=True)
    )
    case = run(name, variant)
    assert case.status in ("differs", "refused")
    assert reason(name, variant) == REASONS[key]


# Keys that a config may leave out: what the family's code takes then is in posenc's tables.
LEFT_OUT = ("rope_parameters", "rope_theta", "layer_types", "layers_block_type", "block_types",
            "no_rope_layers", "layer_rope_theta", "per_layer_config", "partial_rotary_factor",
            "head_dim", "hidden_size", "num_attention_heads", "num_hidden_layers",
            "rope_scaling_layers", "compress_rope_theta")  # fmt: skip
NEEDED = {
    "dory": "writes two layers for one",
    "hrm_text": "writes the number of its layers times that of its cycles",
    "dots3_note_text": "per_layer_config is required",
    "zamba2": "layers_block_type is required",
    "jetmoe": "its number of heads is a product",
}


def check_defaults(model_type: str) -> None:
    """A nested config without these keys means what the class's own defaults mean."""
    kept = OVERRIDES.get(model_type, {})
    config = Peer.of(model_type).config_class(**copy.deepcopy(kept))
    full = json.loads(json.dumps(config.to_dict(), default=str))
    bare = {key: x for key, x in full.items() if key in kept or key not in LEFT_OUT}
    said = scheme_from_config(full)
    nested = scheme_from_config({"model_type": "composite", "text_config": bare})
    assert [described(x, {}) for x in nested.layers] == [described(x, {}) for x in said.layers]


TABLE = [name for name in MODELS if name not in (*NEEDED, *UNNAMED) and not FAMILIES[name].refuse]


@pytest.mark.parametrize("model_type", TABLE[::12])
def test_published_defaults_are_those_of_the_class(model_type: str) -> None:
    check_defaults(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TABLE)
def test_the_published_defaults_of_every_family(model_type: str) -> None:
    check_defaults(model_type)


@pytest.mark.slow
def test_the_sizes_of_nested_configs_are_those_of_the_classes() -> None:
    path = Path(__file__).parents[1] / "scripts/class_defaults.py"
    table = resources.files("posenc.interop").joinpath("class_defaults.json").read_text("utf-8")
    assert json.loads(table) == runpy.run_path(str(path))["rows"]()
