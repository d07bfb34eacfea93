"""Shipped models as oracles: transformers' own position modules, run as they are."""

import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch import Tensor
from transformers import CohereConfig, GPT2Config, GPT2Model, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.cohere.modeling_cohere import (
    CohereRotaryEmbedding,
)
from transformers.models.cohere.modeling_cohere import (
    apply_rotary_pos_emb as apply_cohere,
)
from transformers.models.gptj.modeling_gptj import (
    apply_rotary_pos_emb as apply_gptj,
)
from transformers.models.gptj.modeling_gptj import (
    create_sinusoidal_positions,
)
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
)
from transformers.models.llama.modeling_llama import (
    apply_rotary_pos_emb as apply_llama,
)
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings
from transformers.models.swin.modeling_swin import SwinRelativePositionBias
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.whisper.modeling_whisper import sinusoids

from posenc import (
    Alibi,
    DynamicNTK,
    Learned,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    Rope,
    Scaling,
    Scheme,
    Sinusoidal,
    SwinBias,
    T5Bias,
    Yarn,
    attention,
    rotate_qk,
)
from posenc.positions import from_padding_mask, grid, sequence
from support import assert_roundings, random

AT = torch.tensor([[0, 1, 2, 63, 1000, 4095, 100_000], [5, 4, 3, 2, 1, 0, 131_071]])


def llama_config(head_dim: int = 64, base: float = 10_000.0, **rope: Any) -> LlamaConfig:
    parameters = {"rope_type": "default", "rope_theta": base, **rope}
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=4096,
        rope_parameters=parameters,
    )


# --- Rotary --------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [10_000.0, 500_000.0, 1_000_000.0])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_float32_angles_are_llamas_bit_for_bit(head_dim: int, base: float) -> None:
    theirs = LlamaRotaryEmbedding(llama_config(head_dim, base))
    cos, sin = theirs(torch.zeros(1), AT)
    table = Rope(head_dim, base, angle_dtype=torch.float32).table(AT)
    assert torch.equal(torch.cat((table.cos, table.cos), -1), cos)
    assert torch.equal(torch.cat((table.sin, table.sin), -1), sin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_rotation_is_llamas_up_to_one_rounding(dtype: torch.dtype) -> None:
    q, k = random(2, 4, 7, 64, dtype=dtype), random(2, 2, 7, 64, seed=1, dtype=dtype)
    tables = Rope(64, angle_dtype=torch.float32).tables(AT, AT)
    ours = rotate_qk(q, k, tables)
    cos, sin = LlamaRotaryEmbedding(llama_config())(torch.zeros(1), AT)
    theirs = apply_llama(q.double(), k.double(), cos.double(), sin.double())
    for made, exact, x in zip(ours, theirs, (q, k), strict=True):
        limit = torch.finfo(dtype).eps * exact.abs() + 4 * 2**-23 * x.double().abs().max()
        assert ((made.double() - exact).abs() <= limit).all()


METHODS: list[tuple[Scaling, dict[str, Any]]] = [
    (Linear(4.0), {"rope_type": "linear", "factor": 4.0}),
    (Yarn(8.0, 4096), {"rope_type": "yarn", "factor": 8.0}),
    (Yarn(8.0, 4096, truncate=False), {"rope_type": "yarn", "factor": 8.0, "truncate": False}),
    (
        Yarn(8.0, 4096, attention_factor=1.25),
        {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25},
    ),
    (
        Yarn(8.0, 4096, beta_fast=16.0, beta_slow=2.0),
        {"rope_type": "yarn", "factor": 8.0, "beta_fast": 16.0, "beta_slow": 2.0},
    ),
    (
        Yarn(8.0, 4096, mscale=1.0, mscale_all_dim=0.5),
        {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    ),
    (
        Yarn(8.0, 4096, mscale=0.707),
        {"rope_type": "yarn", "factor": 8.0, "mscale": 0.707},
    ),
    (
        Llama3(8.0, 4096),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    (
        LongRope((1.0,) * 32, (2.0,) * 32, 8.0, 4096),
        {
            "rope_type": "longrope",
            "factor": 8.0,
            "short_factor": [1.0] * 32,
            "long_factor": [2.0] * 32,
        },
    ),
    (
        Proportional(0.5),
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    ),
]


@pytest.mark.parametrize(
    ("method", "parameters"), METHODS, ids=[repr(method)[:90] for method, _ in METHODS]
)
def test_scaled_frequencies_are_theirs(method: Scaling, parameters: dict[str, Any]) -> None:
    if "original_length" in repr(method):
        parameters = {**parameters, "original_max_position_embeddings": 4096}
    config = llama_config(**parameters)
    theirs, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    single = Rope(64, scaling=method, angle_dtype=torch.float32).frequencies()
    assert torch.equal(single.inv_freq, theirs)  # their float32, bit for bit
    exact = Rope(64, scaling=method).frequencies()
    assert_roundings(theirs, exact.inv_freq, 4, size=exact.inv_freq)
    assert exact.attention_factor == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize("length", [100, 4096, 5000, 16_384])
def test_dynamic_ntk_is_theirs_at_every_length(length: int) -> None:
    config = llama_config(rope_type="dynamic", factor=2.0)
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=length)
    ours = Rope(64, scaling=DynamicNTK(2.0, 4096)).at_length(length).frequencies().inv_freq
    assert_roundings(theirs, ours, 4, size=ours)


@pytest.mark.parametrize("model", ["gptj", "cohere"])
def test_adjacent_rotation_is_theirs(model: str) -> None:
    q, k = random(2, 4, 7, 64), random(2, 4, 7, 64, seed=1)
    at = AT.clamp(max=4095)
    rope = Rope(64, pairing="adjacent", angle_dtype=torch.float32)
    ours = rotate_qk(q, k, rope.tables(at, at))
    if model == "gptj":
        sin, cos = create_sinusoidal_positions(4096, 64)[at].chunk(2, -1)
        theirs = [apply_gptj(x.transpose(1, 2), sin, cos).transpose(1, 2) for x in (q, k)]
        roundings = 4096  # their angles are float32 products of other float32 frequencies
    else:
        base = {"rope_type": "default", "rope_theta": 10_000.0}
        config = CohereConfig(hidden_size=256, num_attention_heads=4, rope_parameters=base)
        cos, sin = CohereRotaryEmbedding(config)(torch.zeros(1), at)
        theirs = apply_cohere(q, k, cos, sin)
        roundings = 4
    for made, exact in zip(ours, theirs, strict=True):
        assert_roundings(made.float(), exact, roundings)


# --- Biases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (64, 256), (320, 800)])
def test_t5_buckets_are_theirs(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    relative = torch.arange(-2000, 2001)
    options = {"num_buckets": num_buckets, "max_distance": max_distance}
    theirs = T5Attention._relative_position_bucket(relative, bidirectional, **options)
    ours = T5Bias(1, bidirectional=bidirectional, **options).bucket(relative)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("num_heads", [*range(1, 34), 40, 48, 71, 112])
def test_alibi_slopes_are_those_of_bloom_and_mpt(num_heads: int) -> None:
    ours = Alibi(num_heads).slopes()
    bloom = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), num_heads, torch.float32)
    assert_roundings(bloom[:, 0, 1], ours, 8, size=ours)
    mpt = build_mpt_alibi_tensor(num_heads, 2)
    assert_roundings(-mpt[:, 0, 0], ours, 4, size=ours)


def test_alibi_attention_is_blooms_although_their_rows_are_shifted() -> None:
    q, k, v = (random(1, 6, 9, 8, seed=n) for n in range(3))
    ours = attention(q, k, v, scheme=Scheme(bias=Alibi(6)))
    bias = build_alibi_tensor(torch.ones(1, 9, dtype=torch.int64), 6, torch.float64)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    logits = q @ k.mT / 8**0.5 + bias.view(1, 6, 1, 9)
    assert_roundings(ours.float(), logits.masked_fill(hidden, -torch.inf).softmax(-1) @ v, 8)


@pytest.mark.parametrize("window", [(2, 3), (7, 7), (4, 1)])
def test_swin_bias_is_theirs(window: tuple[int, int]) -> None:
    theirs = SwinRelativePositionBias(3, window)
    theirs.relative_position_bias_table.data.normal_()
    ours = SwinBias(3, window=window)
    ours.weight.data.copy_(theirs.relative_position_bias_table)
    assert torch.equal(ours.dense(grid(*window), grid(*window)), theirs())


# --- Added to embeddings -------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [8, 512, 9])
def test_sinusoids_are_marians(dim: int) -> None:
    theirs = MarianSinusoidalPositionalEmbedding(64, dim).create_weight()
    assert_roundings(theirs, Sinusoidal(dim, layout="concatenated").encode(sequence(64)).double())


@pytest.mark.parametrize("dim", [8, 384])
def test_sinusoids_are_whispers(dim: int) -> None:
    encoding = Sinusoidal(dim, layout="concatenated", denominator="d-2")
    theirs = sinusoids(64, dim)  # float32 angles up to 63 rad
    assert_roundings(theirs, encoding.encode(sequence(64)).double(), 64)


MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])


def test_learned_reads_the_rows_of_opt() -> None:
    theirs = OPTLearnedPositionalEmbedding(16, 4)
    ours = Learned(16, 4, offset=2)
    ours.weight.data.copy_(theirs.weight)
    assert torch.equal(ours.encode(from_padding_mask(MASK)), theirs(MASK))


def test_learned_reads_the_rows_of_bart() -> None:
    theirs = BartLearnedPositionalEmbedding(16, 4)
    ours = Learned(16, 4, offset=2)
    ours.weight.data.copy_(theirs.weight)
    ids = torch.zeros(2, 5, dtype=torch.int64)
    assert torch.equal(ours.encode(sequence(5)).expand(2, -1, -1), theirs(ids))
    assert torch.equal(ours.encode(sequence(5, start=3))[None], theirs(ids[:1], cache_length=3))


@pytest.mark.parametrize("padding_idx", [0, 1])
def test_learned_reads_the_rows_of_roberta(padding_idx: int) -> None:
    ids = torch.where(MASK == 1, 7, padding_idx)
    theirs = RobertaEmbeddings.create_position_ids_from_input_ids(ids, padding_idx)
    ours = Learned(16, 4, padding_idx=padding_idx)
    assert torch.equal(from_padding_mask(MASK) + ours.offset, theirs)
    assert torch.equal(ours.encode(from_padding_mask(MASK)), ours.weight[theirs])


def test_learned_reads_the_rows_of_gpt2() -> None:
    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16, vocab_size=9))
    model.eval()
    model.wte.weight.data.zero_()
    seen: list[Tensor] = []
    model.h[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(torch.zeros(1, 5, dtype=torch.int64))
    ours = Learned(16, 8)
    ours.weight.data.copy_(model.wpe.weight)
    assert torch.equal(ours(torch.zeros(1, 5, 8)), seen[0])
