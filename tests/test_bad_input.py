"""Bad input: one line that repeats what was given and says what was expected."""

# What is wrong here on purpose:
# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from posenc import (
    NTK,
    Alibi,
    AxesBias,
    BeitBias,
    DynamicNTK,
    Fire,
    Kerple,
    KVCache,
    Learned,
    LearnedScaleRope,
    Linear,
    Llama3,
    LongRope,
    MultiHeadAttention,
    Proportional,
    Rope,
    Sandwich,
    Scheme,
    Shaw,
    Sinusoidal,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    Yarn,
    attention,
    causal,
    linear_attention,
    rerotate,
    rotate,
    rotate_qk,
    same_segment,
    window,
)
from posenc.positions import (
    check_positions,
    from_lengths,
    from_padding_mask,
    grid,
    query_key_positions,
    sequence,
)
from support import DIM, HEAD_DIM, HEADS, build, heads, random

Q, K, V = heads(5)
X = random(2, 5, DIM)
ROPE = Rope(HEAD_DIM)
TABLES = ROPE.tables(sequence(5), sequence(5))
Case = tuple[Callable[[], Any], type[Exception], str]


def wrong(call: Callable[[], Any], message: str, kind: type[Exception] = ValueError) -> Case:
    return call, kind, message


CASES: dict[str, Case] = {
    # configurations
    "rope: odd head": wrong(lambda: Rope(7), r"rotary_dim must be even.* got 7"),
    "rope: head of 1": wrong(lambda: Rope(1), r"head_dim must be an int of at least 2, got 1"),
    "rope: head 64.0": wrong(lambda: Rope(64.0), r"head_dim must be an int .*64\.0"),
    "rope: pairing": wrong(lambda: Rope(8, pairing="neox"), r"'half' or 'adjacent', got 'neox'"),
    "rope: placement": wrong(
        lambda: Rope(8, placement="last"), r"'leading' or 'trailing', got 'last'"
    ),
    "rope: base": wrong(lambda: Rope(8, base="1e4"), r"positive finite number, got '1e4'"),
    "rope: scaling": wrong(
        lambda: Rope(8, scaling="yarn"), r"scaling method, got 'yarn'", TypeError
    ),
    "rope: angles": wrong(
        lambda: Rope(8, angle_dtype=torch.bfloat16), r"float64 or float32, got torch\.bfloat16"
    ),
    "rope: length": wrong(lambda: Rope(8).at_length(0), r"length must be at least 1, got 0"),
    "linear: factor": wrong(lambda: Linear(0.5), r"Linear: factor .* at least 1, got 0\.5"),
    "linear: nan": wrong(lambda: Linear(math.nan), r"Linear: factor .* got nan"),
    "linear: text": wrong(lambda: Linear("4"), r"Linear: factor .* got '4'"),
    "linear: beyond floats": wrong(lambda: Linear(10**400), r"Linear: factor .* got 10000"),
    "rope: base beyond floats": wrong(lambda: Rope(8, base=10**400), r"finite number, got 1000"),
    "rope: base of true": wrong(lambda: Rope(8, base=True), r"finite number, got True"),
    "yarn: truncate": wrong(lambda: Yarn(2.0, 64, truncate="no"), r"True or False, got 'no'"),
    "yarn: softmax": wrong(lambda: Yarn(2.0, 64, scale_softmax=1), r"True or False, got 1"),
    "llama3: text": wrong(lambda: Llama3(8.0, 64, "1"), r"is needed, got 4\.0 and '1'"),
    "llama3: nan": wrong(lambda: Llama3(8.0, 64, math.nan), r"is needed, got 4\.0 and nan"),
    "llama3: inf": wrong(lambda: Llama3(8.0, 64, 1.0, math.inf), r"is needed, got inf and 1\.0"),
    "longrope: a number": wrong(
        lambda: LongRope(3.0, (1.0,), 2.0, 64), r"short_factor must list .* got 3\.0"
    ),
    "linear: bool": wrong(lambda: Linear(True), r"Linear: factor .* got True"),
    "ntk: one pair": wrong(lambda: Rope(2, scaling=NTK(2.0)).frequencies(), r"at least two pairs"),
    "ntk: rule": wrong(lambda: NTK(2.0, rule="kexue"), r"rule must be one of .*'kexue'"),
    "yarn: length": wrong(lambda: Yarn(2.0, 0), r"Yarn: original_length .* got 0"),
    "yarn: length 4096.0": wrong(
        lambda: Yarn(2.0, 4096.0), r"Yarn: original_length .* got 4096\.0"
    ),
    "yarn: betas": wrong(
        lambda: Yarn(2.0, 64, beta_fast=0.5), r"beta_fast >= beta_slow > 0 .*got 0\.5 and 1\.0"
    ),
    "yarn: amplitude": wrong(
        lambda: Yarn(2.0, 64, attention_factor=0.0), r"attention_factor must be positive, got 0\.0"
    ),
    "yarn: base of 1": wrong(
        lambda: Rope(8, base=1.0, scaling=Yarn(2.0, 64)).frequencies(), r"base above 1, got 1\.0"
    ),
    "dynamic: length": wrong(lambda: DynamicNTK(2.0, 1), r"DynamicNTK: original_length .* got 1"),
    "llama3: bands": wrong(
        lambda: Llama3(8.0, 64, low_freq_factor=5.0),
        r"high_freq_factor >= low_freq_factor .*4\.0 and 5\.0",
    ),
    "longrope: count": wrong(
        lambda: Rope(8, scaling=LongRope((1.0,), (1.0,), 2.0, 64)).frequencies(),
        r"lists 1 numbers for the 4 pairs",
    ),
    "longrope: divisor": wrong(
        lambda: LongRope((0.0,), (1.0,), 2.0, 64),
        r"short_factor must list positive numbers, got \(0\.0,\)",
    ),
    "longrope: rule": wrong(
        lambda: LongRope((1.0,), (1.0,), 2.0, 64, attention_rule="log"),
        r"attention_rule must be one of",
    ),
    "proportional: fraction": wrong(
        lambda: Proportional(1.5), r"fraction must be in \[0, 1\], got 1\.5"
    ),
    "sinusoidal: dim": wrong(lambda: Sinusoidal(0), r"dim must be a positive int, got 0"),
    "sinusoidal: dim of 1": wrong(
        lambda: Sinusoidal(1, denominator="d-2"), r"dim of at least 2, got 1"
    ),
    "sinusoidal: denominator": wrong(
        lambda: Sinusoidal(8, denominator="d/2"), r"'d' or 'd-2', got 'd/2'"
    ),
    "sinusoidal: layout": wrong(
        lambda: Sinusoidal(8, layout="interleaved"),
        r"'alternating' or 'concatenated', got 'interleaved'",
    ),
    "sinusoidal: base": wrong(
        lambda: Sinusoidal(8, base=-1.0), r"base must be a positive finite number, got -1\.0"
    ),
    "learned: size": wrong(lambda: Learned(0, 4), r"num_positions must be a positive int, got 0"),
    "learned: dim": wrong(lambda: Learned(4, -2), r"dim must be a positive int, got -2"),
    "learned: bool": wrong(
        lambda: Learned(True, 4), r"num_positions must be a positive int, got True"
    ),
    "learned: offset": wrong(lambda: Learned(4, 4, offset=-1), r"offset must be 0 or more, got -1"),
    "learned: both": wrong(
        lambda: Learned(4, 4, offset=3, padding_idx=1),
        r"padding_idx 1 means offset 2, got offset 3",
    ),
    "learned: resize": wrong(
        lambda: Learned(4, 4).resized(0), r"num_positions must be a positive int, got 0"
    ),
    "scale: zero": wrong(
        lambda: LearnedScaleRope(ROPE, initial_scale=0.0),
        r"initial_scale must be positive and finite, got 0\.0",
    ),
    "scale: inf": wrong(
        lambda: LearnedScaleRope(ROPE, initial_scale=math.inf), r"initial_scale .* got inf"
    ),
    "scale: blend": wrong(
        lambda: LearnedScaleRope(ROPE, blend=1.5), r"blend is the weight .*\[0, 1\], got 1\.5"
    ),
    "alibi: heads": wrong(lambda: Alibi(0), r"num_heads must be a positive int, got 0"),
    "t5: heads": wrong(lambda: T5Bias(2.0), r"num_heads must be a positive int, got 2\.0"),
    "t5: odd buckets": wrong(
        lambda: T5Bias(2, num_buckets=7), r"num_buckets .* even and at least 4 .*, got 7"
    ),
    "swin: window": wrong(
        lambda: SwinBias(2, window=(0, 3)), r"window must be \(height, width\) .*got \(0, 3\)"
    ),
    "shaw: distance": wrong(lambda: Shaw(8, max_distance=0), r"must be positive, got 8 and 0"),
    "window: size": wrong(lambda: window(0), r"at least 1 position, got size 0"),
    "window: text": wrong(lambda: window("8"), r"got size '8'"),
    "scheme: bias in rotary": wrong(
        lambda: Scheme(rotary=Alibi(2)),
        r"rotary= takes a RotaryEncoding, got Alibi; it belongs in bias=",
        TypeError,
    ),
    "scheme: text": wrong(
        lambda: Scheme(rotary="rope"), r"rotary= takes a RotaryEncoding, got str", TypeError
    ),
    "scheme: unknown": wrong(
        lambda: Scheme(rope=ROPE), r"unexpected keyword argument 'rope'", TypeError
    ),
    "module: heads": wrong(lambda: MultiHeadAttention(30, 4), r"dim 30, num_heads 4"),
    "module: groups": wrong(lambda: MultiHeadAttention(32, 4, num_kv_heads=3), r"num_kv_heads 3"),
    # positions
    "positions: float": wrong(
        lambda: ROPE.table(torch.arange(5.0)), r"integers \(int64\), got dtype torch\.float32"
    ),
    "positions: bool": wrong(
        lambda: ROPE.table(torch.ones(5, dtype=torch.bool)), r"got dtype torch\.bool"
    ),
    "positions: list": wrong(
        lambda: check_positions([0, 1], num_tokens=2),
        r"must be a tensor, got list: \[0, 1\]",
        TypeError,
    ),
    "positions: too many": wrong(
        lambda: attention(Q, K, V, k_pos=sequence(6)),
        r"k_pos must have shape \[T\] or \[B, T\] with T = 5 tokens, got \[6\]",
    ),
    "positions: axes": wrong(
        lambda: attention(Q, K, V, k_pos=torch.zeros(2, 5, 2, dtype=torch.int64)),
        r"got \[2, 5, 2\]",
    ),
    "positions: rows": wrong(
        lambda: attention(Q, K, V, k_pos=torch.zeros(3, 5, dtype=torch.int64)),
        r"has 3 rows for a batch of 2",
    ),
    "positions: queries alone": wrong(
        lambda: attention(Q, K, V, q_pos=sequence(5)), r"q_pos was given without k_pos"
    ),
    "positions: of a sinusoid": wrong(
        lambda: Sinusoidal(DIM)(X, torch.arange(5.0)), r"got dtype torch\.float32"
    ),
    "positions: of a bias": wrong(
        lambda: attention(Q, K, V, scheme=Scheme(bias=Alibi(HEADS)), k_pos=torch.arange(5.0)),
        r"got dtype torch\.float32",
    ),
    "positions: of shaw": wrong(
        lambda: attention(Q, K, V, scheme=build("shaw"), k_pos=torch.arange(5.0)),
        r"got dtype torch\.float32",
    ),
    "positions: half for a scale": wrong(
        lambda: LearnedScaleRope(ROPE).table(torch.arange(5.0).half()),
        r"integers, float32 or float64, got dtype torch\.float16",
    ),
    "positions: of a window": wrong(
        lambda: attention(Q, K, V, scheme=build("swin"), mask=None),
        r"needs positions with 2 axes.*grid",
    ),
    "alibi: slopes of other heads": wrong(
        lambda: Alibi(3, slopes=[0.5, 0.25]),
        r"slopes must be 3 finite numbers .* got \[0\.5, 0\.25\]",
    ),
    "alibi: a slope below 0": wrong(lambda: Alibi(1, slopes=[-1.0]), r"at least 0, one a head"),
    "alibi: a slope that is NaN": wrong(lambda: Alibi(1, slopes=[float("nan")]), r"finite numbers"),
    "alibi: slopes in a matrix": wrong(lambda: Alibi(1, slopes=torch.ones(1, 1)), r"one a head"),
    "alibi: slopes in text": wrong(lambda: Alibi(1, slopes=["0.5"]), r"one a head"),  # pyright: ignore
    "alibi: one number for slopes": wrong(lambda: Alibi(1, slopes=0.5), r"one a head"),  # pyright: ignore
    "alibi: bias_max of 0": wrong(lambda: Alibi(4, bias_max=0.0), r"bias_max .* positive .* got 0"),
    "alibi: bias_max beside slopes": wrong(
        lambda: Alibi(1, bias_max=4.0, slopes=[1.0]), r"goes without slopes=; got 4"
    ),
    "alibi: integer slopes": wrong(
        lambda: Alibi(4, slope_dtype=torch.int32), r"a floating dtype, got torch\.int32"
    ),
    "alibi: rounded and learned": wrong(
        lambda: Alibi(4, slope_dtype=torch.bfloat16, learned=True), r"learned=True"
    ),
    "alibi: learned from 0": wrong(
        lambda: Alibi(1, slopes=[0.0], learned=True), r"start above 0, got \[0\.0\]"
    ),
    "alibi: scale": wrong(lambda: Alibi(4, scale=0.0), r"scale must be positive and finite, got 0"),
    "kerple: form": wrong(
        lambda: Kerple(2, form="exp"),  # pyright: ignore[reportArgumentType]
        r"'log' or 'power', got 'exp'",
    ),
    "kerple: r1 of other heads": wrong(
        lambda: Kerple(2, r1=[1.0]),
        r"r1 must be 2 finite numbers above 0, one a head, got \[1\.0\]",
    ),
    "kerple: r2 of 0": wrong(lambda: Kerple(1, r2=[0.0]), r"r2 must be 1 finite numbers above 0"),
    "kerple: a power above 2": wrong(
        lambda: Kerple(1, form="power", r2=[2.5]), r"r2 must be 1 numbers in \(0, 2\]"
    ),
    "sandwich: odd width": wrong(lambda: Sandwich(2, width=7), r"width must be even .* got 7"),
    "sandwich: base": wrong(lambda: Sandwich(2, base=-1.0), r"base must be a positive .* got -1"),
    "fire: width": wrong(lambda: Fire(2, width=0), r"width must be at least 1, got 0"),
    "fire: threshold": wrong(
        lambda: Fire(2, initial_threshold=0.0), r"initial_threshold must be positive .* got 0"
    ),
    "fire: without order": wrong(
        lambda: attention(Q, K, V, scheme=build("fire"), mask=None),
        r"Fire means nothing for keys after the query: pass mask=causal .* got None",
    ),
    "window: three sides": wrong(
        lambda: SwinBias(2, window=(3, 4, 5)),  # pyright: ignore[reportArgumentType]
        r"window must be \(height, width\) of at least 1, got \(3, 4, 5\)",
    ),
    "window: half a cell": wrong(
        lambda: BeitBias(2, window=(3, 4.5)),  # pyright: ignore[reportArgumentType]
        r"of at least 1, got \(3, 4\.5\)",
    ),
    "window: to no size": wrong(lambda: SwinBias(2, window=3).resized(0), r"at least 1, got 0"),
    "window: no such kernel": wrong(
        lambda: BeitBias(2, window=3).resized(4, kernel="nearest"),  # pyright: ignore[reportArgumentType]
        r"kernel must be 'bicubic' or 'bilinear', got 'nearest'",
    ),
    "window: absolute offsets resized": wrong(
        lambda: SwinBias(2, window=3, symmetric=True).resized(4), r"no published way to resize"
    ),
    "swinv2: measured by a side of 1": wrong(
        lambda: SwinV2Bias(2, window=3, pretrained_window=(1, 3)),
        r"pretrained_window \(1, 3\) measures no offsets of a window \(3, 3\)",
    ),
    "swinv2: a cell outside": wrong(
        lambda: SwinV2Bias(2, window=2).dense(grid(3, 2), grid(3, 2)),
        r"row offsets in a window of 2 × 2 must lie in \[-1, 1\], got position",
    ),
    "beit: a cell outside": wrong(
        lambda: BeitBias(2, window=2).dense(grid(2, 3), grid(2, 3)),
        r"column offsets in a window of 2 × 2 must lie in \[-1, 1\], got position",
    ),
    "beit: a bias of other heads": wrong(
        lambda: attention(Q, K, V, scheme=Scheme(bias=BeitBias(3, window=2)), mask=None),
        rf"made for 3 heads, queries have {HEADS}",
    ),
    "beit: causal": wrong(
        lambda: attention(Q, K, V, scheme=build("beit"), k_pos=grid(1, 5), mask=causal),
        r"positions with 2 axes have no order",
    ),
    "axes: one of them": wrong(lambda: AxesBias([T5Bias(2)]), r"two or more .* got heads \[2\]"),
    "axes: of other heads": wrong(
        lambda: AxesBias([T5Bias(2), T5Bias(3)]), r"one number of heads, got heads \[2, 3\]"
    ),
    "axes: of windows": wrong(
        lambda: AxesBias([T5Bias(2), SwinBias(2, window=2)]),
        r"read one coordinate .* got SwinBias",
    ),
    "axes: scale": wrong(
        lambda: AxesBias([T5Bias(2), T5Bias(2)], scale=float("inf")), r"finite, got inf"
    ),
    "positions: one axis of a window": wrong(
        lambda: attention(Q, K, V, scheme=build("swin"), mask=None, k_pos=sequence(5)),
        r"\[T, 2\] or \[B, T, 2\] with T = 5",
    ),
    "more queries than keys": wrong(
        lambda: query_key_positions(3, 2, None, None), r"3 queries but 2 keys"
    ),
    "sequence of none": wrong(lambda: sequence(0), r"length must be at least 1, got 0"),
    "documents of none": wrong(
        lambda: from_lengths([]), r"lengths must be positive, one for each document, got \[\]"
    ),
    "a document of none": wrong(lambda: from_lengths([3, 0]), r"got \[3, 0\]"),
    "padding mask: float": wrong(
        lambda: from_padding_mask(torch.ones(1, 3)), r"holds 0 and 1 .*torch\.float32"
    ),
    "padding mask: other ids": wrong(
        lambda: from_padding_mask(torch.tensor([[0, 2]])), r"holds 0 and 1"
    ),
    # tensors
    "rotate: width": wrong(
        lambda: rotate(random(1, 1, 5, 6), TABLES.q),
        r"D = 8 channels of one head, got .*\[1, 1, 5, 6\]",
    ),
    "rotate: integers": wrong(
        lambda: rotate(torch.ones(1, 1, 5, 8, dtype=torch.int64), TABLES.q),
        r"floating .*torch\.int64",
    ),
    "rotate: tokens": wrong(
        lambda: rotate_qk(Q, K[:, :, :4], TABLES), r"has 4 tokens .*table holds 5 positions"
    ),
    "rotate: rows": wrong(
        lambda: rotate(Q, ROPE.table(torch.zeros(3, 5, dtype=torch.int64))),
        r"batch 2, but positions were given for 3 rows",
    ),
    "rotate: impl": wrong(lambda: rotate(Q, TABLES.q, impl="fast"), r"impl must be .*got 'fast'"),
    "rotate: native float64": wrong(
        lambda: rotate(Q, TABLES.q, impl="native"), r"impl='native' cannot rotate torch\.float64"
    ),
    "rerotate: width": wrong(
        lambda: rerotate(K, sequence(5), ROPE, Rope(HEAD_DIM, rotary_dim=4)),
        r"cannot become keys of .*rotary_dim=4",
    ),
    "attention: impl": wrong(lambda: attention(Q, K, V, impl="fast"), r"impl must be .*got 'fast'"),
    "attention: ranks": wrong(
        lambda: attention(X, X, X), r"expected q \[B, H, Q, D\].*got q \[2, 5, 32\]"
    ),
    "attention: no tokens": wrong(
        lambda: attention(Q[:, :, :0], K[:, :, :0], V[:, :, :0]), r"got q \[2, 4, 0, 8\]"
    ),
    "attention: groups": wrong(
        lambda: attention(Q, K[:, :3], V[:, :3]), r"H a multiple of H'.*k \[2, 3, 5, 8\]"
    ),
    "attention: keys and values": wrong(lambda: attention(Q, K, V[:, :, :4]), r"v \[2, 4, 4, 8\]"),
    "attention: batch": wrong(lambda: attention(Q, K[:1], V[:1]), r"k \[1, 4, 5, 8\]"),
    "attention: width": wrong(lambda: attention(Q, K[..., :6], V), r"k \[2, 4, 5, 6\]"),
    "attention: dtypes": wrong(
        lambda: attention(Q, K.float(), V),
        r"one floating dtype, got q torch\.float64, k torch\.float32",
    ),
    "attention: integers": wrong(
        lambda: attention(Q.long(), K.long(), V.long()), r"one floating dtype, got q torch\.int64"
    ),
    "attention: bias heads": wrong(
        lambda: attention(Q, K, V, scheme=Scheme(bias=Alibi(8))),
        r"made for 8 heads, queries have 4",
    ),
    "attention: vectors": wrong(
        lambda: attention(Q, K, V, scheme=Scheme(relative=Shaw(16, max_distance=2))),
        r"have 16 channels, heads have 8",
    ),
    "attention: rope": wrong(
        lambda: attention(Q, K, V, scheme=Scheme(rotary=Rope(16))), r"D = 16 channels of one head"
    ),
    "attention: a tensor as mask": wrong(
        lambda: attention(Q, K, V, mask=torch.ones(5, 5)), r"posenc mask .*got Tensor", TypeError
    ),
    "attention: causal window": wrong(
        lambda: attention(
            Q, K, V, scheme=build("swin"), k_pos=torch.zeros(5, 2, dtype=torch.int64), mask=causal
        ),
        r"2 axes have no order",
    ),
    "attention: tables of others": wrong(
        lambda: attention(Q[:, :, :3], K, V, scheme=Scheme(rotary=TABLES)),
        r"hold 5 positions for q, but 3 tokens",
    ),
    "segments: float": wrong(
        lambda: same_segment(torch.ones(5)), r"k_segments must be integers .*torch\.float32"
    ),
    "segments: shape": wrong(
        lambda: same_segment(torch.zeros(1, 5, 1, dtype=torch.int64)), r"\[1, 5, 1\]"
    ),
    "segments: tokens": wrong(
        lambda: attention(Q, K, V, mask=same_segment(torch.zeros(4, dtype=torch.int64))),
        r"made for 4 queries and 4 keys, got 5 and 5",
    ),
    "segments: rows": wrong(
        lambda: attention(Q, K, V, mask=same_segment(torch.zeros(3, 5, dtype=torch.int64))),
        r"3 rows of keys .* batch of 2",
    ),
    "mask and tensor": wrong(lambda: causal & torch.ones(5), r"unsupported operand", TypeError),
    "additive: width": wrong(
        lambda: Sinusoidal(16)(X),
        r"Sinusoidal adds to floating embeddings \[B, T, 16\], got .*\[2, 5, 32\]",
    ),
    "additive: ids": wrong(
        lambda: Learned(8, 5)(torch.zeros(2, 5, dtype=torch.int64)),
        r"Learned adds to floating embeddings .*torch\.int64",
    ),
    "module: width": wrong(
        lambda: MultiHeadAttention(16, 2)(X), r"expected x \[B, T, 16\], got \[2, 5, 32\]"
    ),
    "module: positions": wrong(
        lambda: MultiHeadAttention(DIM, 2).double()(X, sequence(4)), r"T = 5 tokens, got \[4\]"
    ),
    "linear: features": wrong(
        lambda: linear_attention(Q, K, V, feature_map=lambda x: x.mean(2)),
        r"feature_map must keep batch, heads and tokens",
    ),
}


@pytest.mark.parametrize(("call", "kind", "message"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_named_with_what_was_expected(
    call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_failed_call_leaves_a_cache_as_it_was() -> None:
    layer = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=ROPE)).double()
    cache = KVCache()
    layer(X, cache=cache)
    with pytest.raises(ValueError, match="T = 5 tokens"):
        layer(X, sequence(3), cache=cache)
    assert len(cache) == 5
    whole = layer(torch.cat((X, X), 1))
    assert torch.allclose(layer(X, cache=cache), whole[:, 5:])


@pytest.mark.parametrize(
    "call",
    [
        lambda: Learned(8, 4).encode([0, 1]),
        lambda: Sinusoidal(8).encode([0, 1]),
        lambda: Alibi(2).dense([0], [0]),
        lambda: Alibi(2).per_distance([0]),
        lambda: Rope(8).table([0, 1]),
    ],
)
def test_a_list_is_no_tensor_of_positions(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"must be a tensor, got list: \[0"):
        call()


def test_a_position_alone_is_a_row_of_one() -> None:
    with pytest.raises(ValueError, match=r"must have shape \[T\] or \[B, T\], got \[\]"):
        Sinusoidal(8).encode(torch.tensor(3))


def test_three_distances_are_not_two() -> None:
    with pytest.raises(ValueError, match=r"got 64 and \(64, 8, 3\)"):
        Shaw(64, max_distance=(64, 8, 3))
