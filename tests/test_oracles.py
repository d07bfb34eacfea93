"""Every encoding and every scaling method against its paper's formula in plain floats.

A rotation by −θ, a wrong base and swapped pairs pass every law; they die here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import oracles_added
import oracles_forms
import oracles_relative
from posenc import (
    NTK,
    Alibi,
    AxialLearned,
    BeitBias,
    Cope,
    Deberta,
    Decomposed,
    DynamicNTK,
    Fire,
    Kerple,
    Learned,
    LearnedScaleRope,
    Linear,
    Llama3,
    LongRope,
    MixedRope,
    NTKByParts,
    Proportional,
    QwenNTK,
    RandomFourier,
    Rope,
    Scaling,
    Scheme,
    Shaw,
    Sinusoidal,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    TransformerXL,
    Yarn,
    attention,
    causal,
    linear_attention,
    masks,
    rotate,
    same_segment,
    window,
)
from posenc.bias.t5 import bucket_edges
from posenc.contracts import Block
from posenc.registry import ENCODINGS, SCALINGS
from support import (
    HEADS,
    NAMES,
    assert_roundings,
    build,
    cells_of,
    every_rotation,
    heads,
    mask_of,
    positions_of,
    random,
)

WIDTH, BASE, FACTOR, TRAINED = 64, 10_000.0, 8.0, 2048
FAR = [0, 1, 2, 7, 511, 4095, 65_537, 1_000_003, 2**30 + 1, -1, -70_001]

# --- Every registry entry, as attention over five tokens of every head ---------------------------

Logit = Callable[[int, int], float]
Rows = Sequence[Sequence[float]]
LENGTH = 6


def no_position(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    del scheme, head, at
    return lambda i, j: oracles.dot(q[i], k[j]) / math.sqrt(len(q[i]))


def turned(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    del scheme, head
    speeds = oracles.frequencies(len(q[0]), BASE)
    q = [oracles.rotated(x, p, speeds) for x, p in zip(q, at, strict=True)]
    k = [oracles.rotated(x, p, speeds) for x, p in zip(k, at, strict=True)]
    return lambda i, j: oracles.dot(q[i], k[j]) / math.sqrt(len(q[i]))


def turned_by_scaled_positions(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    assert isinstance(scheme.rotary, LearnedScaleRope)
    return turned(scheme, head, q, k, [p * scheme.rotary.scale.item() for p in at])


def with_decay(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    """xPos: each side with its own amplitude."""
    del scheme, head
    width = len(q[0])
    angles = [[p * speed for speed in oracles.frequencies(width, 10_000.0)] for p in at]
    sides = [
        [
            oracles_forms.turned(x, turns, amplitudes=oracles_forms.xpos_amplitudes(p, width, side))
            for x, turns, p in zip(rows, angles, at, strict=True)
        ]
        for rows, side in ((q, "query"), (k, "key"))
    ]
    return lambda i, j: oracles.dot(sides[0][i], sides[1][j]) / math.sqrt(width)


def turned_by_axes(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    del head
    width, pairing = len(q[0]), "half"
    if isinstance(scheme.rotary, MixedRope):
        speeds, pairing = scheme.rotary.weight.tolist(), "adjacent"
        angles = [oracles_forms.mixed_angles(cell, speeds) for cell in at]
    else:
        halves = (width // 2, width // 2)
        angles = [
            oracles_forms.axial_angles(cell, halves, 10_000.0, axis_order=(0, 1)) for cell in at
        ]
    q, k = (
        [
            oracles_forms.turned(x, turns, pairing=pairing)
            for x, turns in zip(rows, angles, strict=True)
        ]
        for rows in (q, k)
    )
    return lambda i, j: oracles.dot(q[i], k[j]) / math.sqrt(width)


def with_t5(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    assert isinstance(scheme.bias, T5Bias)
    table, plain = scheme.bias.weight.tolist(), no_position(scheme, head, q, k, at)

    def logit(i: int, j: int) -> float:
        return plain(i, j) + table[oracles.t5_bucket(at[j] - at[i], bidirectional=False)][head]

    return logit


def with_alibi(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    plain, slope = no_position(scheme, head, q, k, at), oracles.alibi_slopes(HEADS)[head]
    return lambda i, j: plain(i, j) + oracles.alibi(slope, at[i], at[j])


def with_kerple(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    assert isinstance(scheme.bias, Kerple)
    plain = no_position(scheme, head, q, k, at)
    r1, r2 = (math.exp(raw[head].item()) for raw in (scheme.bias.log_r1, scheme.bias.raw_r2))
    return lambda i, j: plain(i, j) + oracles.kerple("log", r1, r2, at[i], at[j])


def with_sandwich(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    plain = no_position(scheme, head, q, k, at)
    return lambda i, j: plain(i, j) + oracles.sandwich(head, HEADS, at[i], at[j])


def with_fire(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    bias, plain = scheme.bias, no_position(scheme, head, q, k, at)
    assert isinstance(bias, Fire)
    c, threshold = bias.c.item(), bias.threshold_factor.item() * bias.initial_threshold
    first, second = bias.hidden.weight[:, 0].tolist(), bias.out.weight[head].tolist()
    mlp = (first, bias.hidden.bias.tolist(), second, bias.out.bias[head].item())
    return lambda i, j: plain(i, j) + oracles.fire(mlp, c, threshold, at[i], at[j])


def with_swinv2(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    bias, plain = scheme.bias, no_position(scheme, head, q, k, at)
    assert isinstance(bias, SwinV2Bias)
    parts = [x.tolist() for x in (bias.hidden.weight, bias.hidden.bias, bias.out.weight[head])]

    def logit(i: int, j: int) -> float:
        offset = (at[i][0] - at[j][0], at[i][1] - at[j][1])
        return plain(i, j) + oracles.swinv2(parts[0], parts[1], parts[2], offset, bias.window)

    return logit


def with_beit(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    assert isinstance(scheme.bias, BeitBias)
    table, plain = scheme.bias.weight.tolist(), no_position(scheme, head, q, k, at)
    cells, size = [None if cell == [-1, -1] else tuple(cell) for cell in at], scheme.bias.window
    return lambda i, j: plain(i, j) + table[oracles.beit_row(cells[i], cells[j], size)][head]


def with_swin(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    assert isinstance(scheme.bias, SwinBias)
    table, plain = scheme.bias.weight.tolist(), no_position(scheme, head, q, k, at)
    size = scheme.bias.window

    def logit(i: int, j: int) -> float:
        row = oracles.swin_row(at[i][0] - at[j][0], at[i][1] - at[j][1], size)
        return plain(i, j) + table[row][head]

    return logit


def with_shaw(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    del head
    assert isinstance(scheme.relative, Shaw)
    table, clip = scheme.relative.keys.tolist(), 16

    def logit(i: int, j: int) -> float:
        vector = table[oracles.shaw_row(at[j] - at[i], clip)]
        return oracles.dot(q[i], [a + b for a, b in zip(k[j], vector, strict=True)]) / math.sqrt(
            len(q[i])
        )

    return logit


def with_transformer_xl(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    part, width = scheme.relative, len(q[0])
    assert isinstance(part, TransformerXL)
    assert part.content_bias is not None and part.position_bias is not None
    u, v = part.content_bias[head].tolist(), part.position_bias[head].tolist()
    weight = part.projection[head * width : (head + 1) * width].tolist()

    def logit(i: int, j: int) -> float:
        waves = oracles_relative.distance_sinusoid(at[i] - at[j], HEADS * width)
        return oracles_relative.transformer_xl(q[i], k[j], u, v, weight, waves) / math.sqrt(width)

    return logit


def with_deberta(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    part, width = scheme.relative, len(q[0])
    assert isinstance(part, Deberta) and part.key is not None and part.query is not None
    mine = slice(head * width, (head + 1) * width)
    table = part.table.tolist()
    project = [(x.weight[mine].tolist(), x.bias[mine].tolist()) for x in (part.key, part.query)]

    def logit(i: int, j: int) -> float:
        row = table[oracles_relative.deberta_row(at[i] - at[j], 256, 512, has_buckets=True)]
        key, query = (oracles_relative.affine(weight, bias, row) for weight, bias in project)
        terms = oracles.dot(q[i], k[j]), oracles.dot(q[i], key), oracles.dot(k[j], query)
        return math.fsum(terms) / math.sqrt(width)

    return logit


def with_cope(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    assert isinstance(scheme.relative, Cope)
    plain, embeddings = no_position(scheme, head, q, k, at), scheme.relative.embeddings.tolist()

    def logit(i: int, j: int) -> float:
        p = oracles_relative.cope_position(
            i, j, at, plain, lambda i, n: at[n] <= at[i], len(embeddings)
        )
        return plain(i, j) + oracles_relative.cope_term(q[i], embeddings, p)

    return logit


def with_decomposed(scheme: Scheme, head: int, q: Rows, k: Rows, at: list) -> Logit:
    del head
    part = scheme.relative
    assert isinstance(part, Decomposed)
    tables = [part.row_vectors.tolist(), part.column_vectors.tolist()]

    def logit(i: int, j: int) -> float:
        offset = (at[i][0] - at[j][0], at[i][1] - at[j][1])
        return oracles_relative.decomposed(q[i], k[j], offset, tables, part.window)

    return logit


LOGITS: dict[str, Callable[[Scheme, int, Rows, Rows, list], Logit]] = {
    "none": no_position,
    "sinusoidal": no_position,
    "learned": no_position,
    "rope": turned,
    "learned-scale-rope": turned_by_scaled_positions,
    "xpos": with_decay,
    "axial-rope": turned_by_axes,
    "mixed-rope": turned_by_axes,
    "t5": with_t5,
    "alibi": with_alibi,
    "axial-sinusoidal": no_position,
    "axial-learned": no_position,
    "fourier": no_position,
    "kerple": with_kerple,
    "sandwich": with_sandwich,
    "fire": with_fire,
    "shaw": with_shaw,
    "transformer-xl": with_transformer_xl,
    "deberta": with_deberta,
    "cope": with_cope,
    "decomposed": with_decomposed,
    "swin": with_swin,
    "swinv2": with_swinv2,
    "beit": with_beit,
    "learned+rope": turned,
}


def from_table(scheme: Scheme, position: int, channel: int) -> float:
    assert isinstance(scheme.additive, Learned)
    return scheme.additive.weight[oracles.learned_row(position), channel].item()


def from_tables(scheme: Scheme, cell: Sequence[int], channel: int) -> float:
    assert isinstance(scheme.additive, AxialLearned)
    return oracles_added.axial_learned(cell, channel, [t.tolist() for t in scheme.additive.tables])


def from_matrix(scheme: Scheme, point: Sequence[float], channel: int) -> float:
    assert isinstance(scheme.additive, RandomFourier)
    return oracles_added.random_fourier(point, channel, scheme.additive.frequencies.tolist())


ADDED: dict[str, Callable[[Scheme, Any, int], float]] = {
    "sinusoidal": lambda scheme, p, c: oracles.sinusoid(p, c, 32),
    "axial-sinusoidal": lambda scheme, cell, c: oracles_added.axial_sinusoid(cell, c, 32),
    "axial-learned": from_tables,
    "fourier": from_matrix,
    "learned": from_table,
    "learned+rope": from_table,
}


def values_of(scheme: Scheme, v: Rows, at: list) -> Callable[[int, int], Sequence[float]]:
    if not isinstance(scheme.relative, Shaw) or scheme.relative.values is None:
        return lambda i, j: v[j]
    table, clip = scheme.relative.values.tolist(), 16

    def value(i: int, j: int) -> list[float]:
        vector = table[oracles.shaw_row(at[j] - at[i], clip)]
        return [a + b for a, b in zip(v[j], vector, strict=True)]

    return value


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_is_named_by_an_oracle(name: str) -> None:
    scheme = build(name)
    assert name in LOGITS
    assert (scheme.additive is not None) == (name in ADDED)


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_attention_is_the_papers_formula(name: str, impl: str) -> None:
    scheme, at = build(name, length=LENGTH), positions_of(name, LENGTH)
    if scheme.bias is not None:
        scheme.bias.double()  # the same parameters; an MLP computes in their dtype
    if ENCODINGS[name].positions is None and not ENCODINGS[name].has_limit:
        at = torch.tensor([0, 1, 40, 41, 200, 3000])  # gaps: buckets and clipping take part
    q, k, v = heads(LENGTH, batch=1)
    actual = attention(
        q,
        k,
        v,
        scheme=scheme,
        k_pos=at,
        mask=mask_of(name),
        impl=impl,  # pyright: ignore[reportArgumentType]
    )
    expected = []
    for head in range(HEADS):
        rows = [x[0, head].tolist() for x in (q, k, v)]
        logit = LOGITS[name](scheme, head, rows[0], rows[1], at.tolist())
        logits = [[logit(i, j) for j in range(LENGTH)] for i in range(LENGTH)]
        is_causal = mask_of(name) is causal
        expected.append(
            oracles.softmax_attention(
                logits,
                lambda i, j, is_causal=is_causal: j <= i or not is_causal,
                values_of(scheme, rows[2], at.tolist()),
            )
        )
    exact = torch.tensor([expected], dtype=torch.float64)
    if impl == "sdpa":  # its tables are float32, whatever the queries are
        assert_roundings(actual.float(), exact, 16)
    else:
        assert_roundings(actual, exact, 64)


@pytest.mark.parametrize("name", ADDED)
def test_added_vectors_are_the_papers_formula(name: str) -> None:
    scheme = build(name)
    assert scheme.additive is not None
    at, cells = torch.tensor([[0, 1, 2, 3], [23, 5, 5, 0]]), cells_of(name)
    at = at if cells is None else cells[at]
    x = random(2, 4, 32)
    expected = [
        [
            [x[b, t, c].item() + ADDED[name](scheme, at[b, t].tolist(), c) for c in range(32)]
            for t in range(4)
        ]
        for b in range(2)
    ]
    actual = scheme.additive(x, at)
    assert_roundings(actual.float(), torch.tensor(expected, dtype=torch.float64), 2)


# --- Rotation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0, 1e6])
@pytest.mark.parametrize(
    ("rotary_dim", "placement"), [(8, "leading"), (4, "leading"), (4, "trailing")]
)
def test_rope_turns_each_pair_by_position_times_frequency(
    pairing: str, base: float, rotary_dim: int, placement: str
) -> None:
    rope = Rope(8, base, pairing, rotary_dim, placement=placement)  # pyright: ignore[reportArgumentType]
    at = torch.tensor(FAR)
    x = random(1, 1, len(FAR), 8)
    exact_table = rope.table(at, dtype=torch.float64)
    speeds = oracles.frequencies(rotary_dim, base)
    start = 8 - rotary_dim if placement == "trailing" else 0
    expected = [
        oracles.rotated(row, p, speeds, pairing=pairing, start=start)
        for row, p in zip(x[0, 0].tolist(), FAR, strict=True)
    ]
    exact = torch.tensor([[expected]], dtype=torch.float64)
    # An angle of 2**30 radians carries a rounding of 2**30 · 2**-53.
    assert (rotate(x, exact_table, impl="reference") - exact).abs().max() < 2**30 * 2**-51
    for impl, out in every_rotation(x.float(), rope.table(at)):
        assert out.dtype == torch.float32, impl
        assert_roundings(out, exact, 4)


def test_positive_positions_turn_counter_clockwise() -> None:
    x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    for impl, out in every_rotation(x, Rope(2).table(torch.tensor([1]))):
        assert out.flatten().tolist() == pytest.approx([math.cos(1), math.sin(1)]), impl


@pytest.mark.parametrize("position", [0, 1, 257, 1_000_003])
def test_table_columns_are_the_cosine_and_the_sine_of_the_angle(position: int) -> None:
    """A sine table used for the cosine is one of the tutorial faults."""
    table = Rope(8).table(torch.tensor([position]))
    angles = [position * speed for speed in oracles.frequencies(8, BASE)]
    assert table.cos.flatten().tolist() == pytest.approx([math.cos(a) for a in angles], abs=1e-7)
    assert table.sin.flatten().tolist() == pytest.approx([math.sin(a) for a in angles], abs=1e-7)


@pytest.mark.parametrize("blend", [None, 0.0, 0.25, 1.0])
def test_learned_scale_turns_by_scale_times_position(blend: float | None) -> None:
    rotary = LearnedScaleRope(Rope(8), initial_scale=0.37, blend=blend)
    at = [0.0, 1.0, 2.5, 40.0, 100_000.0]
    x = random(1, 1, len(at), 8)
    table = rotary.table(torch.tensor(at, dtype=torch.float64), dtype=torch.float64)
    scale, speeds = rotary.scale.item(), oracles.frequencies(8, BASE)
    expected = []
    for row, p in zip(x[0, 0].tolist(), at, strict=True):
        scaled, plain = (oracles.rotated(row, p * s, speeds) for s in (scale, 1.0))
        expected.append(scaled if blend is None else oracles.blended(plain, scaled, blend))
    actual = rotate(x, table, impl="reference").detach()
    assert (actual - torch.tensor([[expected]], dtype=torch.float64)).abs().max() < 1e-10


# --- Scaling -------------------------------------------------------------------------------------

DIVISORS = tuple(1.0 + 0.5 * pair for pair in range(WIDTH // 2))


def yarn_truth(method: Yarn, base: float) -> tuple[list[float], float]:
    options = {"fast": method.beta_fast, "slow": method.beta_slow, "truncate": method.truncate}
    speeds = oracles.yarn_frequencies(WIDTH, base, method.factor, method.original_length, **options)
    factor = method.attention_factor
    return speeds, oracles.yarn_amplitude(method.factor) if factor is None else factor


Truth = Callable[[float], tuple[list[float], float]]
METHODS: list[tuple[Scaling, Truth]] = [
    (Linear(FACTOR), lambda base: (oracles.linear_frequencies(WIDTH, base, FACTOR), 1.0)),
    (NTK(FACTOR), lambda base: (oracles.ntk_frequencies(WIDTH, base, FACTOR), 1.0)),
    (
        NTK(FACTOR, rule="fixed"),
        lambda base: (oracles.ntk_frequencies(WIDTH, base, FACTOR, "fixed"), 1.0),
    ),
    (
        NTK(FACTOR, rule="plain"),
        lambda base: (oracles.ntk_frequencies(WIDTH, base, FACTOR, "plain"), 1.0),
    ),
    (
        DynamicNTK(2.0, TRAINED, length=8192),
        lambda base: (
            oracles.frequencies(WIDTH, oracles.dynamic_ntk_base(WIDTH, base, 2.0, TRAINED, 8192)),
            1.0,
        ),
    ),
    (
        NTKByParts(FACTOR, TRAINED),
        lambda base: (oracles.yarn_frequencies(WIDTH, base, FACTOR, TRAINED), 1.0),
    ),
    (Yarn(FACTOR, TRAINED), lambda base: yarn_truth(Yarn(FACTOR, TRAINED), base)),
    (
        Yarn(FACTOR, TRAINED, beta_fast=16.0, beta_slow=2.0, truncate=False, attention_factor=1.25),
        lambda base: yarn_truth(
            Yarn(FACTOR, TRAINED, 16.0, 2.0, truncate=False, attention_factor=1.25), base
        ),
    ),
    (
        Yarn(FACTOR, TRAINED, mscale=1.0, mscale_all_dim=0.5),
        lambda base: (
            oracles.yarn_frequencies(WIDTH, base, FACTOR, TRAINED),
            oracles.yarn_amplitude(FACTOR, 1.0) / oracles.yarn_amplitude(FACTOR, 0.5),
        ),
    ),
    (Yarn(FACTOR, 131_072), lambda base: yarn_truth(Yarn(FACTOR, 131_072), base)),  # clamped ramp
    (
        Llama3(FACTOR, TRAINED),
        lambda base: (oracles.llama3_frequencies(WIDTH, base, FACTOR, TRAINED), 1.0),
    ),
    (
        LongRope((1.0,) * 32, DIVISORS, factor=FACTOR, original_length=TRAINED, length=4096),
        lambda base: (
            oracles.longrope_frequencies(WIDTH, base, DIVISORS),
            oracles.longrope_amplitude(FACTOR, TRAINED),
        ),
    ),
    *(
        (
            QwenNTK(TRAINED).at_length(length),
            lambda base, length=length: (
                oracles.qwen_ntk_frequencies(WIDTH, base, TRAINED, length),
                1.0,
            ),
        )
        for length in (TRAINED, TRAINED + 1, 2 * TRAINED, 2 * TRAINED + 1, 5 * TRAINED)
    ),
    (
        Proportional(0.25, factor=FACTOR),
        lambda base: (oracles.proportional_frequencies(WIDTH, base, 0.25, FACTOR), 1.0),
    ),
]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize(("method", "truth"), METHODS, ids=[repr(m)[:90] for m, _ in METHODS])
def test_scaled_frequencies_are_the_papers_formula(
    method: Scaling, truth: Truth, base: float
) -> None:
    speeds, factor = truth(base)
    made = Rope(WIDTH, base, scaling=method).frequencies()
    assert made.inv_freq.dtype == torch.float64
    assert made.inv_freq.tolist() == pytest.approx(speeds, rel=1e-13)
    assert made.attention_factor == pytest.approx(factor, rel=1e-15)


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("method", [None, Linear(FACTOR), Yarn(FACTOR, 64)], ids=str)
def test_the_other_direction_is_the_papers_rotation_by_minus_the_position(
    pairing: Any, method: Scaling | None
) -> None:
    rope = Rope(8, 100.0, pairing, scaling=method, direction=-1)
    plain = replace(rope, direction=1).frequencies()
    x = random(1, 1, 1, 8)
    for position in (0, 1, 7, 1000):
        out = rotate(x, rope.table(torch.tensor([position]), dtype=torch.float64))
        expected = oracles.rotated(
            x.flatten().tolist(), -position, plain.inv_freq.tolist(), pairing=pairing,
            amplitude=plain.attention_factor,
        )  # fmt: skip
        assert out.flatten().tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_method_is_named_by_an_oracle(name: str) -> None:
    method = SCALINGS[name].build(FACTOR, TRAINED)
    assert type(method) in {type(known) for known, _ in METHODS}


def test_attention_factor_multiplies_cosine_and_sine_and_so_logits_by_its_square() -> None:
    rope = Rope(8, scaling=Yarn(FACTOR, 64))
    speeds = oracles.yarn_frequencies(8, BASE, FACTOR, 64)
    amplitude = oracles.yarn_amplitude(FACTOR)
    x = random(1, 1, 1, 8)
    out = rotate(x, rope.table(torch.tensor([5]), dtype=torch.float64))
    expected = oracles.rotated(x.flatten().tolist(), 5, speeds, amplitude=amplitude)
    assert out.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_scaled_softmax_is_applied_by_attention_and_not_by_the_tables() -> None:
    """DeepSeek multiplies the softmax scale by the square of 0.1 · mscale_all_dim · ln s + 1."""
    method = Yarn(40.0, 64, mscale=1.0, mscale_all_dim=0.707, scale_softmax=True)
    plain = Yarn(40.0, 64, mscale=1.0, mscale_all_dim=0.707)
    assert Rope(8, scaling=method).frequencies().softmax_scale == pytest.approx(1.5896, abs=5e-5)
    q, k, v = heads(5)
    for impl in ("reference", "sdpa"):
        scaled = attention(q, k, v, scheme=Scheme(rotary=Rope(8, scaling=method)), impl=impl)
        by_hand = attention(
            q,
            k,
            v,
            scheme=Scheme(rotary=Rope(8, scaling=plain)),
            scale=8**-0.5 * oracles.yarn_amplitude(40.0, 0.707) ** 2,
            impl=impl,
        )
        assert_roundings(scaled, by_hand, 16)


# --- Added vectors -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["alternating", "concatenated"])
@pytest.mark.parametrize("denominator", ["d", "d-2"])
@pytest.mark.parametrize("dim", [2, 3, 5, 8, 33, 64])
def test_sinusoids_at_any_dimension_and_position(dim: int, denominator: str, layout: str) -> None:
    options: dict[str, Any] = {"denominator": denominator, "layout": layout}
    encoding = Sinusoidal(dim, **options)
    expected = [[oracles.sinusoid(p, c, dim, **options) for c in range(dim)] for p in FAR]
    actual = encoding.encode(torch.tensor(FAR), dtype=torch.float64)
    assert (actual - torch.tensor(expected, dtype=torch.float64)).abs().max() < 2**30 * 2**-51
    assert_roundings(
        encoding.encode(torch.tensor(FAR)), torch.tensor(expected, dtype=torch.float64), 2
    )


def test_sinusoid_base_is_the_base() -> None:
    out = Sinusoidal(4, base=100.0).encode(torch.tensor([3]))
    assert out.flatten().tolist() == pytest.approx(
        [oracles.sinusoid(3, c, 4, base=100.0) for c in range(4)]
    )


@pytest.mark.parametrize(
    ("options", "positions", "rows"),
    [
        ({}, [0, 1, 7], [0, 1, 7]),  # BERT, GPT-2
        ({"offset": 2}, [-1, 0, 7], [1, 2, 9]),  # OPT, BART
        ({"padding_idx": 1}, [-1, 0, 7], [1, 2, 9]),  # RoBERTa
        ({"padding_idx": 0}, [-1, 0, 7], [0, 1, 8]),
    ],
)
def test_learned_reads_the_row_of_its_family(
    options: dict[str, int], positions: list[int], rows: list[int]
) -> None:
    table = Learned(8, 4, **options)
    assert [oracles.learned_row(p, **options) for p in positions] == rows
    assert torch.equal(table.encode(torch.tensor(positions)), table.weight[rows])


# --- Biases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_heads", [*range(1, 41), 64, 71, 112, 128])
def test_alibi_slopes_follow_the_published_rule(num_heads: int) -> None:
    made = Alibi(num_heads).slopes()
    assert made.tolist() == pytest.approx(oracles.alibi_slopes(num_heads), rel=1e-14)
    learned = Alibi(num_heads, learned=True).slopes().tolist()
    assert learned == pytest.approx(oracles.alibi_slopes(num_heads), rel=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
def test_alibi_falls_with_distance(symmetric: bool) -> None:
    q_pos, k_pos = [0, 3, 1_000_000], [0, 1, 5, 999_999]
    dense = Alibi(6, symmetric=symmetric).dense(
        torch.tensor(q_pos), torch.tensor(k_pos), dtype=torch.float64
    )
    expected = [
        [[oracles.alibi(slope, i, j, symmetric=symmetric) for j in k_pos] for i in q_pos]
        for slope in oracles.alibi_slopes(6)
    ]
    assert_roundings(dense, torch.tensor([expected], dtype=torch.float64), 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 20), (8, 100), (320, 800), (16, 1000), (4, 9)]
)
def test_t5_buckets_are_exact_at_every_distance(
    num_buckets: int, max_distance: int, bidirectional: bool
) -> None:
    options = {"num_buckets": num_buckets, "max_distance": max_distance}
    bias = T5Bias(1, bidirectional=bidirectional, **options)
    far = [*range(-1200, 1201), -1_000_000, 1_000_000]
    expected = [oracles.t5_bucket(r, bidirectional=bidirectional, **options) for r in far]
    assert bias.bucket(torch.tensor(far)).tolist() == expected
    assert set(expected) <= set(range(num_buckets))


def test_t5_bucket_edges_are_published_ones() -> None:
    """Edges of T5's own 32 / 128, causal: the far half doubles eight-fold in sixteen steps."""
    edges = [0, *range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert bucket_edges(32, 128) == edges


@pytest.mark.parametrize("window_size", [(1, 5), (2, 3), (4, 2)])
def test_swin_reads_the_row_of_the_offset(window_size: tuple[int, int]) -> None:
    bias = SwinBias(3, window=window_size)
    height, width = window_size
    cells = [(row, column) for row in range(height) for column in range(width)]
    at = torch.tensor(cells)
    expected = [[oracles.swin_row(a - c, b - d, window_size) for c, d in cells] for a, b in cells]
    assert torch.equal(bias.dense(at, at)[0], bias.weight[torch.tensor(expected)].movedim(-1, 0))


@pytest.mark.parametrize("max_distance", [1, 3])
def test_shaw_clips_the_distance_and_counts_from_the_query(max_distance: int) -> None:
    shaw = Shaw(8, max_distance=max_distance)
    at = torch.tensor([0, 1, 2, 9])
    q = random(1, 1, 4, 8, dtype=torch.float32)
    expected = [
        [
            oracles.dot(
                q[0, 0, i].tolist(),
                shaw.keys[oracles.shaw_row(int(at[j] - at[i]), max_distance)].tolist(),
            )
            for j in range(4)
        ]
        for i in range(4)
    ]
    actual = shaw.key_logits(q, q, Block(at, at))[0, 0].detach()
    assert_roundings(actual, torch.tensor(expected, dtype=torch.float64), 4)


# --- Masks and linear attention ------------------------------------------------------------------


@given(
    q_pos=st.lists(st.integers(-3, 9), min_size=1, max_size=4),
    k_pos=st.lists(st.integers(-3, 9), min_size=1, max_size=5),
    size=st.integers(1, 5),
)
def test_masks_are_elementwise_functions_of_positions(
    q_pos: list[int], k_pos: list[int], size: int
) -> None:
    q, k = torch.tensor([q_pos]), torch.tensor([k_pos])
    truths: list[tuple[masks.Mask, Callable[[int, int], bool]]] = [
        (causal, lambda i, j: j <= i),
        (window(size), lambda i, j: -size < j - i < size),
        (causal & window(size), lambda i, j: 0 <= i - j < size),
    ]
    for mask, allows in truths:
        assert mask.allowed(q, k).tolist() == [[[allows(i, j) for j in k_pos] for i in q_pos]]


@pytest.mark.parametrize("rotary", [None, Rope(8), Rope(8, pairing="adjacent", rotary_dim=4)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_linear_attention_is_roformer_equation_19(rotary: Rope | None, is_causal: bool) -> None:
    q, k, v = heads(7, batch=1)
    out = linear_attention(
        q, k, v, scheme=Scheme(rotary=rotary), mask=causal if is_causal else None
    )

    def turn(position: int, x: Sequence[float]) -> Sequence[float]:
        if rotary is None:
            return x
        width = rotary.rotary_dim or 8
        return oracles.rotated(
            x, position, oracles.frequencies(width, BASE), pairing=rotary.pairing
        )

    for head in range(HEADS):
        rows = [x[0, head].tolist() for x in (q, k, v)]
        expected = oracles.linear_attention(
            rows[0], rows[1], rows[2], lambda i, j: j <= i or not is_causal, turn, turn
        )
        assert_roundings(out[0, head], torch.tensor(expected, dtype=torch.float64), 64)


def test_segments_hide_other_documents() -> None:
    segments = torch.tensor([4, 4, 9, 9, 9])
    q, k, v = heads(5, batch=1)
    out = attention(q, k, v, mask=causal & same_segment(segments), impl="reference")
    rows = [x[0, 0].tolist() for x in (q, k, v)]
    logit = no_position(Scheme(), 0, rows[0], rows[1], [])
    expected = oracles.softmax_attention(
        [[logit(i, j) for j in range(5)] for i in range(5)],
        lambda i, j: j <= i and (i < 2) == (j < 2),
        lambda i, j: rows[2][j],
    )
    assert_roundings(out[0, 0], torch.tensor(expected, dtype=torch.float64), 64)
