"""Configs of real models, from their published values: what they mean."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posenc import Alibi, MRope, Rope, Sinusoidal, T5Bias
from posenc.interop.hf import (
    LearnedPositions,
    ModelScheme,
    scheme_from_config,
)
from posenc.query_scale import LogScale, StepLogScale

CONFIGS = Path(__file__).with_name("configs")
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))

# name: base, rotary_dim, head_dim, pairing, scaling, layers, layers that rotate
ROPES: dict[str, tuple[float, int, int, str, str, int, int]] = {
    "llama-2-7b": (1e4, 128, 128, "half", "", 32, 32),
    "code-llama-7b": (1e6, 128, 128, "half", "", 32, 32),
    "llama-3-8b": (5e5, 128, 128, "half", "", 32, 32),
    "llama-3.1-8b": (5e5, 128, 128, "half", "Llama3 8", 32, 32),
    "llama-3.1-8b-transformers-5": (5e5, 128, 128, "half", "Llama3 8", 32, 32),
    "llama-3.2-1b": (5e5, 64, 64, "half", "Llama3 32", 16, 16),
    "llama-4-scout": (5e5, 128, 128, "adjacent", "Llama3 16", 48, 36),
    "yarn-llama-2-7b-64k": (1e4, 128, 128, "half", "Yarn 16", 32, 32),
    "deepseek-coder-6.7b": (1e5, 128, 128, "half", "Linear 4", 32, 32),
    "yi-6b": (5e6, 128, 128, "half", "", 32, 32),
    "mistral-7b-v0.1": (1e4, 128, 128, "half", "", 32, 32),
    "mistral-7b-v0.3": (1e6, 128, 128, "half", "", 32, 32),
    "mistral-small-3.1": (1e9, 128, 128, "half", "", 40, 40),
    "mixtral-8x7b": (1e6, 128, 128, "half", "", 32, 32),
    "qwen-7b": (1e4, 128, 128, "half", "QwenNTK 1", 32, 32),
    "qwen1.5-7b": (1e6, 128, 128, "half", "", 32, 32),
    "qwen2.5-7b": (1e6, 128, 128, "half", "", 28, 28),
    "qwen2.5-7b-yarn": (1e6, 128, 128, "half", "Yarn 4", 28, 28),
    "qwen2.5-7b-1m": (1e7, 128, 128, "half", "", 28, 28),
    "qwen3-8b": (1e6, 128, 128, "half", "", 36, 36),
    "qwen3-next-80b": (1e7, 64, 256, "half", "", 48, 12),
    "gemma-7b": (1e4, 256, 256, "half", "", 28, 28),
    "gemma-2-9b": (1e4, 256, 256, "half", "", 42, 42),
    "phi-2": (1e4, 32, 80, "half", "", 32, 32),
    "phi-3-mini-4k": (1e4, 96, 96, "half", "", 32, 32),
    "phi-3-mini-128k": (1e4, 96, 96, "half", "LongRope 32", 32, 32),
    "phi-4": (25e4, 128, 128, "half", "", 40, 40),
    "gpt-neox-20b": (1e4, 24, 96, "half", "", 44, 44),
    "pythia-1b": (1e4, 64, 256, "half", "", 16, 16),
    "gpt-j-6b": (1e4, 64, 256, "adjacent", "", 28, 28),
    "falcon-7b": (1e4, 64, 64, "half", "", 32, 32),
    "falcon-40b": (1e4, 64, 64, "half", "", 60, 60),
    "falcon-40b-refinedweb": (1e4, 64, 64, "half", "", 60, 60),
    "starcoder2-15b": (1e5, 128, 128, "half", "", 40, 40),
    "deepseek-v2-lite": (1e4, 64, 192, "adjacent", "Yarn 40", 27, 27),
    "deepseek-v3": (1e4, 64, 192, "adjacent", "Yarn 40", 61, 61),
    "kimi-k2": (5e4, 64, 192, "adjacent", "Yarn 32", 61, 61),
    "gpt-oss-20b": (15e4, 64, 64, "half", "Yarn 32", 24, 24),
    "glm-4-9b-0414": (1e4, 64, 128, "adjacent", "", 40, 40),
    "chatglm3-6b": (1e4, 64, 128, "adjacent", "", 28, 28),
    "chatglm3-6b-32k": (5e5, 64, 128, "adjacent", "", 28, 28),
    "chatglm2-6b-32k": (1e4, 64, 128, "adjacent", "Linear 50", 28, 28),
    "glm-4-9b-chat": (5e6, 64, 128, "adjacent", "", 40, 40),
    "baichuan2-7b": (1e4, 128, 128, "half", "", 32, 32),
    "internlm-7b-8k": (1e4, 128, 128, "half", "DynamicNTK 1", 32, 32),
    "internlm2-7b": (1e6, 128, 128, "half", "DynamicNTK 2", 32, 32),
    "olmo-2-7b": (5e5, 128, 128, "half", "", 32, 32),
    "smollm3-3b": (5e6, 128, 128, "half", "", 36, 27),
    "command-r": (8e6, 128, 128, "adjacent", "", 40, 40),
    "command-r7b": (5e4, 128, 128, "adjacent", "", 32, 24),
    "minicpm-2b": (1e4, 64, 64, "half", "", 40, 40),
    "granite-3.1-8b": (1e7, 128, 128, "half", "", 40, 40),
    "nemotron-4-mini": (1e4, 64, 128, "half", "", 32, 32),
    "exaone-4-32b": (1e6, 128, 128, "half", "Llama3 16", 64, 48),
    "stablelm-2-1.6b": (1e4, 16, 64, "half", "", 24, 24),
    "dbrx-base": (5e5, 128, 128, "half", "", 40, 40),
    "llava-1.5-7b": (1e4, 128, 128, "half", "", 32, 32),
    "esm2-650m": (1e4, 64, 64, "half", "", 33, 33),
}


def read(name: str, **changes: Any) -> ModelScheme:
    """A config of tests/configs with some keys changed."""
    return scheme_from_config({**raw(name), **changes})


def raw(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def rope_of(model: ModelScheme) -> Rope:
    """The only rotation of a model, layers without one aside."""
    ropes = {x.rotary for x in model.layers if x.rotary is not None}
    assert len(ropes) == 1
    rope = ropes.pop()
    assert isinstance(rope, Rope)
    return rope


# What real configs mean ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROPES)
def test_a_real_config_has_the_published_rotation(name: str) -> None:
    base, rotary_dim, head_dim, pairing, scaling, count, rotating = ROPES[name]
    model = read(name)
    rope = rope_of(model)
    kind = type(rope.scaling).__name__ if rope.scaling else ""
    factor = getattr(rope.scaling, "factor", 0)
    assert (rope.base, rope.rotary_dim, rope.head_dim) == (base, rotary_dim, head_dim)
    assert rope.pairing == pairing
    assert (f"{kind} {factor:g}" if kind else "") == scaling
    assert len(model.layers) == count
    assert sum(model.uses_rope(i) for i in range(count)) == rotating
    assert rope.placement == ("trailing" if head_dim == 192 else "leading")


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_read_and_left_as_it_was(name: str) -> None:
    given = raw(name)
    model = scheme_from_config(given)
    assert given == raw(name)
    assert model.used_keys
    assert model.layers


def test_layers_with_different_bases_keep_them_apart() -> None:
    small, large, modern = read("gemma-3-1b"), read("gemma-3-4b"), read("modernbert-base")
    bases = [rope_of_layer(small, i).base for i in range(6)]
    assert bases == [1e4] * 5 + [1e6]
    scalings = [rope_of_layer(large, i).scaling for i in (0, 5)]
    assert scalings[0] is None and scalings[1].factor == 8  # the linear factor is not for windows
    assert [rope_of_layer(modern, i).base for i in range(4)] == [16e4, 1e4, 1e4, 16e4]
    with pytest.raises(ValueError, match=r"do not share one scheme: layers \[0, 1"):
        _ = small.scheme
    assert small.layers[0] is small.layers[1]
    assert (small.windows[0], small.windows[5], small.softmax_scale) == (512, None, 1 / 16)


def rope_of_layer(model: ModelScheme, layer: int) -> Any:
    return model.layers[layer].rotary


def test_gemma_4_has_wide_heads_where_few_pairs_turn() -> None:
    model = read("gemma-4-text")
    assert rope_of_layer(model, 0).head_dim == 256
    assert rope_of_layer(model, 5).head_dim == 512
    turning = rope_of_layer(model, 5).frequencies().inv_freq > 0
    assert turning.tolist() == [True] * 64 + [False] * 192


def test_several_coordinates_share_the_pairs_out() -> None:
    first, third = read("qwen2-vl-7b").scheme.rotary, read("qwen3-vl-8b").scheme.rotary
    assert isinstance(first, MRope) and isinstance(third, MRope)
    assert (first.sections, first.order) == ((16, 24, 24), "contiguous")
    assert (third.sections, third.order) == ((24, 20, 20), "interleaved")


def test_queries_are_scaled_where_the_model_scales_them() -> None:
    llama, qwen = read("llama-4-scout"), read("qwen-7b")
    assert llama.layers[3].query_scale == StepLogScale(0.1, 8192)
    assert llama.layers[0].query_scale is None
    assert qwen.scheme.query_scale == LogScale(8192)


def test_biases() -> None:
    bloom, falcon = read("bloom-560m").scheme.bias, read("falcon-rw-1b").scheme.bias
    assert isinstance(bloom, Alibi) and bloom.num_heads == 16
    assert isinstance(falcon, Alibi)
    bfloat16 = round(2**-0.25 * 256) / 256  # the slope of head 0, to eight bits
    assert falcon.slopes()[0].item() == bfloat16 / 8  # and over √64
    t5 = read("t5-small")
    assert t5.encoder is not None
    decoder, encoder = t5.scheme.bias, t5.encoder.scheme.bias
    assert isinstance(decoder, T5Bias) and isinstance(encoder, T5Bias)
    assert not decoder.bidirectional and encoder.bidirectional
    assert (t5.softmax_scale, t5.encoder.softmax_scale) == (1.0, 1.0)
    assert len(set(map(id, read("umt5-small").layers))) == 8  # a table for each layer


def test_positions_that_are_added() -> None:
    assert read("gpt2").additive == LearnedPositions(1024, 768)
    assert read("opt-125m").additive == LearnedPositions(2048, 768, offset=2)
    assert read("roberta-base").additive == LearnedPositions(512, 768, offset=2, padding_idx=1)
    whisper = read("whisper-small")
    assert whisper.encoder is not None
    tensor2tensor = Sinusoidal(768, denominator="d-2", layout="concatenated")
    assert whisper.encoder.additive == tensor2tensor
    m2m100 = Sinusoidal(1024, denominator="d-2", layout="concatenated", offset=2, zero_padding=True)
    assert read("m2m100-418m").additive == m2m100
    assert read("marian-en-de").additive == Sinusoidal(512, layout="concatenated")
    assert whisper.additive == LearnedPositions(448, 768)
    state = torch.get_rng_state()
    assert read("opt-125m").additive.build().weight.shape == (2050, 768)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    read("t5-small")
    assert torch.equal(state, torch.get_rng_state())  # to read a config draws no random numbers


def test_defaults_that_were_used_are_on_record() -> None:
    model = read("llama-2-7b")
    assert dict(model.defaults_used) == {"rope_parameters.rope_theta": 10000.0}
    assert "hidden_size" in model.used_keys
    nested = read("llava-1.5-7b").defaults_used
    assert nested["text_config.hidden_size"] == 4096
