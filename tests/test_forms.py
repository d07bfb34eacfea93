"""The other rotary forms, query scales and head slices: their formulas, their laws, public faults."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles_forms as oracles
from posenc import (
    NTK,
    Alibi,
    AxialRope,
    BeitBias,
    DynamicNTK,
    HeadSlice,
    KVCache,
    LearnedLogScale,
    LogitBias,
    LogScale,
    MixedRope,
    MRope,
    MultiHeadAttention,
    PowerScale,
    Rope,
    RotaryTables,
    Scheme,
    StepLogScale,
    SwinBias,
    T5Bias,
    XPos,
    Yarn,
    attention,
    heads_of_rank,
    rerotate,
    rotate,
    rotate_qk,
)
from posenc.contracts import TRAITS, Table
from posenc.positions import (
    Image,
    Text,
    centred,
    grid,
    multimodal,
    on_axes,
    sequence,
    volume,
    with_class_token,
)
from support import assert_roundings, random

HEADS, DIM = 3, 16
STATED: dict[str, Any] = {
    "contiguous": MRope(Rope(DIM), (2, 3, 3)),
    "contiguous-partial": MRope(Rope(DIM, rotary_dim=8, pairing="adjacent"), (1, 2, 1)),
    "interleaved": MRope(Rope(DIM, 500.0), (3, 3, 2), "interleaved"),
    "interleaved-rest": MRope(Rope(DIM), (5, 2, 1), "interleaved"),
    "alternating": MRope(Rope(DIM, pairing="adjacent"), (2, 3, 3), "alternating"),
    "trailing": MRope(
        Rope(DIM, rotary_dim=8, pairing="adjacent", placement="trailing"), (2, 1, 1), "interleaved"
    ),
    "explicit": MRope(Rope(DIM), (4, 4), (0, 1, 1, 0, 0, 1, 1, 0)),
    "axial": AxialRope(DIM),
    "axial-x-first": AxialRope(DIM, 100.0, pairing="adjacent", axis_order=(1, 0)),
    "axial-alternating": AxialRope(DIM, order="alternating", axis_order=(1, 0)),
    "axial-dealt": AxialRope(DIM, spectrum="dealt"),
    "axial-dealt-alternating": AxialRope(DIM, spectrum="dealt", order="alternating"),
    "axial-3": AxialRope(DIM, split=3),
    "axial-uneven": AxialRope(DIM, split=(4, 6, 6)),
    "xpos": XPos(Rope(DIM)),
    "xpos-partial": XPos(Rope(DIM, rotary_dim=8, pairing="adjacent"), 64.0, origin=5, gamma=0.3),
    "xpos-trailing": XPos(Rope(DIM, rotary_dim=8, placement="trailing")),
}
LEARNED = {"mixed": lambda: MixedRope(DIM), "mixed-half": lambda: MixedRope(DIM, pairing="half")}
NAMES = (*STATED, *LEARNED)


def form_of(name: str) -> Any:
    return STATED[name] if name in STATED else LEARNED[name]()


def num_axes(form: Any) -> int:
    return getattr(form, "num_axes", 1)


def positions_for(form: Any, values: list[list[int]]) -> Tensor:
    axes = num_axes(form)
    made = torch.tensor([row[:axes] for row in values])
    return made[:, 0] if axes == 1 else made


def oracle_angles(form: Any, at: Any) -> list[float]:
    """The angles of one token by the paper's formula, from what the form says of itself."""
    if isinstance(form, MRope):
        rope: Any = form.rope
        if isinstance(form.order, tuple):
            speeds = [rope.base ** (-2.0 * i / rope.rotary_dim) for i in range(len(form.order))]
            return [at[axis] * speed for axis, speed in zip(form.order, speeds, strict=True)]
        return oracles.mrope_angles(at, rope.rotary_dim, rope.base, form.sections, form.order)
    if isinstance(form, AxialRope):
        return oracles.axial_angles(
            at,
            form.axis_dims,
            form.base,
            axis_order=form.axis_order,
            alternating=form.order == "alternating",
            dealt=form.spectrum == "dealt",
        )
    if isinstance(form, MixedRope):
        return oracles.mixed_angles(at, form.weight.double().tolist())
    rope = form.rope
    return [at * rope.base ** (-2.0 * i / rope.rotary_dim) for i in range(rope.rotary_dim // 2)]


def oracle_rotated(form: Any, x: list[float], at: Any, side: str) -> list[float]:
    amplitudes = None
    if isinstance(form, XPos):
        amplitudes = oracles.xpos_amplitudes(
            at,
            form.rope.rotary_dim or DIM,
            side,
            base=form.scale_base,
            origin=form.origin,
            gamma=form.gamma,
        )
    rope = getattr(form, "rope", None)
    start = DIM - rope.rotary_dim if rope and rope.placement == "trailing" else 0
    angles = oracle_angles(form, at)
    return oracles.turned(x, angles, pairing=form.pairing, amplitudes=amplitudes, start=start)


SOME = [[0, 0, 0], [1, 2, 3], [7, 0, 5], [90, 41, 1000], [1000, 3, 90]]


# --- The formulas --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_rotation_is_the_formula(name: str) -> None:
    form = form_of(name)
    at = positions_for(form, SOME)
    q, k = random(1, HEADS, len(SOME), DIM, seed=1), random(1, 2, len(SOME), DIM, seed=2)
    tables = form.tables(at, at, dtype=torch.float64)
    for side, x, table in (("query", q, tables.q), ("key", k, tables.k)):
        out = rotate(x, table, impl="reference")
        for head in range(x.shape[1]):
            for t, position in enumerate(at.tolist()):
                expected = oracle_rotated(form, x[0, head, t].tolist(), position, side)
                size = max(map(abs, expected))
                assert out[0, head, t].tolist() == pytest.approx(expected, abs=1e-12 * size)


CELLS: dict[str, tuple[AxialRope, Tensor]] = {
    "2-D from 0": (AxialRope(DIM), grid(2, 3)),
    "2-D from 1": (AxialRope(DIM, pairing="adjacent"), grid(2, 3) + 1),
    "2-D centred": (AxialRope(DIM, 100.0), centred(2, 3, extent=2 * math.pi)),
    "3-D from 0": (AxialRope(DIM, split=(4, 6, 6)), volume(2, 2, 3)),
    "3-D from 1": (AxialRope(DIM, split=3, axis_order=(0, 2, 1)), volume(2, 2, 3) + 1),
    "3-D centred": (AxialRope(DIM, 100.0, split=3), centred(2, 3, frames=2, extent=math.pi)),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_turn_at_coordinates_from_0_from_1_and_centred(name: str) -> None:
    form, at = CELLS[name]
    x = random(1, HEADS, len(at), DIM)
    out = rotate(x, form.table(at, dtype=torch.float64), impl="reference")
    q_pos, k_pos = at[-1:], at
    for t, cell in enumerate(at.tolist()):
        expected = oracle_rotated(form, x[0, 1, t].tolist(), cell, "query")
        assert out[0, 1, t].tolist() == pytest.approx(expected, abs=1e-12)
    scheme = Scheme(rotary=form)  # the same numbers in attention, of the last cell alone
    last = attention(x[:, :, -1:], x, x, scheme=scheme, q_pos=q_pos, k_pos=k_pos, mask=None)
    whole = attention(x, x, x, scheme=scheme, k_pos=k_pos, mask=None, impl="reference")
    assert (last - whole[:, :, -1:]).abs().max() < 1e-6


def test_sections_of_qwen_by_hand() -> None:
    """Qwen2-VL (16, 24, 24) and Qwen3-VL (24, 20, 20): the axis of each of 64 pairs."""
    rope = Rope(128, 1e6)
    assert MRope(rope, (16, 24, 24)).axis_of_pair == (0,) * 16 + (1,) * 24 + (2,) * 24
    qwen3 = MRope(rope, (24, 20, 20), "interleaved").axis_of_pair
    assert qwen3 == (0, 1, 2) * 20 + (0,) * 4  # GGML gives pairs 61 and 62 to a fourth axis
    ernie = MRope(rope, (20, 22, 22), "alternating").axis_of_pair
    assert ernie == (1, 2) * 22 + (0,) * 20


def test_text_is_rotated_as_by_the_rope_itself() -> None:
    """Where all coordinates agree, M-RoPE is its rope, bit for bit, with any scaling."""
    at = torch.tensor([0, 5, 1000, 99_999, 2**31 + 1])
    text = on_axes(at, 3)
    for scaling in (None, Yarn(4.0, 64), NTK(2.0)):
        rope = Rope(DIM, scaling=scaling)
        theirs = rope.tables(at, at)
        for order in ("contiguous", "alternating", "interleaved"):
            sections = (3, 3, 2) if order == "interleaved" else (2, 3, 3)
            ours = MRope(rope, sections, order).tables(text, text)  # pyright: ignore[reportArgumentType]
            assert torch.equal(ours.q.cos, theirs.q.cos) and torch.equal(ours.q.sin, theirs.q.sin)
            assert ours.attention_factor == theirs.attention_factor


def test_b161_axes_of_unequal_width_are_split_once() -> None:
    """diffusers#12538 (B161): head 64 is [24, 20, 20] everywhere; 21 channels are no pairs."""
    rope = AxialRope(64, split=(24, 20, 20))
    assert [rope.axis_of_pair.count(axis) for axis in range(3)] == [12, 10, 10]
    with pytest.raises(ValueError, match=r"even number of channels .* got \(22, 21, 21\)"):
        AxialRope(64, split=(22, 21, 21))
    assert AxialRope(128, split=3).axis_dims == (42, 42, 42)  # 2 channels pass through


def test_b170_a_size_is_a_number_or_a_pair() -> None:
    """Open-Sora-Plan#375: base_size=16 was indexed like a list."""
    assert AxialRope(64, split=2) == AxialRope(64, split=(32, 32))
    square, pair = SwinBias(2, window=16), SwinBias(2, window=(16, 16))
    assert square.window == pair.window == (16, 16)
    assert square.weight.shape == pair.weight.shape == (31 * 31, 2)


def test_scaling_acts_on_each_axis() -> None:
    scaled = AxialRope(DIM, scaling=NTK(4.0)).frequencies().inv_freq.view(2, 4)
    plain = AxialRope(DIM).frequencies().inv_freq.view(2, 4)
    for axis in range(2):
        assert_roundings(scaled[axis, 0], plain[axis, 0])
        assert_roundings(scaled[axis, -1], plain[axis, -1] / 4.0, 8)
    factor = AxialRope(DIM, scaling=Yarn(4.0, 64)).tables(grid(2, 2), grid(2, 2)).attention_factor
    assert factor == 0.1 * math.log(4.0) + 1.0


def test_mixed_starts_with_published_speeds() -> None:
    """rope-vit: magnitudes 10**(−4i/d), twice, at a right angle; a direction for each head."""
    mixed = MixedRope(DIM, num_heads=64)
    speeds = mixed.weight.double()
    magnitude = speeds.norm(dim=0)
    expected = torch.tensor([10.0 ** (-4 * i / DIM) for i in range(4)] * 2)
    assert_roundings(magnitude.float(), expected.double().expand(64, -1), 4)
    first, second = speeds[..., :4], speeds[..., 4:]
    assert (first * second).sum(0).abs().max() < 1e-6
    direction = torch.atan2(speeds[0, :, 0], speeds[1, :, 0])
    assert direction.std() > 1.0  # spread over the circle
    shared = MixedRope(DIM)
    assert shared.weight.shape == (2, 8)


def test_mixed_speeds_get_the_gradient_of_the_formula() -> None:
    mixed = MixedRope(8).double()
    at = grid(2, 3)
    x, weight = random(1, 2, 6, 8), random(1, 2, 6, 8, seed=1)

    def loss(speeds: Tensor) -> Tensor:
        angle = at.double() @ speeds
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        return (out * weight).sum()

    speeds = mixed.weight.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(speeds), speeds)
    table = mixed.table(at, dtype=torch.float64)
    (got,) = torch.autograd.grad((rotate(x, table) * weight).sum(), mixed.weight)
    assert_roundings(got, expected, 16)


@pytest.mark.parametrize("impl", ["auto", "eager", "reference"])
def test_each_head_turns_at_its_own_speeds(impl: Any) -> None:
    mixed, at = MixedRope(DIM, num_heads=HEADS), grid(2, 3)
    x = random(2, HEADS, 6, DIM, dtype=torch.float32)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            out = rotate(x, mixed.table(at), impl=impl)
        for head in range(HEADS):
            speeds = mixed.weight[:, head].double().tolist()
            for t, cell in enumerate(at.tolist()):
                angles = oracles.mixed_angles(cell, speeds)
                expected = oracles.turned(x[0, head, t].tolist(), angles, pairing="adjacent")
                assert out[0, head, t].tolist() == pytest.approx(expected, abs=1e-6)
    q, k = random(1, HEADS, 6, DIM, seed=1), random(1, HEADS, 6, DIM, seed=2)
    scheme = Scheme(rotary=mixed)
    attention(q, k, k, scheme=scheme, k_pos=at, mask=None).sum().backward()
    assert mixed.weight.grad is not None and (mixed.weight.grad.abs().sum((0, 2)) > 0).all()


# --- Laws ----------------------------------------------------------------------------------------

cells = st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=5)


@pytest.mark.parametrize("name", NAMES)
@given(at=cells, shift=st.lists(st.integers(-500, 500), min_size=3, max_size=3))
def test_scores_depend_on_the_difference_on_each_axis(
    name: str, at: list[list[int]], shift: list[int]
) -> None:
    form = form_of(name)
    here = positions_for(form, at)
    moved = here + positions_for(form, [shift])
    q, k = (random(1, HEADS, len(at), DIM, seed=s) for s in (1, 2))

    def scores(positions: Tensor) -> Tensor:
        turned_q, turned_k = rotate_qk(q, k, form.tables(positions, positions, dtype=torch.float64))
        return turned_q @ turned_k.transpose(-1, -2)

    before, after = scores(here), scores(moved)
    assert (before - after).abs().max() <= 1e-10 * before.abs().max()


@pytest.mark.parametrize("name", NAMES)
@given(at=cells)
def test_a_rotation_keeps_norms_and_xpos_keeps_their_product(
    name: str, at: list[list[int]]
) -> None:
    form = form_of(name)
    here = positions_for(form, at)
    tables = form.tables(here, here, dtype=torch.float64)
    x = random(1, 2, len(at), DIM)
    if not isinstance(form, XPos):
        assert_roundings(rotate(x, tables.k).norm(dim=-1), x.norm(dim=-1), 16)
        return
    product = (tables.q.cos.square() + tables.q.sin.square()) * (
        tables.k.cos.square() + tables.k.sin.square()
    )
    assert_roundings(product, torch.ones_like(product), 64)


@pytest.mark.parametrize("name", NAMES)
@given(at=cells)
def test_tokens_rotated_alone_equal_tokens_rotated_together(name: str, at: list[list[int]]) -> None:
    form = form_of(name)
    here = positions_for(form, at)
    x = random(2, 2, len(at), DIM, dtype=torch.float32)
    together = form.tables(here, here)
    for t in range(len(at)):
        alone = form.tables(here[t : t + 1], here[t : t + 1])
        for side in ("q", "k"):
            whole = rotate(x, getattr(together, side))[:, :, t : t + 1]
            assert torch.equal(rotate(x[:, :, t : t + 1], getattr(alone, side)), whole)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_have_their_own_positions(name: str) -> None:
    form = form_of(name)
    here = torch.stack((positions_for(form, SOME), positions_for(form, SOME[::-1])))
    x = random(2, 2, len(SOME), DIM, dtype=torch.float32)
    together = rotate(x, form.tables(here, here).k)
    for row in range(2):
        alone = rotate(x[row : row + 1], form.tables(here[row], here[row]).k)
        assert torch.equal(together[row : row + 1], alone)


@pytest.mark.parametrize("name", [name for name in STATED if num_axes(STATED[name]) == 1])
def test_cached_decoding_equals_the_full_forward(name: str) -> None:
    """Every peer centres xPos on the data: there, cached decoding differs by whole logits."""
    scheme = Scheme(rotary=STATED[name])
    q, k, v = (random(1, HEADS, 12, DIM, seed=s) for s in (1, 2, 3))
    whole = attention(q, k, v, scheme=scheme)
    tables = [STATED[name].tables(sequence(1, start=t), sequence(1, start=t)) for t in range(12)]
    cached: list[Tensor] = []  # keys as they were rotated, one by one
    for t in range(12):
        new_q, new_k = rotate_qk(q[:, :, t : t + 1], k[:, :, t : t + 1], tables[t])
        cached.append(new_k)
        step = attention(new_q, torch.cat(cached, 2), v[:, :, : t + 1])
        assert (step - whole[:, :, t : t + 1]).abs().max() < 1e-6  # tables are float32


@pytest.mark.parametrize("name", [name for name in STATED if num_axes(STATED[name]) == 3])
def test_a_causal_decoder_with_several_axes(name: str) -> None:
    """Tables filled in once; what is left of positions orders the tokens."""
    form = STATED[name]
    at = torch.tensor([[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2], [3, 3, 3], [4, 4, 4]])
    q, k, v = (random(1, HEADS, len(at), DIM, seed=s) for s in (1, 2, 3))
    scheme = Scheme(rotary=form.tables(at, at, dtype=torch.float64))
    whole = attention(q, k, v, scheme=scheme)
    turned_q, turned_k = rotate_qk(q, k, form.tables(at, at, dtype=torch.float64))
    logits = turned_q @ turned_k.transpose(-1, -2) / DIM**0.5
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    assert_roundings(whole, logits.masked_fill(hidden, -math.inf).softmax(-1) @ v, 64)


def test_a_layer_decodes_text_after_an_image() -> None:
    """M-RoPE in a causal layer with a cache: tokens are ordered by storage, not by coordinates."""
    torch.manual_seed(0)
    scheme = Scheme(rotary=MRope(Rope(DIM), (2, 3, 3)))
    layer = MultiHeadAttention(2 * DIM, 2, scheme=scheme).double()
    at = multimodal([Text(2), Image(2, 3), Text(3)])
    x = random(2, len(at), 2 * DIM)
    whole = layer(x, at)
    cache = KVCache()
    steps = [
        layer(x[:, :8], at[:8], cache=cache)
    ]  # text and image; then text, position by position
    steps += [layer(x[:, t : t + 1], cache=cache) for t in range(8, 11)]
    assert cache.positions is not None and torch.equal(cache.positions[0], at)
    assert (torch.cat(steps, 1) - whole).abs().max() < 2**-22 * whole.abs().max()


@pytest.mark.parametrize("name", STATED)
def test_a_form_is_a_value(name: str) -> None:
    form = STATED[name]
    assert replace(form) == form and hash(replace(form)) == hash(form)
    assert repr(form).startswith(type(form).__name__)
    rope = form if isinstance(form, AxialRope) else form.rope
    rope = replace(rope, base=7.0)
    other = rope if isinstance(form, AxialRope) else replace(form, rope=rope)
    assert other != form


def test_length_dependent_scaling_reaches_through() -> None:
    rope = Rope(DIM, scaling=DynamicNTK(2.0, 64))
    for form in (MRope(rope, (4, 4)), XPos(rope)):
        longer = form.at_length(256)
        assert longer.rope == rope.at_length(256) and longer != form
        assert form.at_length(32) == form


# --- xPos ----------------------------------------------------------------------------------------


def test_xpos_scores_decay_and_its_origin_does_not_show() -> None:
    q = k = torch.ones(1, 1, 1, DIM, dtype=torch.float64)
    scores = {}
    for origin in (0, 1000):
        form = XPos(Rope(DIM), origin=origin)
        at = torch.tensor([2000])
        near, far = (
            float(
                (
                    rotate(q, form.tables(at, at - d, dtype=torch.float64).q)
                    * rotate(k, form.tables(at, at - d, dtype=torch.float64).k)
                ).norm()
            )
            for d in (0, 1500)
        )
        scores[origin] = near, far
        assert far < 0.3 * near
    assert scores[0] == pytest.approx(scores[1000], rel=1e-12)


def test_xpos_refuses_positions_that_would_overflow() -> None:
    form = XPos(Rope(64))
    assert form.reach == 28_328
    edge = torch.tensor([form.reach])
    for side in ("q", "k"):
        table = getattr(form.tables(edge, edge), side)
        assert table.cos.isfinite().all() and (table.cos.abs() + table.sin.abs()).min() > 0
    with pytest.raises(ValueError, match=r"\[-28328, 28328\], got position 28329"):
        form.tables(edge + 1, edge)
    assert XPos(Rope(64), origin=20_000).tables(edge + 1, edge).k.cos.isfinite().all()


# --- Decoupled keys, rotation undone -------------------------------------------------------------


def test_deepseek_slice_equals_transformers() -> None:
    """DeepSeek-V3's decoupled keys: the last channels turn, adjacent pairs, scores equal."""
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs  # noqa: PLC0415
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import (  # noqa: PLC0415
        DeepseekV3Config,
    )

    config: Any = DeepseekV3Config()
    nope, turning = config.qk_nope_head_dim, config.qk_rope_head_dim
    at = torch.tensor([[0, 1, 7, 4000]])
    cos, sin = theirs.DeepseekV3RotaryEmbedding(config)(torch.zeros(1, 4, 4), at)
    q, k = (random(1, 2, 4, nope + turning, seed=s, dtype=torch.float32) for s in (1, 2))
    parts = theirs.apply_rotary_pos_emb_interleave(q[..., nope:], k[..., nope:], cos, sin)
    q_their, k_their = (
        torch.cat((x[..., :nope], p), -1) for x, p in zip((q, k), parts, strict=True)
    )

    rope = Rope(
        nope + turning,
        config.rope_parameters["rope_theta"],
        "adjacent",
        turning,
        placement="trailing",
        angle_dtype=torch.float32,
    )
    assert rope.start == nope
    q_ours, k_ours = rotate_qk(q, k, rope.tables(at, at))
    assert torch.equal(q_ours[..., :nope], q[..., :nope])
    # theirs comes back as (all first channels, all second channels): the same pairs, permuted
    unmixed = torch.cat((q_ours[..., nope::2], q_ours[..., nope + 1 :: 2]), -1)
    assert_roundings(unmixed, q_their[..., nope:].double(), 2)
    ours, their = (a @ b.transpose(-1, -2) for a, b in ((q_ours, k_ours), (q_their, k_their)))
    assert_roundings(ours, their.double(), 16)


@pytest.mark.parametrize("name", STATED)
def test_an_inverse_table_undoes_the_rotation_of_outputs(name: str) -> None:
    """DeepSeek-V4 caches one rotated tensor as keys and as values, and un-rotates the output."""
    form = STATED[name]
    at = positions_for(form, SOME)
    table: Table = form.tables(at, at, dtype=torch.float64).k
    x = random(1, 2, len(SOME), DIM)
    assert_roundings(rotate(rotate(x, table), table.inverse()), x, 64)


def test_output_rotation_equals_deepseek_v4() -> None:
    pytest.importorskip("transformers")
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs  # noqa: PLC0415

    rope = Rope(64, pairing="adjacent", rotary_dim=32, placement="trailing")
    at = torch.tensor([0, 3, 100, 4000, 9])
    table = rope.table(at)
    x = random(1, 2, 5, 64, dtype=torch.float32)
    cos, sin = table.cos, table.sin
    assert_roundings(rotate(x, table), theirs.apply_rotary_pos_emb(x, cos, sin).double(), 2)
    undone = theirs.apply_rotary_pos_emb(x, cos, -sin)
    assert_roundings(rotate(x, table.inverse()), undone.double(), 4)


def test_lightglue_is_a_shared_mixed_rotation() -> None:
    pytest.importorskip("transformers")
    from transformers.models.lightglue import modeling_lightglue as theirs  # noqa: PLC0415

    angles = random(2, 8, seed=3, dtype=torch.float32)
    keypoints = random(1, 5, 2, seed=4, dtype=torch.float32)
    mixed = MixedRope(16)
    with torch.no_grad():
        mixed.weight.copy_(angles)
    projected = (keypoints @ angles).repeat_interleave(2, dim=-1)[:, None]
    q, k = (random(1, 2, 5, 16, seed=s, dtype=torch.float32) for s in (1, 2))
    their, _ = theirs.apply_rotary_pos_emb(q, k, projected.cos()[:, 0], projected.sin()[:, 0])
    ours = rotate(q, mixed.table(keypoints))
    assert_roundings(ours, their.double(), 16)


def test_real_coordinates_keep_their_digits() -> None:
    """Fractions in float64, far integers: no detour through float32."""
    at = torch.tensor([[0.1, -0.3], [2**25 + 1.0, 1 / 3]], dtype=torch.float64)
    x = random(1, 1, 2, DIM)
    for name in ("axial", "mixed"):
        form = form_of(name)
        out = rotate(x, form.table(at, dtype=torch.float64), impl="reference")
        for t, position in enumerate(at.tolist()):
            expected = oracle_rotated(form, x[0, 0, t].tolist(), position, "query")
            assert out[0, 0, t].tolist() == pytest.approx(expected, abs=1e-8)
    assert Scheme(rotary=AxialRope(DIM)).real_positions


# --- Moving keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_moved_keys_are_those_of_the_new_positions(name: str) -> None:
    form = form_of(name)
    old, new = positions_for(form, SOME), positions_for(form, SOME[::-1])
    k = random(2, 2, len(SOME), DIM, dtype=torch.float64)
    turned = rotate(k, form.tables(old, old, dtype=torch.float64).k)
    moved = rerotate(turned, old, form, form, new_positions=new)
    assert_roundings(moved, rotate(k, form.tables(new, new, dtype=torch.float64).k), 64)


def test_b127_moving_touches_only_the_channels_that_turn() -> None:
    """ggml-org/llama.cpp#4889 (B127): Phi-2 has heads of 80, of which 32 turn."""
    rope = Rope(80, rotary_dim=32)
    k, at = random(1, 2, 6, 80, dtype=torch.bfloat16), sequence(6, start=10)
    moved = rerotate(k, at, rope, rope, new_positions=at - 10)
    assert torch.equal(moved[..., 32:], k[..., 32:])
    expected = rotate(k, rope.table(torch.full((6,), -10)), impl="reference")
    assert_roundings(moved, expected.double(), 2)


@pytest.mark.parametrize(
    ("dtype", "drift", "single"), [(torch.float16, 7.5e-2, 2.5e-4), (torch.bfloat16, 0.66, 1.7e-3)]
)
def test_b128_one_move_is_rounded_once(dtype: torch.dtype, drift: float, single: float) -> None:
    """ggml-org/llama.cpp#4097 (B128): a thousand shifts by −1 of a rounded key drift away."""
    rope, k = Rope(64), random(1, 8, 1, 64)
    start = sequence(1, start=1000)
    turned = rotate(k, rope.table(start, dtype=torch.float64)).to(dtype)
    steps = turned
    for t in range(1000, 0, -1):
        steps = rerotate(steps, start * 0 + t, rope, rope, new_positions=start * 0 + t - 1)
    once = rerotate(turned, start, rope, rope, new_positions=start * 0)

    def error(x: Tensor) -> float:
        return float((x.double() - k).norm() / k.norm())

    assert error(steps) == pytest.approx(drift, rel=0.5)
    assert error(once) == pytest.approx(single, rel=0.5)


def test_keys_of_other_pairs_cannot_be_moved() -> None:
    k, at = random(1, 2, 3, 16), sequence(3)
    for other in (Rope(16, pairing="adjacent"), Rope(16, rotary_dim=8)):
        with pytest.raises(ValueError, match="they turn other pairs"):
            rerotate(k, at, Rope(16), other)


# --- Query scales --------------------------------------------------------------------------------

LONG = [0, 1, 1000, 8190, 8191, 8192, 16_383, 16_384, 32_768, 100_000, 262_143]
SCALES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "llama4": (StepLogScale(0.1, 8192), lambda p: oracles.llama4_scale(p, 0.1, 8192)),
    "ministral3": (
        StepLogScale(0.1, 16_384, count_from=0),
        lambda p: oracles.ministral_scale(p, 0.1, 16_384),
    ),
    "qwen-v1": (LogScale(8192), lambda p: oracles.log_n_scale(p, 8192)),
    "su-2021": (
        LogScale(512, clamp=False),
        lambda p: math.log(p + 1) / math.log(512),
    ),
    "inkling": (
        LogScale(8192, coefficient=0.2),
        lambda p: oracles.inkling_scale(p, 0.2, 8192),
    ),
    "beam": (PowerScale(2048, 0.1), oracles.beam_scale),
}


@pytest.mark.parametrize("name", SCALES)
def test_query_scale_is_the_formula(name: str) -> None:
    scale, expected = SCALES[name]
    factors = scale.factors(torch.tensor(LONG))
    assert factors.shape == (1, 1, len(LONG))
    assert factors[0, 0].tolist() == pytest.approx([expected(p) for p in LONG], rel=1e-12)
    rows = scale.factors(torch.tensor([LONG, LONG[::-1]]))
    assert torch.equal(rows[0], factors[0]) and torch.equal(rows[1], factors[0].flip(-1))


@pytest.mark.parametrize("name", SCALES)
def test_padding_gets_a_finite_scale(name: str) -> None:
    scale, _ = SCALES[name]
    padded = scale.factors(torch.tensor([[-1, -1, 0]]))
    assert padded.isfinite().all()


def test_query_scales_equal_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.beam.modeling_beam import compute_attention_scaling  # noqa: PLC0415
    from transformers.models.ministral3.modeling_ministral3 import (  # noqa: PLC0415
        get_llama_4_attn_scale,
    )
    from transformers.models.mistral_large4.modeling_mistral_large4 import (  # noqa: PLC0415
        MistralLarge4TextSoftmaxScaling,
    )

    at: Any = torch.tensor([LONG])
    ministral = get_llama_4_attn_scale(at, 0.1, 16_384)[0, 0, :, 0]
    ours = StepLogScale(0.1, 16_384, count_from=0).factors(at)[0, 0]
    assert_roundings(ours.float(), ministral.double(), 2)
    beam = compute_attention_scaling(at)[0, 0, :, 0]
    assert_roundings(PowerScale(2048, 0.1).factors(at)[0, 0].float(), beam.double(), 4)

    learned, theirs = LearnedLogScale(3), MistralLarge4TextSoftmaxScaling(3)
    for ours, their, values in (
        (learned.scale, theirs.scale, [0.1, 0.2, -0.05]),
        (learned.bias, theirs.bias, [1.0, 0.9, 1.1]),
    ):
        assert ours is not None
        ours.data.copy_(torch.tensor(values))
        their.data.copy_(torch.tensor(values))
    q = random(1, 3, len(LONG), 8, dtype=torch.float32)
    expected = theirs(q, at, head_dim_first=True)
    assert_roundings(q * learned.factors(at)[..., None], expected.double(), 4)


def test_a_scheme_applies_its_query_scale() -> None:
    """Logits times the factor of the query's own position, in every implementation."""
    q, k, v = (random(2, HEADS, 9, DIM, seed=s) for s in (1, 2, 3))
    at = torch.tensor([0, 10, 400, 401, 5000, 5001, 5002, 9000, 20_000])
    rope = Rope(DIM)
    for scale in (
        StepLogScale(0.5, 400),
        LogScale(64),
        LearnedLogScale(HEADS, bias=False).double(),
    ):
        scheme = Scheme(rotary=rope, query_scale=scale)
        tables = rope.tables(at, at, dtype=torch.float64)
        turned_q, turned_k = rotate_qk(q, k, tables)
        logits = turned_q @ turned_k.transpose(-1, -2) / DIM**0.5 * scale.factors(at)[..., None]
        hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        expected = logits.masked_fill(hidden, -math.inf).softmax(-1) @ v
        out = attention(q, k, v, scheme=scheme, k_pos=at, impl="reference")
        assert_roundings(out, expected, 256)
        fused = attention(q.float(), k.float(), v.float(), scheme=scheme, k_pos=at)
        assert_roundings(fused, expected, 64)
        last = attention(q[:, :, -1:], k, v, scheme=scheme, k_pos=at, impl="reference")
        assert_roundings(last, expected[:, :, -1:], 256)


# --- Head slices under tensor parallelism --------------------------------------------------------


def test_the_heads_of_a_rank_keep_all_that_the_bias_says_of_itself() -> None:
    assert {*TRAITS, "constant"} == set(LogitBias.__annotations__)
    assert HeadSlice(Alibi(8), 4, 4).falls
    local = HeadSlice(BeitBias(4, window=(2, 3)), 0, 2)
    layer = MultiHeadAttention(16, 2, scheme=Scheme(bias=local), mask=None)
    cells = with_class_token(grid(2, 3))  # refused as padding where nobody says what −1 is
    assert layer(torch.ones(1, 7, 16), cells).shape == (1, 7, 16)


def test_b143_slopes_of_a_rank_are_those_of_its_heads() -> None:
    """Megatron-DeepSpeed#227, flashinfer#1606 (B143): 8 heads over 2 ranks."""
    local = HeadSlice(Alibi(8), 4, 4)
    slopes = -local.per_distance(torch.tensor([1]), dtype=torch.float64)[:, 0]
    assert slopes.tolist() == [0.03125, 0.015625, 0.0078125, 0.00390625]


def biases() -> list[LogitBias]:
    torch.manual_seed(1)
    return [Alibi(6), Alibi(6, learned=True), T5Bias(6), SwinBias(6, window=(2, 3))]


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (0, 2), (1, 2), (2, 3), (5, 6)])
def test_ranks_together_compute_what_one_would(index: int, rank: int, num_ranks: int) -> None:
    bias = biases()[index].double()
    at = grid(2, 3) if bias.num_axes == 2 else torch.tensor([0, 1, 5, 6, 300, 301])
    q, k, v = (random(2, 6, 6, DIM, seed=s) for s in (1, 2, 3))
    count = 6 // num_ranks
    own = slice(rank * count, (rank + 1) * count)
    local = heads_of_rank(Scheme(bias=bias), num_heads=6, rank=rank, num_ranks=num_ranks)
    assert local.bias is not None
    assert torch.equal(local.bias.dense(at, at), bias.dense(at, at)[:, own])
    for impl in ("reference", "sdpa"):
        run: dict[str, Any] = {"k_pos": at, "mask": None, "impl": impl}
        whole = attention(q, k, v, scheme=Scheme(bias=bias), **run)
        part = attention(q[:, own], k[:, own], v[:, own], scheme=local, **run)
        assert_roundings(part, whole[:, own], 16)


def test_gradients_reach_the_heads_of_the_slice_alone() -> None:
    bias = T5Bias(6)
    local = HeadSlice(bias, 2, 2)
    assert dict(local.named_parameters()).keys() == {"bias.weight"}
    local.dense(sequence(9), sequence(9)).square().sum().backward()
    assert bias.weight.grad is not None
    touched = bias.weight.grad.abs().sum(0) > 0
    assert touched.tolist() == [False, False, True, True, False, False]


def test_learned_query_scales_are_cut_too() -> None:
    whole = LearnedLogScale(6)
    whole.scale.data.copy_(torch.arange(6.0))
    local = heads_of_rank(Scheme(query_scale=whole), num_heads=6, rank=1, num_ranks=2)
    assert local.query_scale is not None
    at = torch.tensor([0, 7, 99])
    assert torch.equal(local.query_scale.factors(at), whole.factors(at)[:, 3:])
    assert set(local.modules()) == {"query_scale"}


def test_a_slice_says_what_does_not_fit() -> None:
    scheme = Scheme(bias=Alibi(8))
    with pytest.raises(ValueError, match="num_heads 8 must divide over num_ranks 3"):
        heads_of_rank(scheme, num_heads=8, rank=0, num_ranks=3)
    with pytest.raises(ValueError, match="bias= was made for 8 heads, not 4"):
        heads_of_rank(scheme, num_heads=4, rank=0, num_ranks=2)
    with pytest.raises(ValueError, match="heads 6 to 9 were asked for of 8 heads"):
        HeadSlice(Alibi(8), 6, 4)
    rope = Scheme(rotary=Rope(16))
    assert heads_of_rank(rope, num_heads=4, rank=1, num_ranks=2) == rope


# --- What goes wrong -----------------------------------------------------------------------------

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: MRope(128, (16, 24, 24)), r"MRope changes a Rope: MRope\(Rope"),  # pyright: ignore
    (lambda: MRope(Rope(128), (16, 24, 20)), r"add up to the 64 pairs .* \(16, 24, 20\) = 60"),
    (lambda: MRope(Rope(16), (8,)), "two coordinates or more"),
    (lambda: MRope(Rope(16), (2, 3, 3), "mixed"), "order must be 'contiguous'"),  # pyright: ignore
    (lambda: MRope(Rope(16), (2, 3, 3), "interleaved"), r"gives the coordinates \(3, 3, 2\)"),
    (lambda: MRope(Rope(16), (4, 4), (0, 1) * 3), "gives the coordinates"),
    (lambda: XPos(Rope(16), scale_base=0), "scale_base must be positive"),
    (lambda: XPos(Rope(16), origin=0.5), "origin must be an int"),  # pyright: ignore
    (lambda: XPos(16), "XPos changes a Rope"),  # pyright: ignore
    (lambda: XPos(MRope(Rope(16), (4, 4))), "XPos changes a Rope"),  # pyright: ignore
    (lambda: MRope(XPos(Rope(16)), (4, 4)), "MRope changes a Rope"),  # pyright: ignore
    (lambda: AxialRope(0), "head_dim must be an int"),
    (lambda: AxialRope(16, base=-1), "base must be a positive finite number"),
    (lambda: AxialRope(16, split=0), "split must be a number of axes"),
    (lambda: AxialRope(16, split=(8, 10)), "together at most head_dim = 16"),
    (lambda: AxialRope(16, axis_order=(0, 0)), r"must order the axes \(0, 1\), got \(0, 0\)"),
    (lambda: AxialRope(16, split=(4, 8), order="alternating"), "axes of equal width"),
    (lambda: AxialRope(16, order="striped"), "order must be one of"),  # pyright: ignore
    (lambda: AxialRope(16, scaling=4.0), "scaling must be a scaling method"),  # pyright: ignore
    (lambda: MixedRope(18), "positive multiple of 4, got 18"),
    (lambda: MixedRope(16, num_heads=0), "num_heads must be at least 1"),
    (lambda: MixedRope(16, pairing="neox"), "pairing must be"),  # pyright: ignore
    (lambda: LogScale(1), "original_length must exceed 1, got 1"),
    (lambda: LogScale(8192, math.inf), "coefficient must be finite"),
    (lambda: StepLogScale(0.1, 0), "step must be at least 1, got 0"),
    (lambda: StepLogScale(0.1, 8, count_from=2), "count_from must be 0 or 1"),
    (lambda: PowerScale(0, 0.1), "original_length must be at least 1"),
    (lambda: LearnedLogScale(0), "num_heads must be at least 1"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_mistakes_name_what_was_given(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("name", ["contiguous", "axial", "mixed"])
def test_b111_positions_need_their_axes(name: str) -> None:
    """huggingface/transformers#44911 (B111): axes are the last dimension, never the first."""
    form, axes = form_of(name), num_axes(form_of(name))
    for shape in ((9,), (axes, 9), (axes, 1, 9), (1, 9, axes + 1)):
        at = torch.zeros(shape, dtype=torch.int64)
        with pytest.raises(ValueError, match=rf"must have shape \[T, {axes}\] or \[B, T, {axes}\]"):
            form.tables(at, at)
    half = torch.zeros(9, axes, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="must be integers"):
        form.tables(half, half)


def test_forms_are_rotary_encodings() -> None:
    for form in (*STATED.values(), MixedRope(16)):
        scheme = Scheme(rotary=form)
        assert scheme.num_axes == num_axes(form)
        at = positions_for(form, SOME)
        made = form.tables(at, at)
        assert isinstance(made, RotaryTables) and made.encoding is form
        assert (made.q is made.k) == (not isinstance(form, XPos))
