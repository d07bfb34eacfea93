"""Every causal family with its weights in the other pairing: converted, run that way, and back."""

import inspect
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from causal_models import causal_logits, causal_model
from conformance.check import Check
from posenc.interop.checkpoints import CheckpointError, convert
from posenc.interop.hf import scheme_from_config

__all__ = ["CONVERTED", "OTHERS", "REFUSED", "checkpoint_checks"]

_CONVERTED = """
afmoe apertus apertus1p5_text arcee aria_text axk1 bailing_hybrid bamba beam bitnet codegen cohere
cohere2 cohere2_moe cohere_compass_text cwm dbrx deepseek_v2 deepseek_v3 diffllama doge dots1 ernie4_5
ernie4_5_moe exaone exaone4 exaone_moe falcon falcon_h1 flex_olmo flint gemma gemma2 gemma3_text
gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite gpt_neox
gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoehybrid
granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3
iquestcoder jais2 kolibri1 laguna lara_mini lfm2 lfm2_moe lfm3 llama llama4_text mellum mimo_v2_flash
minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder
moshi nanochat nemotron olmo olmo2 olmo3 olmo_hybrid olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe
qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next recurrent_gemma roformer sarvam_mla
sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu
"""
CONVERTED = _CONVERTED.split()

INDEXER = (
    "the indexer picks keys by a rotation of its own, and no key of the config says its pairing"
)
# The tensor that is named, and why it cannot be known what it becomes.
REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), ("indexer.k_norm", INDEXER)),
    "qwen4_exp_text": ("indexer.index_qk_proj", INDEXER),
    "deepseek_v4": (
        "compressor.kv_norm",
        "one projection is keys and values, and outputs turn back",
    ),
    "dory": ("lambda_1", "`sqk` scales the channels of queries after they turned"),
    "jetmoe": ("experts.bias", "queries come from experts, keys and values share a projection"),
    "zaya": ("input_hidden_states_bias", "convolutions mix the channels of queries and keys"),
}
# Rotating families that are not built here: parts that see or hear are refused by name, several
# stacks of layers too, and of the rest the text model alone is above.
_OTHERS = """
blt dots3_note dots3_note_text emu3 fuyu gemma3 gemma3n gemma4 gemma4_unified gemma4_unified_assistant
got_ocr2 llama4 longcat_flash mllama moss_transcribe_diarize phi4_multimodal qwen3_5 qwen3_5_moe
qwen4_exp
"""
OTHERS = _OTHERS.split()
# Families whose rotation set_rope does not take: their own function is wrapped here.
WRAPPED = (
    "cohere_compass_text",
    "minimax_m3_vl_text",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "roformer",
)
APPLY = re.compile(r"apply_rotary")


def checkpoint_checks() -> list[Check]:
    """One case for each family."""
    told = (
        "logits of the converted twin, rotated the other way, are equal; there and back bit for bit"
    )
    done = [Check(kind, told, partial(check_twin, kind)) for kind in CONVERTED]
    refused = [
        Check(
            kind,
            f"`{part}` is not recognised",
            partial(check_refused, kind, part),
            f"refused: {why}",
        )
        for kind, (part, why) in REFUSED.items()
    ]
    return sorted(done + refused, key=lambda check: check.case)


def check_twin(kind: str) -> None:
    """A twin with converted weights, turning the other way, is the model."""
    made, twin = causal_model(kind), causal_model(kind, seed=1)
    expected = causal_logits(made)
    scheme: Any = scheme_from_config(made.config.to_dict())
    ropes = [layer.rotary for layer in scheme.layers if layer.rotary is not None]
    own = ropes[0].pairing
    other = "half" if own == "adjacent" else "adjacent"
    with tempfile.TemporaryDirectory() as folder:
        source, there, back = (Path(folder) / name for name in ("source", "there", "back"))
        state = saved(made, source)
        done = convert(source, there, to=other)
        read = {x.rotary.pairing for x in _read(there) if x.rotary is not None}
        assert read == {other} or (done.noted is None and f"must rotate {other}" in done.told)
        convert(there, back, to=own)
        twin.load_state_dict(load_file(there / "model.safetensors"))
        restored = load_file(back / "model.safetensors")
    assert all(torch.equal(restored[name], weight) for name, weight in state.items())
    wrong = (causal_logits(twin) - expected).abs().max()
    assert wrong > 0.05 * expected.abs().max(), "this model cannot tell pairings apart"
    with turning_otherwise(kind, twin, ropes, own, other):
        torch.testing.assert_close(causal_logits(twin), expected, rtol=1e-4, atol=2e-5)


def _read(folder: Path) -> Any:
    return scheme_from_config(folder).layers


def check_refused(kind: str, part: str) -> None:
    """The error names a tensor, and nothing is written."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        made = causal_model(kind)
        saved(made, source)
        own = {layer.rotary.pairing for layer in _schemes(made) if layer.rotary is not None}.pop()
        with pytest.raises(CheckpointError, match=f"tensor '[^']*{re.escape(part)}"):
            convert(source, target, to="half" if own == "adjacent" else "adjacent")
        assert not target.exists()


def saved(made: Any, folder: Path) -> Mapping[str, Tensor]:
    """A checkpoint of a model in a new folder."""
    folder.mkdir()
    made.config.save_pretrained(folder)
    state = {name: weight.clone().contiguous() for name, weight in made.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    return state


@contextmanager
def turning_otherwise(kind: str, made: Any, ropes: Any, own: str, other: Any) -> Iterator[None]:
    """The model turns the other pairing: by set_rope, or by a wrapper around its own function."""
    from posenc.interop.transformers import set_rope  # noqa: PLC0415

    if kind in WRAPPED:
        owner = sys.modules[type(made).__module__]
        owner = getattr(owner, "RoFormerSelfAttention", owner)
        with _wrapped(owner, 2 * ropes[0].frequencies().inv_freq.numel(), own):
            yield
        return
    types: Any = getattr(made.config, "layer_types", None)
    named = zip(types or (), _schemes(made), strict=False)
    by_type = {name: layer.rotary for name, layer in named if layer.rotary is not None}
    changed: dict[str, Any] = {name: replace(rope, pairing=other) for name, rope in by_type.items()}
    try:
        swap = set_rope(made, replace(ropes[0], pairing=other))
    except ValueError:  # one rotation for each layer type
        swap = set_rope(made, changed)
    with swap:
        yield


@contextmanager
def _wrapped(owner: Any, width: int, own: str) -> Iterator[None]:
    name = next(name for name in vars(owner) if APPLY.match(name))
    static, function = vars(owner)[name], getattr(owner, name)
    signature = inspect.signature(function)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        for key in ("q", "k", "query_layer", "key_layer"):
            if key in bound:
                x = bound[key]
                grid = x[..., :width].unflatten(-1, (2, -1) if own == "adjacent" else (-1, 2))
                bound[key] = torch.cat((grid.mT.flatten(-2), x[..., width:]), -1)
        return function(**bound)

    setattr(owner, name, staticmethod(wrapper) if isinstance(static, staticmethod) else wrapper)
    try:
        yield
    finally:
        setattr(owner, name, static)


def _schemes(made: Any) -> Any:
    scheme: Any = scheme_from_config(made.config.to_dict())
    return scheme.layers
