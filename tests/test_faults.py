"""Faults that people reported in public, each with the right value.

B-numbers are those of the project's collection of reports; the tutorial faults come first. Expected
numbers are the reporter's where an oracle agrees with them.
"""

import copy
import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import oracles
import oracles_forms
from posenc import (
    NTK,
    Alibi,
    DynamicNTK,
    KVCache,
    Learned,
    LearnedScaleRope,
    Linear,
    Llama3,
    LongRope,
    MRope,
    MultiHeadAttention,
    Proportional,
    Rope,
    Scheme,
    Shaw,
    Sinusoidal,
    Spectrum,
    SwinBias,
    T5Bias,
    Table,
    XPos,
    Yarn,
    attention,
    causal,
    elu_plus_one,
    linear_attention,
    rerotate,
    rotate,
    rotate_qk,
    window,
)
from posenc.attention import AttentionImpl
from posenc.contracts import Block, Pairing
from posenc.interop.checkpoints import CheckpointError, without_tables
from posenc.positions import from_padding_mask, on_axes, sequence
from posenc.registry import ENCODINGS
from support import (
    BIASES,
    CAUSAL,
    DIM,
    HEAD_DIM,
    HEADS,
    NAMES,
    assert_roundings,
    build,
    eps,
    every_rotation,
    heads,
    layer,
    mask_of,
    positions_of,
    random,
)

ROPE = Rope(HEAD_DIM)


def turned(values: list[float], table: Table) -> list[float]:
    return rotate(torch.tensor(values).view(1, 1, 1, -1), table).flatten().tolist()


# --- Faults of tutorial code ---------------------------------------------------------------------


def test_tutorial_tables_of_width_d_viewed_as_half_of_it() -> None:
    """Tables hold one column a pair and say so; a table of another width has no head to turn."""
    table = Rope(8).table(sequence(3))
    assert table.cos.shape == (1, 3, 4) and table.rotary_dim == 8
    for head_dim in (2, 8):
        wide = torch.ones(1, 3, head_dim)
        with pytest.raises(ValueError, match=f"at most {head_dim // 2}, got cos .*{head_dim}"):
            Table(wide, wide, "half", head_dim)
    with pytest.raises((TypeError, AttributeError)):
        rotate(torch.ones(1, 1, 3, 8), (table.cos, table.sin))  # pyright: ignore[reportArgumentType]


def test_tutorial_scores_across_heads_because_nothing_was_transposed() -> None:
    q = random(2, 5, HEADS, HEAD_DIM)  # [B, T, H, D]
    with pytest.raises(ValueError, match="split the heads and transpose"):
        rotate(random(2, 5, DIM), ROPE.table(sequence(5)))
    with pytest.raises(ValueError, match=r"tokens in dimension 2 \(\[B, H, T, D\]"):
        rotate(q, ROPE.table(sequence(5)))
    with pytest.raises(ValueError, match="T = 4 tokens"):
        attention(q, q, q, scheme=Scheme(rotary=ROPE), k_pos=sequence(5))
    with pytest.raises(ValueError, match="made for 4 heads, queries have 5"):
        attention(q, q, q, scheme=Scheme(bias=Alibi(HEADS)))
    with pytest.raises(ValueError, match="every score mixes heads"):
        attention(*(x.flatten(1, 2) for x in (q, q, q)))
    heads_out = attention(*(x.transpose(1, 2) for x in (q, q, q)), scheme=Scheme(rotary=ROPE))
    one = q.transpose(1, 2)[:, 2:3]
    assert_roundings(heads_out[:, 2:3], attention(one, one, one, scheme=Scheme(rotary=ROPE)), 64)


def test_tutorial_rotation_of_the_embeddings_instead_of_q_and_k() -> None:
    with pytest.raises(TypeError, match=r"additive= takes .*got Rope; it belongs in rotary="):
        Scheme(additive=ROPE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"rotation is for heads of 32 channels.* gives 8"):
        MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=Rope(DIM)))
    with pytest.raises(ValueError, match="D = 8 channels of one head"):
        rotate(random(2, 5, DIM), ROPE.table(sequence(5)))
    torch.manual_seed(0)
    model = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=ROPE)).double()
    x = random(1, 1, DIM)
    far = model(x, torch.tensor([1000]))
    assert_roundings(far, model(x, torch.tensor([0])), 64)  # one token: values carry no position


def test_tutorial_position_scale_cut_off_from_its_gradient_by_an_integer_cast() -> None:
    rotary = LearnedScaleRope(ROPE, initial_scale=1.0)
    table = rotary.table(torch.tensor([3]), dtype=torch.float64)
    table.sin[0, 0, 0].backward()
    assert rotary.scale.grad == pytest.approx(3 * math.cos(3))
    half = LearnedScaleRope(ROPE, initial_scale=0.5)
    assert turned([1.0] + [0.0] * 7, half.table(torch.tensor([1])))[0] == pytest.approx(
        math.cos(0.5)
    )


def test_tutorial_linear_attention_with_mismatched_axes_or_a_softmax_over_the_wrong_one() -> None:
    q, k, v = heads(5)
    out = linear_attention(q, k, v, mask=None)
    for b in range(2):
        for h in range(HEADS):
            a, c = elu_plus_one(q[b, h]), elu_plus_one(k[b, h])
            weights = (a @ c.T) / (a @ c.T).sum(1, keepdim=True)
            assert_roundings(out[b, h], weights @ v[b, h], 64)
    with pytest.raises(ValueError, match="split the heads"):
        linear_attention(q, k.transpose(1, 2), v)


def test_tutorial_sine_table_used_for_the_cosine() -> None:
    table = ROPE.table(torch.tensor([0]))
    assert torch.equal(table.cos, torch.ones(1, 1, 4))
    assert torch.equal(table.sin, torch.zeros(1, 1, 4))
    assert torch.equal(Sinusoidal(4).encode(torch.tensor([0])), torch.tensor([[0.0, 1, 0, 1]]))


LOW = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", LOW)
def test_tutorial_bf16_positions_are_refused_everywhere(dtype: torch.dtype) -> None:
    at = torch.arange(5).to(dtype)
    q, k, v = heads(5)
    calls: list[Any] = [
        lambda: ROPE.table(at),
        lambda: ROPE.tables(at, at),
        lambda: LearnedScaleRope(ROPE).table(at),
        lambda: Sinusoidal(8).encode(at),
        lambda: Sinusoidal(8)(random(1, 5, 8), at),
        lambda: Learned(8, 4).encode(at),
        lambda: Learned(8, 4)(random(1, 5, 4), at),
        lambda: Alibi(2).dense(at, at),
        lambda: Alibi(2).per_distance(at),
        lambda: Alibi(2).score_mod(at, at),
        lambda: T5Bias(2).dense(at, at),
        lambda: rerotate(k, at, ROPE, ROPE),
        *(lambda name=name: attention(q, k, v, scheme=build(name), k_pos=at) for name in CAUSAL),
        lambda: linear_attention(q, k, v, k_pos=at),
        lambda: layer("rope")(random(1, 5, DIM), at),
        lambda: layer("none")(random(1, 5, DIM), at),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"got dtype {dtype}"):
            call()


# --- LAYOUT --------------------------------------------------------------------------------------

X = [1.0, 2.0, 3.0, 4.0]


def test_b05_each_pairing_turns_its_own_pairs() -> None:
    at, speeds = torch.tensor([1]), oracles.frequencies(4, 1e4)
    expected = {
        "half": [-1.98411, 1.95990, 2.46238, 4.01980],
        "adjacent": [-1.14264, 1.92208, 2.95985, 4.02980],
    }
    for pairing, values in expected.items():
        rope = Rope(4, pairing=pairing)  # pyright: ignore[reportArgumentType]
        assert turned(X, rope.table(at)) == pytest.approx(values, abs=5e-6)
        assert oracles.rotated(X, 1, speeds, pairing=pairing) == pytest.approx(values, abs=5e-6)


def test_b06_a_table_of_one_pairing_is_never_applied_by_the_other() -> None:
    """Mixed, the result has norm 5.863 instead of √30: the table itself says how it is applied."""
    for pairing in ("half", "adjacent"):
        table = Rope(4, pairing=pairing).table(torch.tensor([1]))  # pyright: ignore[reportArgumentType]
        assert table.pairing == pairing
        assert math.hypot(*turned(X, table)) == pytest.approx(math.sqrt(30))


def test_b08_permuted_channels_give_the_same_scores() -> None:
    """Adjacent rotation of permuted channels is half rotation: q·k agree, vectors do not."""
    q, k, _ = heads(6)
    to_half = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    half, adjacent = (Rope(8, pairing=p).table(sequence(6)) for p in ("half", "adjacent"))
    ours = rotate(q, adjacent) @ rotate(k, adjacent).mT
    permuted = rotate(q[..., to_half], half) @ rotate(k[..., to_half], half).mT
    assert_roundings(permuted, ours, 64)
    assert torch.equal(rotate(q, adjacent)[..., to_half], rotate(q[..., to_half], half))


def test_b11_attention_rotates_once_and_scales_keys_once() -> None:
    method = Yarn(8.0, 64)
    q, k, v = heads(2, batch=1)
    scheme = Scheme(rotary=Rope(8, scaling=method))
    out = attention(q, k, v, scheme=scheme, mask=None, impl="sdpa")
    speeds, factor = oracles.yarn_frequencies(8, 1e4, 8.0, 64), oracles.yarn_amplitude(8.0)
    a, b = ([r.tolist() for r in x[0, 0]] for x in (q, k))
    a, b = (
        [oracles.rotated(r, p, speeds, amplitude=factor) for p, r in enumerate(x)] for x in (a, b)
    )
    logits = [[oracles.dot(x, y) / math.sqrt(8) for y in b] for x in a]
    expected = oracles.softmax_attention(
        logits, lambda i, j: True, lambda i, j: v[0, 0, j].tolist()
    )
    assert_roundings(out[0, 0].float(), torch.tensor(expected, dtype=torch.float64), 8)


def test_b12_each_family_keeps_its_own_pairing_and_width() -> None:
    x = random(1, 1, 2, 256, dtype=torch.float32)
    gptj, pythia = Rope(256, pairing="adjacent", rotary_dim=64), Rope(256, rotary_dim=64)
    for rope in (gptj, pythia):
        out = rotate(x, rope.table(sequence(2)))
        expected = [
            oracles.rotated(row, p, oracles.frequencies(64, 1e4), pairing=rope.pairing)
            for p, row in enumerate(x[0, 0].tolist())
        ]
        assert_roundings(out[0, 0], torch.tensor(expected, dtype=torch.float64), 4)
    assert gptj != pythia


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
def test_b14_converted_channels_or_converted_tables_but_not_both(pairing: Pairing) -> None:
    """(2, 1088, 64): one pairing's q permuted under the other's table, or left under its own."""
    x = random(2, 1, 1088, 64, dtype=torch.float32)
    other: Pairing = "adjacent" if pairing == "half" else "half"
    order = torch.arange(64).view(32, 2).T.flatten()  # adjacent channels in the order of halves
    order = order.argsort() if pairing == "half" else order
    own, theirs = (Rope(64, pairing=p).table(sequence(1088)) for p in (pairing, other))
    expected = rotate(x, own)
    assert torch.equal(rotate(x[..., order], theirs), expected[..., order])
    assert (rotate(x, theirs) - expected).abs().max() > 1
    for p in (0, 1, 1087):
        row = oracles.rotated(x[1, 0, p].tolist(), p, oracles.frequencies(64, 1e4), pairing=pairing)
        assert_roundings(expected[1, 0, p], torch.tensor(row, dtype=torch.float64), 4)


def test_b96_a_rotation_of_the_model_width_is_refused_before_the_head_split() -> None:
    x, table = random(32, 128, 512, dtype=torch.float32), Rope(64).table(sequence(128))
    with pytest.raises(ValueError, match=r"D = 64 channels of one head, got .*\[32, 128, 512\]"):
        rotate(x, table)
    assert rotate(x.unflatten(-1, (8, 64)).transpose(1, 2), table).shape == (32, 8, 128, 64)


def test_b97_rotation_runs_along_the_tokens_and_not_along_the_heads() -> None:
    q = torch.ones(1, 4, 5, 8)  # [B, H, T, D]
    out = rotate(q, ROPE.table(sequence(5)))
    assert (out[:, :1] == out).all()
    assert all((out[0, 0, i] != out[0, 0, j]).any() for i in range(5) for j in range(i))
    with pytest.raises(ValueError, match="has 5 tokens in dimension 2"):
        rotate(q, ROPE.table(sequence(4)))


# --- PRECISION -----------------------------------------------------------------------------------


def test_b15_phases_are_made_in_float64() -> None:
    speed = Rope(32).frequencies().inv_freq[1].item()
    assert 1857 * speed == pytest.approx(1044.267841, abs=1e-6)
    assert oracles.frequency(1, 32, 1e4) == pytest.approx(speed, rel=1e-15)
    table = Rope(32).table(sequence(2048))
    assert table.cos[0, 1857, 1].item() == pytest.approx(0.306693, abs=1e-6)
    exact = torch.tensor(
        [[math.cos(p * oracles.frequency(i, 32, 1e4)) for i in range(16)] for p in range(2048)],
        dtype=torch.float64,
    )
    assert (table.cos[0] - exact).abs().max() < 1e-7


@pytest.mark.parametrize("length", [512, 4096])
def test_b17_bf16_autocast_changes_no_table(length: int) -> None:
    at = sequence(length)
    plain = ROPE.table(at)
    with torch.autocast("cpu", torch.bfloat16):
        under = ROPE.table(at)
        out = layer("rope").attention.float()(random(1, 9, DIM, dtype=torch.float32))
    assert torch.equal(plain.cos, under.cos) and torch.equal(plain.sin, under.sin)
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


class Model(nn.Module):
    """What trainers cast, move and save: a layer whose rope is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.rope = Rope(128)
        self.positions = Sinusoidal(DIM)
        self.layer = MultiHeadAttention(256, 2, scheme=Scheme(rotary=self.rope))


def test_b19_casting_the_model_to_bf16_rounds_no_frequency() -> None:
    model = Model().to(torch.bfloat16)
    made = model.rope.frequencies().inv_freq
    exact = torch.tensor(oracles.frequencies(128, 1e4), dtype=torch.float64)
    rounded = exact.bfloat16().double()
    for length, off in ((512, 0.625), (2048, 2.5), (4096, 5.0)):  # radians, as reported
        assert ((rounded - exact).abs() * length).max().item() == pytest.approx(off, rel=0.01)
        assert ((made - exact).abs() * length).max() < 1e-9


def test_b20_a_default_dtype_of_bf16_reaches_no_position_and_no_table() -> None:
    plain = ROPE.table(sequence(4096))
    wave = Sinusoidal(8).encode(sequence(4096))
    torch.set_default_dtype(torch.bfloat16)
    assert sequence(4096).dtype == torch.int64
    assert torch.equal(ROPE.table(sequence(4096)).cos, plain.cos)
    assert torch.equal(Sinusoidal(8).encode(sequence(4096)), wave)
    for method in (
        NTK(4.0),
        Yarn(4.0, 64),
        Llama3(4.0, 64),
        LongRope((1.0,) * 4, (2.0,) * 4, 4, 64),
    ):
        made = Rope(8, scaling=method).frequencies().inv_freq
        torch.set_default_dtype(torch.float32)
        assert torch.equal(Rope(8, scaling=method).frequencies().inv_freq, made)
        torch.set_default_dtype(torch.bfloat16)


class RoundedConstructors(TorchFunctionMode):
    """zero.Init of a trainer: every floating tensor that is made comes out in bfloat16."""

    MADE = ("arange", "tensor", "empty", "zeros", "ones", "full", "linspace")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = func.__name__ in self.MADE and out.is_floating_point()
        return out.to(torch.bfloat16) if made else out


@pytest.mark.parametrize("name", ["rope", "xpos", "t5"])
def test_b20_a_context_that_rounds_new_tensors_reaches_no_position(name: str) -> None:
    at = sequence(2049)
    scheme = build(name)

    def values() -> Tensor:
        if scheme.rotary is not None:
            return scheme.rotary.tables(at, at).k.sin
        assert scheme.bias is not None
        return scheme.bias.per_distance(at)

    plain = values()
    with RoundedConstructors():
        assert torch.arange(3.0).dtype == torch.bfloat16
        assert torch.arange(300.0)[257] == 256  # what the report saw
        assert sequence(2049).dtype == torch.int64
        assert torch.equal(values(), plain)


def test_b20_what_is_made_under_such_a_context_is_right_after_it() -> None:
    with RoundedConstructors():
        made = Alibi(12), Sinusoidal(8), Rope(8, scaling=Yarn(4.0, 64))
    assert made[0].slopes().tolist() == pytest.approx(oracles.alibi_slopes(12), rel=1e-15)
    assert made[1:] == (Sinusoidal(8), Rope(8, scaling=Yarn(4.0, 64)))
    assert torch.equal(
        made[2].table(sequence(9)).sin, Rope(8, scaling=Yarn(4.0, 64)).table(sequence(9)).sin
    )


def test_b23_512_token_ids_stay_512_positions() -> None:
    assert torch.arange(512).bfloat16().unique().numel() == 385
    with pytest.raises(ValueError, match=r"integers \(int64\), got dtype torch.bfloat16"):
        ROPE.table(torch.arange(512).bfloat16())
    cos = Rope(2, base=1e4).table(sequence(512)).cos.flatten()
    assert cos.unique().numel() == 512


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_b25_rotation_keeps_the_dtype_of_queries_and_keys(dtype: torch.dtype) -> None:
    q, k = random(1, 2, 8, 64, dtype=dtype), random(1, 1, 8, 64, dtype=dtype)
    at = sequence(8)
    tables = Rope(64).tables(at, at)
    for impl, _ in every_rotation(q, tables.q):
        out = rotate_qk(q, k, tables, impl=impl)
        assert [x.dtype for x in out] == [dtype, dtype], impl
        assert [x.shape for x in out] == [q.shape, k.shape], impl


def test_b25_xpos_keeps_the_dtype_too() -> None:
    q, at = random(1, 2, 8, 64, dtype=torch.bfloat16), sequence(8)
    assert [x.dtype for x in rotate_qk(q, q.clone(), XPos(Rope(64)).tables(at, at))] == [
        q.dtype
    ] * 2


def test_b27_casting_tensors_behind_the_back_of_modules_rounds_no_frequency() -> None:
    """ZeRO casts parameters and buffers one by one, and calls no `.to()` that could be overridden."""
    model = Model()
    before = model.rope.table(sequence(4096))
    for held in (*model.parameters(), *model.buffers()):
        held.data = held.data.bfloat16()
    after = model.rope.table(sequence(4096))
    assert torch.equal(after.cos, before.cos) and torch.equal(after.sin, before.sin)
    out = model.layer(random(1, 9, 256, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def test_b29_alibi_at_1023_is_exact_and_not_a_product_in_bf16() -> None:
    slope = 2.0**-0.5
    bias = Alibi(16).dense(torch.tensor([1024]), torch.tensor([0, 1]))
    assert bias[0, 0, 0].tolist() == pytest.approx([-1024 * slope, -1023 * slope])
    assert 1023 * slope == pytest.approx(723.370, abs=1e-3)
    assert 1024 * slope == pytest.approx(724.077, abs=1e-3)
    rounded = torch.tensor([1023, 1024]).bfloat16() * torch.tensor(slope).bfloat16()
    assert rounded.tolist() == [724, 724]  # what the reference made


@pytest.mark.parametrize("symmetric", [False, True])
def test_b29_learned_slopes_in_a_bf16_model_still_meet_exact_distances(symmetric: bool) -> None:
    bias = Alibi(2, symmetric=symmetric, learned=True).bfloat16()
    slope = bias.slopes()[0].double()
    made = bias.dense(torch.tensor([1023, 1024]), torch.tensor([0]), dtype=torch.float64)
    assert_roundings(made[0, 0, :, 0].float(), -slope * torch.tensor([1023, 1024]), 1)


# --- BUFFER --------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", ["b30", "b31", "b33"])
def test_b30_b31_b33_a_model_made_on_meta_needs_no_table_refilled(report: str) -> None:
    torch.manual_seed(0)
    real = Model()
    with torch.device("meta"):
        model = Model()
    if report == "b33":
        model.load_state_dict(real.state_dict(), assign=True)
    else:
        model.to_empty(device="cpu").load_state_dict(real.state_dict())
    assert model.rope.frequencies().inv_freq[0] == 1.0
    assert (model.rope.table(sequence(9)).cos.abs() <= 1).all()
    x = random(1, 9, 256, dtype=torch.float32)
    assert torch.equal(model.layer(x), real.layer(x))


@pytest.mark.parametrize("name", NAMES)
def test_b36_nothing_is_a_buffer(name: str) -> None:
    scheme = build(name)
    model = MultiHeadAttention(DIM, HEADS, scheme=scheme, mask=mask_of(name))
    keys = list(model.state_dict())
    for length in (17, 23) if ENCODINGS[name].positions is None else (24,):  # two ranks
        positions = positions_of(name, length)
        num_tokens = positions.shape[0]  # a class token comes before the cells
        model(random(1, num_tokens, DIM, dtype=torch.float32), positions)
        assert not list(model.buffers())
        assert list(model.state_dict()) == keys
    assert not [b for part in scheme.modules().values() for b in part.buffers()]


def test_b38_a_checkpoint_holds_no_table_of_a_value() -> None:
    keys = Model().state_dict().keys()
    assert set(keys) == {f"layer.{name}.weight" for name in ("q", "k", "v", "out")}
    bias = SwinBias(2, window=(3, 4))
    assert set(bias.state_dict()) == {"weight"}
    assert set(T5Bias(2).state_dict()) == {"weight"}
    assert not Alibi(2).state_dict()


def test_b38_tables_in_an_older_checkpoint_are_compared_and_left_out() -> None:
    real, model = Model(), Model()
    scheme = Scheme(rotary=real.rope)
    stored = real.rope.frequencies().inv_freq.float()
    state = {
        **real.state_dict(),
        "embeddings.position_ids": torch.arange(512)[None],
        "layer.rotary_emb.inv_freq": stored,
        "rope.freqs": stored.clone(),
    }
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(state)
    model.load_state_dict(without_tables(state, scheme))
    assert torch.equal(model.layer.q.weight, real.layer.q.weight)
    with pytest.raises(CheckpointError, match=r"position_ids.* is not 0, 1, 2"):
        without_tables({"position_ids": torch.arange(2, 9)[None]}, scheme)
    with pytest.raises(CheckpointError, match="the scheme rotates nothing"):
        without_tables({"inv_freq": stored}, Scheme())


def test_b39_a_stored_frequency_that_is_not_the_formula_is_reported() -> None:
    """ESM was trained under what its checkpoint holds: the difference is told, the choice is left."""
    rope = Rope(128)
    exact = torch.tensor(oracles.frequencies(128, 1e4), dtype=torch.float64)
    without_tables({"inv_freq": exact.bfloat16()}, Scheme(rotary=rope))  # at its own precision
    back = Scheme(rotary=replace(rope, direction=-1))  # nanochat's file holds the same numbers
    assert not without_tables({"inv_freq": exact}, back)
    for stored, told in (
        (exact.bfloat16().float(), r"up to 0\.003\d* of their size, as if rounded to bfloat16"),
        (torch.tensor(oracles.frequencies(128, 5e5)).float(), r"up to 0\.979 of their size$"),
        (exact.float()[:32], r"holds \[32\] frequencies, the scheme \[64\]"),
        (exact.float() * math.nan, "up to nan"),
    ):
        with pytest.raises(CheckpointError, match=f"'a.inv_freq' .*{told}"):
            without_tables({"a.inv_freq": stored}, Scheme(rotary=rope))


def test_b41_inference_mode_leaves_nothing_that_breaks_training() -> None:
    model = layer("rope").attention.float()
    x = random(1, 5, DIM, dtype=torch.float32)
    with torch.inference_mode():
        model(x)
    model(x.requires_grad_()).sum().backward()
    assert x.grad is not None
    q, at = heads(5, dtype=torch.float32)[0], sequence(5)
    impls = [impl for impl, _ in every_rotation(q, ROPE.table(at))]
    for number, impl in enumerate(impls):
        rope = Rope(HEAD_DIM, base=100.0 + number)  # each first seen in inference mode
        with torch.inference_mode():
            rotate(q, rope.table(at), impl=impl)  # pyright: ignore[reportArgumentType]
        leaf = q.clone().requires_grad_()
        out = rotate(leaf, rope.table(at), impl=impl)  # pyright: ignore[reportArgumentType]
        out.sum().backward()
        assert leaf.grad is not None, impl


# --- STALE ---------------------------------------------------------------------------------------


def test_b43_a_short_sequence_after_a_long_one_is_what_it_was() -> None:
    rope = Rope(128, scaling=DynamicNTK(2.0, 2048))
    short = [rope.at_length(n) for n in (100, 8192, 100)]
    bases = [oracles.dynamic_ntk_base(128, 1e4, 2.0, 2048, n) for n in (100, 8192, 100)]
    assert bases == [1e4, pytest.approx(72195.86, abs=0.01), 1e4]
    for made, base in zip(short, bases, strict=True):
        expected = oracles.frequencies(128, base)
        assert made.frequencies().inv_freq.tolist() == pytest.approx(expected, rel=1e-13)
    assert short[0] == short[2] == rope
    model, x = layer("rope"), random(1, 24, DIM)
    first = model(x[:, :5])
    model(x)
    assert torch.equal(model(x[:, :5]), first)


def test_b44_keys_of_an_earlier_base_are_never_scored_by_queries_of_a_later_one() -> None:
    rope = Rope(HEAD_DIM, scaling=DynamicNTK(2.0, 2048))
    stretched = Rope(64, scaling=DynamicNTK(2.0, 2048)).at_length(2049)
    assert oracles.dynamic_ntk_base(128, 1e4, 2.0, 2048, 2049) == pytest.approx(10009.92, abs=0.01)
    assert stretched != Rope(64, scaling=DynamicNTK(2.0, 2048))
    short, longer = (
        MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=r))
        for r in (rope, rope.at_length(2049))
    )
    cache, x = KVCache(), random(1, 2, DIM, dtype=torch.float32)
    short(x, cache=cache)
    with pytest.raises(ValueError, match="rerotate"):
        longer(x, cache=cache)


def test_b47_crossing_the_trained_length_moves_the_whole_cache() -> None:
    """4,090 tokens and 20 more, trained at 4,096: short keys never meet long queries."""
    short, long = (1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 8.0, 30.0)
    rope = Rope(HEAD_DIM, scaling=LongRope(short, long, 32.0, 4096))
    longer = rope.at_length(4110)
    assert longer != rope and longer.at_length(4096) == rope
    expected = oracles.longrope_frequencies(HEAD_DIM, 1e4, long)
    assert longer.frequencies().inv_freq.tolist() == pytest.approx(expected, rel=1e-13)
    torch.manual_seed(0)
    first = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=rope))
    then = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=longer))
    then.load_state_dict(first.state_dict())
    x, cache = random(1, 4110, DIM, dtype=torch.float32), KVCache()
    with torch.no_grad():
        first(x[:, :4090], cache=cache)
        with pytest.raises(ValueError, match="rerotate"):
            then(x[:, 4090:], cache=cache)
        assert cache.keys is not None and cache.positions is not None
        cache.keys = rerotate(cache.keys, cache.positions, rope, longer)
        cache.encoding = longer
        assert_roundings(then(x[:, 4090:], cache=cache), then(x)[:, 4090:], 64)


def test_b49_a_short_prompt_takes_the_short_factors_whatever_was_allocated() -> None:
    short, long = (1.0,) * 4, (64.8,) * 4
    rope = Rope(HEAD_DIM, scaling=LongRope(short, long, 2.0, 4096))
    plain = oracles.frequencies(HEAD_DIM, 1e4)
    assert rope.at_length(8192).at_length(100).frequencies().inv_freq.tolist() == pytest.approx(
        plain
    )
    assert rope.at_length(4096).frequencies().inv_freq.tolist() == pytest.approx(plain)
    assert rope.at_length(4097).frequencies().inv_freq[0] == pytest.approx(1 / 64.8)


def test_b50_another_offset_gives_another_result() -> None:
    x = random(1, 1, 8, HEAD_DIM, dtype=torch.float32)
    first, second = (rotate(x, ROPE.table(sequence(8, start=n))) for n in (0, 5))
    assert (first != second).any(-1).all()
    assert torch.equal(second, rotate(x, Rope(HEAD_DIM).table(torch.arange(5, 13))))


def test_b52_reused_memory_of_positions_gives_new_tables() -> None:
    at = sequence(4)
    first = ROPE.table(at).cos.clone()
    at += 7
    assert torch.equal(ROPE.table(at).cos, Rope(HEAD_DIM).table(sequence(4, start=7)).cos)
    assert not torch.equal(ROPE.table(at).cos, first)


# --- FORMULA -------------------------------------------------------------------------------------


def test_b54_yarn_keeps_a_ramp_that_is_not_truncated() -> None:
    rope = Rope(64, base=150_000.0, scaling=Yarn(32.0, 4096, truncate=False))
    ends = oracles.yarn_ramp_ends(64, 150_000.0, 4096, 32.0, 1.0, False)
    assert ends == pytest.approx((8.092779115512, 17.398024501589), rel=1e-12)
    made = rope.frequencies()
    assert made.attention_factor == pytest.approx(1.3466, abs=5e-5)
    expected = oracles.yarn_frequencies(64, 150_000.0, 32.0, 4096, truncate=False)
    assert made.inv_freq.tolist() == pytest.approx(expected, rel=1e-12)
    for pair, value in ((8, 0.0508133), (12, 0.00679496), (17, 0.000129319)):
        assert made.inv_freq[pair].item() == pytest.approx(value, rel=1e-5)
    rounded = Rope(64, base=150_000.0, scaling=Yarn(32.0, 4096)).frequencies()
    assert not torch.equal(rounded.inv_freq, made.inv_freq)


def test_b56_a_given_attention_factor_is_the_final_one() -> None:
    given = Rope(64, scaling=Yarn(64.0, 4096, attention_factor=1.0)).frequencies()
    assert given.attention_factor == 1.0
    left_out = Rope(64, scaling=Yarn(64.0, 4096)).frequencies()
    assert left_out.attention_factor == pytest.approx(1.4158883)
    with pytest.raises(TypeError, match="unexpected keyword"):
        Yarn(64.0, 4096, attn_factor=1.0)  # pyright: ignore[reportCallIssue]


def test_b57_an_attention_factor_is_not_multiplied_or_logged_again() -> None:
    made = Rope(64, scaling=Yarn(128.0, 4096, attention_factor=1.4852)).frequencies()
    assert made.attention_factor == 1.4852
    assert oracles.yarn_amplitude(128.0) == pytest.approx(1.4852, abs=5e-5)


def test_b59_the_softmax_scale_comes_from_mscale_all_dim() -> None:
    for all_dim, value in ((0.707, 1.5896), (1.0, 1.8739)):
        method = Yarn(40.0, 4096, mscale=1.0, mscale_all_dim=all_dim, scale_softmax=True)
        made = Rope(64, scaling=method).frequencies()
        assert made.softmax_scale == pytest.approx(value, abs=5e-5)
        assert oracles.yarn_amplitude(40.0, all_dim) ** 2 == pytest.approx(value, abs=5e-5)


def test_b62_llama3_falls_strictly_from_one_band_to_the_next() -> None:
    made = Rope(128, base=500_000.0, scaling=Llama3(8.0, 8192)).frequencies().inv_freq
    assert made[29].item() == pytest.approx(2.166571e-3, rel=1e-6)
    plain = torch.tensor(oracles.frequencies(128, 5e5), dtype=torch.float64)
    assert (made.diff() < 0).all()
    assert ((made <= plain * (1 + 1e-12)) & (made >= plain / 8 * (1 - 1e-12))).all()
    for turns, kept in ((4.0, 1.0), (1.0, 1 / 8)):  # continuous where the bands meet
        for nudge in (1 - 1e-9, 1 + 1e-9):
            edge = torch.tensor([8192 / (turns * nudge * 2 * math.pi)], dtype=torch.float64)
            spectrum = Spectrum(edge, 500_000.0, 128)
            ratio = Llama3(8.0, 8192)(spectrum).inv_freq / spectrum.inv_freq
            assert ratio.item() == pytest.approx(kept, rel=1e-6)


def test_b63_dynamic_ntk_below_the_trained_length_keeps_the_base() -> None:
    rope = Rope(64, base=1000.0, scaling=DynamicNTK(2.0, 2048)).at_length(512)
    expected = oracles.frequencies(64, 1000.0)
    assert rope.frequencies().inv_freq.tolist() == pytest.approx(expected, rel=1e-13)


def test_b66_longrope_amplitude_is_the_published_one() -> None:
    ones = (1.0,) * 4
    made = Rope(8, scaling=LongRope(ones, ones, 32.0, 4096)).frequencies()
    assert made.attention_factor == pytest.approx(1.1902381)
    unscaled = Rope(8, scaling=LongRope(ones, ones, 1.0, 4096)).frequencies()
    assert unscaled.attention_factor == 1.0
    own = LongRope(ones, ones, 32.0, 4096, short_attention_factor=1.5, long_attention_factor=1.7)
    assert Rope(8, scaling=own).frequencies().attention_factor == 1.5
    assert Rope(8, scaling=own).at_length(5000).frequencies().attention_factor == 1.7


def test_b70_a_factor_stretches_position_8_at_factor_4_turns_like_2() -> None:
    scaled = Rope(8, scaling=Linear(4.0)).table(torch.tensor([8]))
    assert torch.equal(scaled.cos, Rope(8).table(torch.tensor([2])).cos)
    with pytest.raises(ValueError, match=r"factor is new length / original length.*0\.25"):
        Linear(0.25)


def test_b89_a_base_of_zero_is_refused() -> None:
    for base in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="base must be a positive finite number"):
            Rope(8, base=base)


# --- EXTENT --------------------------------------------------------------------------------------


def test_b90_channels_past_the_rotary_width_are_untouched() -> None:
    x = random(1, 2, 5, 16, dtype=torch.float32)
    for impl, out in every_rotation(x, Rope(16, rotary_dim=4).table(sequence(5, start=1))):
        assert torch.equal(out[..., 4:], x[..., 4:]), impl
        assert (out[..., :4] != x[..., :4]).all(), impl
    at = sequence(5, start=1)
    several = MRope(Rope(16, rotary_dim=4), (1, 1)).table(on_axes(at, 2))  # the path of the report
    amplified = XPos(Rope(16, rotary_dim=4)).table(at, side="key")
    for table in (several, amplified):
        out = rotate(x, table)
        assert torch.equal(out[..., 4:], x[..., 4:]) and (out[..., :4] != x[..., :4]).all()


def test_b92_frequencies_are_those_of_the_rotary_width() -> None:
    made = Rope(8, rotary_dim=4).frequencies().inv_freq
    assert made.tolist() == pytest.approx([1.0, 0.01])


def test_b93_proportional_rotation_pairs_channels_of_the_whole_head() -> None:
    rope = Rope(8, scaling=Proportional(0.25))
    assert rope.frequencies().inv_freq.tolist() == [1.0, 0.0, 0.0, 0.0]
    out = turned([1.0, 0, 0, 0, 0, 0, 0, 0], rope.table(torch.tensor([1])))
    assert out == pytest.approx([math.cos(1), 0, 0, 0, math.sin(1), 0, 0, 0], abs=1e-7)


def test_b100_an_odd_width_has_one_more_sine_than_cosines() -> None:
    made = Sinusoidal(5).encode(torch.tensor([1])).flatten().tolist()
    assert made == pytest.approx([0.841471, 0.540302, 0.025116, 0.999685, 0.000631], abs=1e-6)


@pytest.mark.parametrize("rotary_dim", [3, 0, 6, -2])
def test_b104_a_rotary_width_that_is_odd_or_past_the_head_is_refused(rotary_dim: int) -> None:
    with pytest.raises(ValueError, match=f"even and between 2 and head_dim = 4.*{rotary_dim}"):
        Rope(4, rotary_dim=rotary_dim)


# --- POSITION ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[[0, 1, 2, 0, 1]], [[7, 8, 9]]])
def test_b106_phases_follow_the_values_of_positions(ids: list[list[int]]) -> None:
    at = torch.tensor(ids)
    table = Rope(4).table(at)
    expected = [[math.cos(p * s) for s in oracles.frequencies(4, 1e4)] for p in ids[0]]
    assert_roundings(table.cos[0], torch.tensor(expected, dtype=torch.float64), 2)
    assert not torch.equal(table.cos, Rope(4).table(sequence(at.shape[1])).cos)


def test_b108_left_padding_counts_real_tokens_only() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    assert from_padding_mask(mask).tolist() == [[-1, -1, 0, 1, 2]]
    table = Learned(8, 4)
    x = random(1, 5, 4, dtype=torch.float32)
    padded = table(x, from_padding_mask(mask, padding=0))[:, 2:]
    assert torch.equal(padded, table(x[:, 2:]))


def test_b109_padded_rows_go_on_from_their_own_last_position() -> None:
    lengths, cache = [3, 5], KVCache()
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    model = layer("rope")
    model(random(2, 5, DIM), from_padding_mask(real), segments=real, cache=cache)
    assert cache.next_positions(1).flatten().tolist() == lengths
    model(random(2, 1, DIM), segments=torch.ones(2, 1, dtype=torch.int64), cache=cache)
    assert cache.next_positions(1).flatten().tolist() == [4, 6]


def test_b111_three_axes_are_one_row_and_not_three_packed_ones() -> None:
    """256 tokens at text positions on three axes: causal over all, [0, 256] and no shorter run."""
    rope = MRope(Rope(HEAD_DIM), (1, 1, 2))
    ids = sequence(256)
    with pytest.raises(ValueError, match=r"shape \[T, 3\] or \[B, T, 3\] .*got \[3, 1, 256\]"):
        rope.table(ids.expand(3, 1, 256))
    x = random(1, 256, DIM)
    torch.manual_seed(0)
    several = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=rope)).double()
    single = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=rope.rope)).double()
    single.load_state_dict(several.state_dict())
    assert_roundings(several(x, on_axes(ids, 3)[None]), single(x), 16)


def test_b113_roberta_counts_from_the_row_after_the_padding_row() -> None:
    ids = torch.tensor([[0, 5, 6, 1, 1]])
    table = Learned(8, 4, padding_idx=1)
    at = from_padding_mask(ids != 1)
    assert (at + table.offset).tolist() == [[2, 3, 4, 1, 1]]
    assert torch.equal(table.encode(at)[0], table.weight[[2, 3, 4, 1, 1]])
    assert (table.weight[1] == 0).all()
    table.encode(at).sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad[:, 0].tolist() == [
        0,
        0,
        1,
        1,
        1,
        0,
        0,
        0,
        0,
        0,
    ]  # padding learns nothing


def test_b115_a_decoded_query_sits_after_what_the_cache_holds() -> None:
    """Five virtual tokens of a prompt, then one real one: position 5, not 0."""
    cache, model = KVCache(), layer("rope")
    x = random(1, 6, DIM)
    model(x[:, :5], cache=cache)
    out = model(x[:, 5:], cache=cache)
    assert_roundings(out, model(x)[:, 5:], 64)


# --- OFFSET --------------------------------------------------------------------------------------


def test_b117_every_layer_of_a_stack_decodes_at_the_same_position() -> None:
    stack = [layer("rope") for _ in range(3)]
    caches = [KVCache() for _ in stack]
    x = random(1, 6, DIM)
    whole = x
    for part in stack:
        whole = part(whole)
    for t in range(6):
        y = x[:, t : t + 1]
        for part, cache in zip(stack, caches, strict=True):
            y = part(y, cache=cache)
            assert cache.positions is not None
            assert cache.positions.flatten().tolist() == list(range(t + 1))
        assert_roundings(y, whole[:, t : t + 1], 256)


@pytest.mark.parametrize(("prompt", "expected"), [(9, [9, 10, 11]), (6, [6, 7, 8])])
def test_b118_decoding_goes_on_where_the_prompt_ended(prompt: int, expected: list[int]) -> None:
    cache, model = KVCache(), layer("rope")
    model(random(1, prompt, DIM), cache=cache)
    for _ in range(3):
        model(random(1, 1, DIM), cache=cache)
    assert cache.positions is not None
    assert cache.positions[0, prompt:].tolist() == expected


def test_b120_a_cached_query_is_as_far_from_its_keys_as_it_is() -> None:
    """Third token: distances 2, 1, 0, for a bias and for relative vectors."""
    q, k, _ = heads(3, num_queries=1, batch=1)
    eye = torch.eye(3, dtype=torch.float64).expand(1, HEADS, 3, 3)
    weights = attention(torch.zeros_like(q), k, eye, scheme=Scheme(bias=Alibi(HEADS)))
    slope = oracles.alibi_slopes(HEADS)[0]
    expected = torch.tensor([-2 * slope, -slope, 0.0]).double().softmax(-1)
    assert_roundings(weights[0, 0, 0], expected, 4)
    shaw = Shaw(HEAD_DIM, max_distance=4).double()
    logits = shaw.key_logits(q, k, Block(torch.tensor([2]), sequence(3)))
    assert_roundings(logits[0, 0, 0], shaw.keys[[2, 3, 4]] @ q[0, 0, 0], 4)


def test_b122_a_bias_knows_keys_from_memory() -> None:
    """Two queries after three keys of memory: row 0 has distances 3, 2, 1, 0 and a future key."""
    bias = Alibi(1, symmetric=True).dense(torch.tensor([3, 4]), sequence(5))[0, 0]
    slope = oracles.alibi_slopes(1)[0]
    assert (bias / -slope).tolist() == [[3, 2, 1, 0, 1], [4, 3, 2, 1, 0]]
    q, k, v = heads(5, num_queries=2)
    for name in ("alibi", "t5", "shaw"):
        scheme = build(name)
        out = attention(q, k, v, scheme=scheme)
        at: dict[str, Any] = {"q_pos": torch.tensor([3, 4]), "k_pos": sequence(5)}
        exact = attention(q, k, v, scheme=scheme, impl="reference", **at)
        assert_roundings(out, exact, 64)


def test_b127_moving_keys_touches_the_rotary_channels_only() -> None:
    rope = Rope(80, rotary_dim=32)
    k, at = random(1, 2, 5, 80, dtype=torch.float32), sequence(5)
    new = Rope(80, rotary_dim=32, scaling=Linear(2.0))
    for moved in (rerotate(k, at, rope, new), rotate(k, rope.table(torch.full((5,), -3)))):
        assert torch.equal(moved[..., 32:], k[..., 32:])
        assert (moved[..., 1:, :32] != k[..., 1:, :32]).any()
    shifted = rotate(rotate(k, rope.table(at + 3)), rope.table(torch.full((5,), -3)))
    assert_roundings(shifted, rotate(k.double(), rope.table(at)), 16)


def test_b128_one_shift_by_a_thousand_costs_two_roundings_where_a_thousand_shifts_drift() -> None:
    rope, dtype = Rope(64), torch.bfloat16
    k = random(1, 1, 1, 64)
    cached = rotate(k, rope.table(torch.tensor([5000]), dtype=torch.float64)).to(dtype)
    exact = rotate(k, rope.table(torch.tensor([4000]), dtype=torch.float64))
    once = rotate(cached, rope.table(torch.tensor([-1000])))
    step, drifting = rope.table(torch.tensor([-1])), cached
    for _ in range(1000):
        drifting = rotate(drifting, step)
    relative = [((x.double() - exact).norm() / exact.norm()).item() for x in (once, drifting)]
    assert relative[0] < eps(dtype) < 0.3 < relative[1]


# --- LENGTH --------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["encode", "default positions", "given positions"])
def test_b131_a_position_past_the_table_is_named_before_anything_is_read(call: str) -> None:
    table = Learned(16, DIM)
    table.weight.data = table.weight.data[:0]  # reading it would be an IndexError
    calls: dict[str, Any] = {
        "encode": lambda: table.encode(torch.tensor([3, 16, 40])),
        "default positions": lambda: table(random(1, 17, DIM)),
        "given positions": lambda: table(random(2, 2, DIM), torch.tensor([[0, 1], [16, 2]])),
    }
    with pytest.raises(ValueError, match=r"size 16 must lie in \[0, 15\], got position 16"):
        calls[call]()


def test_b133_a_scaled_rope_has_no_last_position() -> None:
    rope = Rope(8, scaling=Linear(4.0))
    at = [2047, 2048, 8191, 1_000_000]
    expected = [[math.cos(p * s / 4) for s in oracles.frequencies(8, 1e4)] for p in at]
    made = rope.table(torch.tensor(at)).cos[0]
    assert_roundings(made, torch.tensor(expected, dtype=torch.float64), 2)


@pytest.mark.parametrize("position", [-1, -5000])
def test_b135_a_position_before_the_table_is_refused_and_reads_no_row_from_the_end(
    position: int,
) -> None:
    with pytest.raises(ValueError, match=r"\[0, 4999\], got position 5000"):
        Learned(5000, 2).encode(sequence(5001))
    with pytest.raises(ValueError, match=rf"\[0, 4999\], got position {position}"):
        Learned(5000, 2).encode(torch.tensor([position]))
    with pytest.raises(ValueError, match=r"\[-1, 4999\], got position -2"):
        Learned(5000, 2, offset=2).encode(torch.tensor([-2]))
    cells = torch.tensor([[0, 0], [3, 0]])
    with pytest.raises(ValueError, match=r"row offsets in a window of 3 × 4 .*\[-2, 2\]"):
        SwinBias(1, window=(3, 4)).dense(cells, cells)
    with pytest.raises(ValueError, match=r"column offsets in a window of 3 × 4 .*\[-3, 3\]"):
        SwinBias(1, window=(3, 4)).dense(cells.flip(1), cells.flip(1) + 1)


def test_b137_sinusoids_of_negative_positions_are_odd_and_cosines_even() -> None:
    made = Sinusoidal(6).encode(torch.arange(-3, 4))
    assert torch.equal(made[:, 0::2], -made.flip(0)[:, 0::2])
    assert torch.equal(made[:, 1::2], made.flip(0)[:, 1::2])


def test_b137_a_table_of_distances_covers_every_length() -> None:
    """Relative ids were a matrix of 512 × 512; clipped distances have no last one."""
    far = torch.tensor([0, 511, 512, 100_000])
    shaw = Shaw(HEAD_DIM, max_distance=16).double()
    q, k = random(1, HEADS, 1, HEAD_DIM), random(1, HEADS, 4, HEAD_DIM)
    logits = shaw.key_logits(q, k, Block(torch.tensor([512]), far))
    picked = shaw.keys[[oracles.shaw_row(int(p) - 512, 16) for p in far]]
    assert_roundings(logits[0, 0, 0], picked @ q[0, 0, 0], 4)


# --- BIAS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (
            12,
            [2.0**-h for h in range(1, 9)]
            + [0.7071067811865476, 0.3535533905932738, 0.1767766952966369, 0.08838834764831845],
        ),
    ],
)
def test_b139_slopes_of_head_counts_that_are_no_power_of_two(
    num_heads: int, expected: list[float]
) -> None:
    assert Alibi(num_heads).slopes().tolist() == pytest.approx(expected, rel=1e-15)


def test_b140_the_published_order_is_not_repaired() -> None:
    slopes = Alibi(40).slopes()
    assert slopes[32].item() == pytest.approx(0.917004, abs=1e-6)
    assert slopes[32] > slopes[0]
    assert slopes.tolist() == pytest.approx(oracles.alibi_slopes(40), rel=1e-15)


def test_b144_row_constants_cancel_and_the_diagonal_is_zero() -> None:
    bias = Alibi(1).dense(sequence(5), sequence(5), dtype=torch.float64)[0, 0]
    assert (bias.diagonal() == 0).all()
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    by_key = (oracles.alibi_slopes(1)[0] * torch.arange(-4.0, 1)).double().expand(5, 5)
    forms = [x.masked_fill(hidden, -math.inf).softmax(-1) for x in (bias, by_key)]
    assert_roundings(forms[0], forms[1], 4)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_b146_the_bias_does_not_depend_on_a_mask(impl: Any) -> None:
    q, k, v = heads(5, num_queries=1)
    scheme = Scheme(bias=Alibi(HEADS))
    causal_step = attention(q, k, v, scheme=scheme, impl=impl)
    no_mask = attention(q, k, v, scheme=scheme, mask=None, impl=impl)
    assert_roundings(no_mask, causal_step, 16)
    assert (no_mask - attention(q, k, v, mask=None)).abs().max() > 0.01


def test_b148_the_last_t5_bucket_holds_all_beyond() -> None:
    relative = [-200, -128, -20, -8, 0, 1, 8, 128]
    expected = {True: [15, 15, 10, 8, 0, 17, 24, 31], False: [31, 31, 17, 8, 0, 0, 0, 0]}
    for bidirectional, buckets in expected.items():
        bias = T5Bias(1, bidirectional=bidirectional)
        assert bias.bucket(torch.tensor(relative)).tolist() == buckets
        assert [oracles.t5_bucket(r, bidirectional=bidirectional) for r in relative] == buckets


def test_b149_cross_attention_takes_no_bias_of_self_attention() -> None:
    """T5's decoder has a bias between its own tokens, none between it and the encoder."""
    q, k, v = heads(5, num_queries=3, batch=1)
    out = attention(q, k, v, scale=1.0, mask=None)
    for h in range(HEADS):
        logits = [[oracles.dot(a, b) for b in k[0, h].tolist()] for a in q[0, h].tolist()]
        values = v[0, h].tolist()
        exact = oracles.softmax_attention(logits, lambda i, j: True, lambda i, j: values[j])  # noqa: B023
        assert_roundings(out[0, h], torch.tensor(exact, dtype=torch.float64), 16)
    weights = torch.softmax(q @ k.mT, -1)
    with pytest.raises(TypeError, match="bias= takes a LogitBias, got Tensor"):
        Scheme(bias=weights)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="5 queries but 3 keys: give q_pos and k_pos"):
        attention(k, q, q, scheme=Scheme(bias=T5Bias(HEADS)), mask=None)


@pytest.mark.parametrize("max_distance", [8, 16, 0, -1])
def test_b151_buckets_that_do_not_fit_the_distance_are_refused(max_distance: int) -> None:
    with pytest.raises(ValueError, match=f"max_distance must exceed the 16 .*got {max_distance}"):
        T5Bias(1, num_buckets=32, max_distance=max_distance, bidirectional=False)
    for num_buckets in (0, 2, 5):
        with pytest.raises(ValueError, match=f"num_buckets .*got {num_buckets}"):
            T5Bias(1, num_buckets=num_buckets)


# --- BACKEND -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_b172_other_lengths_are_not_compiled_again(name: str) -> None:
    scheme, counter = build(name), CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend=counter, fullgraph=True)
    with torch.no_grad():
        for length in (16, 17, 18):
            q, k, v = heads(length)
            out = compiled(q, k, v, scheme=scheme)
            assert_roundings(out, attention(q, k, v, scheme=scheme), 16)
    assert counter.frame_count <= 2


@pytest.mark.slow
def test_b154_a_graph_compiled_at_one_length_is_right_at_another() -> None:
    """No position or bucket is baked into the graph."""
    torch._dynamo.reset()
    for name in ("t5", "rope"):
        scheme = build(name)
        compiled = torch.compile(attention, backend="eager", fullgraph=True, dynamic=True)
        with torch.no_grad():
            for length in (8, 12):
                q, k, v = heads(length)
                out = compiled(q, k, v, scheme=scheme)
                assert_roundings(out, attention(q, k, v, scheme=scheme), 16)


def test_b174_keys_of_fewer_heads_and_other_strides_are_rotated_by_their_own() -> None:
    at = sequence(6)
    q = random(2, 6, 8, HEAD_DIM, dtype=torch.float32).transpose(1, 2)
    k = random(2, 6, 5, 2, HEAD_DIM, seed=1, dtype=torch.float32)[:, :, 3].transpose(1, 2)
    assert not q.is_contiguous() and not k.is_contiguous()
    tables = ROPE.tables(at, at)
    for impl, _ in every_rotation(k, tables.k):
        for made, x in zip(rotate_qk(q, k, tables, impl=impl), (q, k), strict=True):
            exact = rotate(x.double().contiguous(), ROPE.table(at, dtype=torch.float64))
            assert_roundings(made, exact, 4)


def test_b175_queries_are_unchanged_and_may_be_used_twice() -> None:
    q, k, _ = heads(5)
    before = q.clone(), k.clone()
    at = sequence(5)
    rotate_qk(q, k, ROPE.tables(at, at))
    assert torch.equal(q, before[0]) and torch.equal(k, before[1])
    q.requires_grad_()

    def scores(x: Tensor) -> Tensor:
        a, b = rotate_qk(x, k, ROPE.tables(at, at))
        return (a @ b.mT).square().sum() + (x @ k.mT).sum()

    (plain,) = torch.autograd.grad(scores(q), q)
    (again,) = torch.autograd.grad(checkpoint(scores, q, use_reentrant=False), q)
    assert torch.equal(plain, again)


def test_b175_in_place_rotation_refuses_what_it_would_corrupt() -> None:
    at = sequence(5)
    tables = ROPE.tables(at, at)
    q, k, _ = heads(5)
    expected = rotate_qk(q, k, tables)
    mine = q.clone(), k.clone()
    out = rotate_qk(*mine, tables, inplace=True)
    assert out[0] is mine[0] and out[1] is mine[1]
    assert torch.equal(mine[0], expected[0]) and torch.equal(mine[1], expected[1])
    with pytest.raises(ValueError, match="requires grad"):
        rotate_qk(q.clone().requires_grad_(), k, tables, inplace=True)
    with pytest.raises(ValueError, match="expanded view"):
        rotate_qk(q, k[:, :1].expand(-1, 4, -1, -1), tables, inplace=True)
    with torch.no_grad():
        rotate_qk(q.clone().requires_grad_(), k.clone(), tables, inplace=True)


def test_b130_prompts_on_both_sides_of_a_switch_of_paths_agree() -> None:
    """A prompt of 25 tokens is the one of 21 and four more, whichever path the length takes."""
    q, k, v = heads(1030, batch=1, dtype=torch.float32)
    for name in ("rope", "alibi", "t5", "shaw"):
        scheme = build(name)
        with torch.no_grad():
            whole = attention(q, k, v, scheme=scheme)
            for n in (21, 23, 24, 25, 511, 512, 513, 1024, 1025):
                part = attention(q[:, :, :n], k[:, :, :n], v[:, :, :n], scheme=scheme)
                assert_roundings(part, whole[:, :, :n].double(), 64)
    for n in (21, 25):
        at, x = sequence(n), q[:, :, :n]
        exact = rotate(x.double(), ROPE.table(at, dtype=torch.float64))
        for _, out in every_rotation(x, ROPE.table(at)):
            assert_roundings(out, exact, 4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_b167_every_third_pair_is_the_same_compiled(backend: str) -> None:
    """Rows at pairs 1, 4, 7 …, columns at 2, 5, 8 …, of (24, 20, 20): a strided write went wrong."""
    mrope = MRope(Rope(128, 1e6), (24, 20, 20), "interleaved")
    assert list(mrope.axis_of_pair) == [
        oracles_forms.mrope_axis(pair, (24, 20, 20), "interleaved") for pair in range(64)
    ]
    at = torch.tensor([[0, 0, 0], [3, 1, 4], [900, 17, 40]])
    torch._dynamo.reset()
    compiled = torch.compile(mrope.table, backend=backend, fullgraph=True)
    eager = mrope.table(at)
    made = compiled(at)
    assert torch.equal(made.cos, eager.cos) and torch.equal(made.sin, eager.sin)
    angles = [
        oracles_forms.mrope_angles(p, 128, 1e6, (24, 20, 20), "interleaved") for p in at.tolist()
    ]
    exact = torch.tensor([[math.cos(a) for a in row] for row in angles], dtype=torch.float64)
    assert_roundings(made.cos[0], exact, 1)


@pytest.mark.parametrize("name", [*BIASES, "rope", "shaw"])
@pytest.mark.parametrize("impl", get_args(AttentionImpl))
def test_b177_b179_a_gradient_arrives_on_the_cpu_or_the_refusal_says_why(
    name: str, impl: Any
) -> None:
    """Some kernels have no backward on the CPU, some none for the bias: never in silence."""
    scheme, at = build(name), positions_of(name, 24)
    learned = [p for part in scheme.modules().values() for p in part.parameters()]
    if name == "alibi":
        scheme = Scheme(bias=Alibi(HEADS, learned=True))
        learned = [*scheme.modules()["bias"].parameters()]
    q, k, v = (x.requires_grad_() for x in heads(24, dtype=torch.float32))
    run: dict[str, Any] = {"scheme": scheme, "mask": mask_of(name)}
    if ENCODINGS[name].positions is not None:
        run["k_pos"] = at
    wanted = [q, k, v, *learned]
    exact = torch.autograd.grad(attention(q, k, v, impl="reference", **run).square().sum(), wanted)
    try:
        out = attention(q, k, v, impl=impl, **run)
    except ValueError as refused:
        if impl in ("auto", "sdpa", "reference") or f"impl={impl!r}" not in str(refused):
            raise
        return
    made = torch.autograd.grad(out.square().sum(), wanted)
    size = max(float(x.abs().max()) for x in exact)  # softmax cancels some to zero
    for got, expected in zip(made, exact, strict=True):
        assert_roundings(got.to(q.dtype), expected.double(), 256, size=size)  # as exact as q is


class Exported(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.scheme = build(name)
        self.learned = nn.ModuleDict(self.scheme.modules())
        self.mask: Any = causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, scheme=self.scheme, mask=self.mask)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rope", "alibi", "t5"])
def test_b181_an_exported_graph_holds_no_length(name: str) -> None:
    """Exported at 1,024 tokens, run at 512: positions are made in the graph, not baked into it."""
    model = Exported(name)
    tokens = torch.export.Dim.AUTO
    shapes = tuple({2: tokens} for _ in range(3))
    exported = torch.export.export(
        model, heads(1024, batch=1, dtype=torch.float32), dynamic_shapes=shapes
    ).module()
    for length in (1024, 512):
        given = heads(length, batch=1, dtype=torch.float32, seed=3)
        assert_roundings(exported(*given), model(*given).double(), 64)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["alibi", "t5", "window"])
def test_b181_a_graph_serves_the_range_of_lengths_that_it_was_exported_for(
    name: str, strict: bool
) -> None:
    """Blocks of queries are for lengths that are known: here their number would bound the range."""
    model = Exported("rope" if name == "window" else name)
    model.mask = causal & window(5) if name == "window" else causal
    tokens = torch.export.Dim("tokens", min=2, max=1 << 17)
    shapes = tuple({2: tokens} for _ in range(3))
    given = heads(40, batch=1, dtype=torch.float32)
    exported = torch.export.export(model, given, dynamic_shapes=shapes, strict=strict).module()
    for length in (40, 2, 1100):  # more than one block of the plain call
        given = heads(length, batch=1, dtype=torch.float32, seed=3)
        assert_roundings(exported(*given), model(*given).double(), 64)


def test_deep_copies_share_nothing_that_learns() -> None:
    model = layer("learned-scale-rope").attention
    twin = copy.deepcopy(model)
    rotary = twin.scheme.rotary
    assert isinstance(rotary, LearnedScaleRope)
    rotary.scale.data.fill_(5.0)
    assert twin.state_dict()["learned.rotary.scale"] == 5.0
    assert model.state_dict()["learned.rotary.scale"] != 5.0
