"""Laws over the whole registry: what must hold for every encoding, now and when one is added."""

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import (
    Alibi,
    AxesBias,
    BeitBias,
    Fire,
    Kerple,
    KVCache,
    Learned,
    LearnedScaleRope,
    LogitBias,
    Rope,
    Sandwich,
    Scheme,
    Sinusoidal,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    attention,
    causal,
    linear_attention,
    rerotate,
    rotate,
    rotate_qk,
    same_segment,
    window,
)
from posenc.masks import Mask
from posenc.positions import from_lengths, from_padding_mask, grid, sequence, with_class_token
from posenc.registry import ENCODINGS, SCALINGS, encoding, scaling
from support import (
    BIASES,
    CAUSAL,
    DIM,
    HEAD_DIM,
    HEADS,
    NAMES,
    assert_roundings,
    build,
    cells_of,
    chunks,
    eps,
    every_rotation,
    heads,
    layer,
    mask_of,
    positions_of,
    random,
)

rotate_module = importlib.import_module("posenc.rotate")  # the function has its name
ROTARY = tuple(name for name in NAMES if build(name).rotary is not None)
# FIRE's normaliser is the query's own position, BEiT's class token stands at a place of its own
FIXED = {"fire", "beit"}
RELATIVE = tuple(name for name in NAMES if build(name).additive is None and name not in FIXED)
ROPES = {
    "half": Rope(HEAD_DIM),
    "adjacent": Rope(HEAD_DIM, pairing="adjacent"),
    "partial": Rope(HEAD_DIM, rotary_dim=4),
    "trailing": Rope(HEAD_DIM, rotary_dim=4, pairing="adjacent", placement="trailing"),
    **{name: Rope(HEAD_DIM, scaling=method.build(4.0, 64)) for name, method in SCALINGS.items()},
}
positions_far_and_wide = st.lists(st.integers(-(10**6), 2**31), min_size=1, max_size=9)


# --- The registry itself -------------------------------------------------------------------------


def test_names_are_those_of_the_entries_and_unknown_ones_list_them() -> None:
    assert all(encoding(name).name == name for name in ENCODINGS)
    assert all(scaling(name).name == name for name in SCALINGS)
    with pytest.raises(ValueError, match=r"no encoding 'ropee'; there are .*rope"):
        encoding("ropee")
    with pytest.raises(ValueError, match=r"no scaling 'yarm'; there are .*yarn"):
        scaling("yarm")


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_says_where_it_enters(name: str) -> None:
    scheme = build(name)
    enters = [f for f in ("additive", "rotary", "bias", "relative") if getattr(scheme, f)]
    assert ENCODINGS[name].enters == (", ".join(enters) or "nothing")


def test_positions_say_where_tokens_are() -> None:
    assert sequence(3, start=5).tolist() == [5, 6, 7]
    positions, segments = from_lengths([3, 1, 2])
    assert positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert segments.tolist() == [0, 0, 0, 1, 2, 2]
    real = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1]])
    assert from_padding_mask(real).tolist() == [[-1, 0, 1, -1], [0, -1, 1, 2]]
    assert from_padding_mask(real == 1, padding=7).tolist() == [[7, 0, 1, 7], [0, 7, 1, 2]]
    assert grid(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


# --- Distance alone ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RELATIVE)
@given(shift=st.integers(-(10**6), 10**6))
def test_shifting_every_position_changes_nothing(name: str, shift: int) -> None:
    scheme, at = build(name, length=7), positions_of(name, 7)
    reach = getattr(scheme.rotary, "reach", None)  # amplitudes of xPos end somewhere
    shift = shift if reach is None else shift % (reach - 7)
    q, k, v = heads(7)
    run: dict[str, Any] = {"scheme": scheme, "mask": mask_of(name)}
    exact = attention(q, k, v, k_pos=at, impl="reference", **run)
    shifted = attention(q, k, v, k_pos=at + shift, impl="reference", **run)
    assert (shifted - exact).abs().max() < 1e-8  # angles of 10**6 radians round at 2**-33
    fused = attention(q.float(), k.float(), v.float(), k_pos=at + shift, **run)
    assert_roundings(fused, exact, 16)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
@given(shift=st.integers(-(10**6), 10**6))
def test_rotary_scores_depend_on_distance_alone(rope: Rope, shift: int) -> None:
    q, k, _ = heads(5, batch=1)
    at = torch.tensor([0, 1, 5, 70, 3])

    def scores(positions: Tensor) -> Tensor:
        table = rope.table(positions, dtype=torch.float64)
        return rotate(q, table) @ rotate(k, table).transpose(-1, -2)

    assert (scores(at + shift) - scores(at)).abs().max() < 1e-8


# --- Rotations are rotations ---------------------------------------------------------------------


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
@given(at=positions_far_and_wide)
def test_rotation_keeps_norms_up_to_the_attention_factor(rope: Rope, at: list[int]) -> None:
    x = random(1, 2, len(at), HEAD_DIM)
    table = rope.table(torch.tensor(at), dtype=torch.float64)
    turned = slice(table.start, table.start + table.rotary_dim)
    before, after = (t[..., turned].norm(dim=-1) for t in (x, rotate(x, table)))
    assert_roundings(after, before * rope.frequencies().attention_factor, 16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize(("rotary_dim", "placement"), [(2, "leading"), (6, "trailing")])
def test_channels_outside_the_rotation_pass_bit_equal(
    dtype: torch.dtype, pairing: str, rotary_dim: int, placement: str
) -> None:
    rope = Rope(8, 1e4, pairing, rotary_dim, placement=placement)  # pyright: ignore[reportArgumentType]
    x = random(2, 3, 5, 8, dtype=dtype)
    for impl, out in every_rotation(x, rope.table(sequence(5, start=1))):
        assert out.dtype == dtype, impl
        inside = torch.zeros(8, dtype=torch.bool)
        inside[rope.start : rope.start + rotary_dim] = True
        assert torch.equal(out[..., ~inside], x[..., ~inside])
        assert (out[..., inside] != x[..., inside]).any(-1).all()


def test_position_zero_turns_nothing() -> None:
    x = random(1, 2, 1, HEAD_DIM, dtype=torch.float32)
    for impl, out in every_rotation(x, Rope(HEAD_DIM).table(torch.tensor([0]))):
        assert torch.equal(out, x), impl


@given(at=positions_far_and_wide)
def test_inverse_table_undoes_a_rotation(at: list[int]) -> None:
    x = random(1, 2, len(at), HEAD_DIM)
    for rope in ROPES.values():
        table = rope.table(torch.tensor(at), dtype=torch.float64)
        assert_roundings(rotate(rotate(x, table), table.inverse()), x, 16)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("length", [1, 7, 37])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_every_rotation_equals_the_reference_forward_and_backward(
    rope: Rope, length: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotate_module, "BLOCK_BYTES", 1 << 9)  # a few tokens at a time
    at = sequence(length, start=5) if shared else random(2, length).mul(1e4).long()
    table = rope.table(at)
    weight = random(2, 3, length, HEAD_DIM, seed=5)
    x = random(2, length, 3, HEAD_DIM, dtype=torch.float32).transpose(1, 2)  # another stride
    assert length == 1 or not x.is_contiguous()
    leaf = x.double().requires_grad_()
    exact = rotate(leaf, table, impl="reference")
    (gradient,) = torch.autograd.grad((exact * weight).sum(), leaf)
    for _, out in every_rotation(x, table):
        assert_roundings(out, exact.detach(), 2)
    mine = x.clone().requires_grad_()
    for _, out in every_rotation(mine, table):
        (made,) = torch.autograd.grad((out * weight.float()).sum(), mine)
        assert_roundings(made, gradient, 2)
    in_place = x.clone()
    rotate_qk(in_place, x.clone(), rope.tables(at, at), inplace=True)
    assert_roundings(in_place, exact.detach(), 2)


# --- Nothing depends on which other positions are in the call ------------------------------------


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
@given(at=positions_far_and_wide)
def test_keys_rotated_one_at_a_time_equal_keys_rotated_together(rope: Rope, at: list[int]) -> None:
    positions = torch.tensor(at)
    k = random(1, 2, len(at), HEAD_DIM, dtype=torch.float32)
    for impl, together in every_rotation(k, rope.table(positions)):
        alone = [
            rotate(k[:, :, i : i + 1], rope.table(positions[i : i + 1]), impl=impl)
            for i in range(len(at))
        ]
        assert torch.equal(torch.cat(alone, 2), together), impl


@pytest.mark.parametrize("encoder", [Sinusoidal(6), Sinusoidal(5, denominator="d-2"), "learned"])
@given(at=st.lists(st.integers(0, 30), min_size=1, max_size=9))
def test_vectors_encoded_one_at_a_time_equal_vectors_encoded_together(
    encoder: Any, at: list[int]
) -> None:
    encoder = Learned(31, 6) if encoder == "learned" else encoder
    positions = torch.tensor(at)
    together = encoder.encode(positions)
    alone = [encoder.encode(positions[i : i + 1]) for i in range(len(at))]
    assert torch.equal(torch.cat(alone), together)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
@given(
    at=st.lists(st.lists(st.integers(-99, 10**7), min_size=3, max_size=3), min_size=2, max_size=2)
)
def test_rows_of_a_batch_have_their_own_positions(rope: Rope, at: list[list[int]]) -> None:
    x = random(2, 2, 3, HEAD_DIM, dtype=torch.float32)
    for impl, together in every_rotation(x, rope.table(torch.tensor(at))):
        for row in range(2):
            alone = rotate(x[row : row + 1], rope.table(torch.tensor(at[row])), impl=impl)
            assert torch.equal(together[row : row + 1], alone), impl


# --- A model of every encoding: caching, chunking, packing, padding ------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_decoding_equals_the_full_forward(name: str) -> None:
    model, x = layer(name), random(2, 9, DIM)
    cache = KVCache()
    steps = [model(x[:, t : t + 1], cache=cache) for t in range(9)]
    assert_roundings(torch.cat(steps, 1), model(x), 64)
    assert len(cache) == 9


@pytest.mark.parametrize("name", CAUSAL)
@given(sizes=st.lists(st.integers(1, 6), max_size=5))
def test_any_chunking_equals_the_whole(name: str, sizes: list[int]) -> None:
    model, x = layer(name), random(2, 11, DIM)
    cache = KVCache()
    pieces = [model(x[:, piece], cache=cache) for piece in chunks(11, sizes)]
    assert_roundings(torch.cat(pieces, 1), model(x), 64)


@pytest.mark.parametrize("name", NAMES)
@given(sizes=st.lists(st.integers(1, 6), max_size=5))
def test_any_chunking_of_queries_equals_the_whole(name: str, sizes: list[int]) -> None:
    q, k, v = heads(11)
    run: dict[str, Any] = {"scheme": build(name, length=11), "mask": mask_of(name)}
    at = positions_of(name, 11)
    whole = attention(q, k, v, k_pos=at, **run)
    pieces = [
        attention(q[:, :, piece], k, v, q_pos=at[piece], k_pos=at, **run)
        for piece in chunks(11, sizes)
    ]
    assert_roundings(torch.cat(pieces, 2), whole, 64)


@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_equal_separate_documents(name: str) -> None:
    lengths = [5, 1, 7]
    model, x = layer(name), random(2, sum(lengths), DIM)
    whole, segments = positions_of(name, 24), from_lengths(lengths)[1]
    at = torch.cat([whole[:n] for n in lengths])
    packed = model(x, at, segments=segments)
    start = 0
    for n in lengths:
        alone = model(x[:, start : start + n], whole[:n])
        assert_roundings(packed[:, start : start + n], alone, 64)
        start += n


def padded(name: str, lengths: list[int], width: int) -> tuple[Tensor, Tensor]:
    """Positions and segments `[B, width]` of left-padded rows; padding is a segment of its own."""
    real = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    count = from_padding_mask(real, padding=0 if ENCODINGS[name].has_limit else -1)
    if ENCODINGS[name].positions is not None:
        return positions_of(name, 24)[count.clamp(min=0)], real
    return count, real


@pytest.mark.parametrize("name", NAMES)
def test_left_padding_equals_no_padding(name: str) -> None:
    model, x = layer(name), random(3, 6, DIM)
    lengths = [2, 6, 5]
    at, real = padded(name, lengths, 6)
    out = model(x, at, segments=real)
    assert out.isfinite().all()
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1, 6 - n :], positions_of(name, 24)[:n])
        assert_roundings(out[row : row + 1, 6 - n :], alone, 64)


@pytest.mark.parametrize("name", CAUSAL)
def test_left_padded_rows_decode_like_unpadded_ones(name: str) -> None:
    model, x = layer(name), random(2, 9, DIM)
    lengths = [3, 5]
    at, real = padded(name, lengths, 5)
    cache = KVCache()
    model(x[:, :5], at, segments=real, cache=cache)
    ones = torch.ones(2, 1, dtype=torch.int64)
    steps = [model(x[:, t : t + 1], segments=ones, cache=cache) for t in range(5, 9)]
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1, 5 - n :])[:, n:]
        assert_roundings(torch.cat(steps, 1)[row : row + 1], alone, 64)


@pytest.mark.parametrize("name", NAMES)
def test_order_of_storage_does_not_matter(name: str) -> None:
    """A rolled cache keeps keys in any order: positions say where they are."""
    q, k, v = heads(7)
    at, order = positions_of(name, 7), torch.tensor([3, 4, 5, 6, 0, 1, 2])
    run: dict[str, Any] = {"scheme": build(name, length=7), "mask": mask_of(name), "q_pos": at}
    whole = attention(q, k, v, k_pos=at, **run)
    rolled = attention(q, k[:, :, order], v[:, :, order], k_pos=at[order], **run)
    assert_roundings(rolled, whole, 64)


@pytest.mark.parametrize("name", NAMES)
def test_tables_made_once_serve_every_layer(name: str) -> None:
    q, k, v = heads(7)
    scheme, at = build(name, length=7), positions_of(name, 7)
    mask = mask_of(name)
    prepared = scheme.prepared(at, at)
    assert (prepared is scheme) == (scheme.rotary is None)
    left = {"q_pos": at, "k_pos": at} if prepared.num_axes == scheme.num_axes else {}
    assert torch.equal(
        attention(q, k, v, scheme=prepared, mask=mask, **left),  # pyright: ignore[reportArgumentType]
        attention(q, k, v, scheme=scheme, mask=mask, q_pos=at, k_pos=at),
    )


# --- Biases: one definition, every form ----------------------------------------------------------

BIAS_VARIANTS: dict[str, LogitBias] = {
    "alibi": Alibi(3),
    "alibi-symmetric": Alibi(3, symmetric=True),
    "alibi-learned": Alibi(3, learned=True),
    "t5": T5Bias(3),
    "t5-causal": T5Bias(3, bidirectional=False),
    "kerple": Kerple(3),
    "kerple-power": Kerple(3, form="power"),
    "sandwich": Sandwich(3),
    "fire": Fire(3),
    "swin": SwinBias(3, window=(3, 4)),
    "levit": SwinBias(3, window=(3, 4), symmetric=True),
    "swinv2": SwinV2Bias(3, window=(3, 4)),
    "beit": BeitBias(3, window=(3, 4)),
    "axes": AxesBias([T5Bias(3), Alibi(3, symmetric=True)]),
}


@pytest.mark.parametrize(
    "bias", [bias for bias in BIAS_VARIANTS.values() if bias.by_distance], ids=repr
)
def test_score_mod_of_a_bias_of_distance_is_a_lookup(
    bias: LogitBias, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a vector that is there before the kernel runs: compilers take no tensor made inside."""
    q_pos = torch.stack((torch.arange(9) + 4, torch.arange(9).flip(0) * 2))
    k_pos = torch.arange(13) - 2
    dense = bias.dense(q_pos, k_pos, dtype=torch.float64)
    mod = bias.score_mod(q_pos, k_pos)
    monkeypatch.setattr(type(bias), "value", None)  # not asked again
    index = [torch.arange(n) for n in (2, 3, 9, 13)]
    found = mod(torch.zeros((), dtype=torch.float64), *torch.meshgrid(*index, indexing="ij"))
    roundings = 4 * eps(torch.float32) * dense.abs().max()  # powers round by their shape
    assert (found - dense).abs().max() <= roundings


@pytest.mark.parametrize("bias", BIAS_VARIANTS.values(), ids=BIAS_VARIANTS.keys())
def test_dense_bias_equals_score_mod_equals_per_distance(bias: LogitBias) -> None:
    if isinstance(bias, BeitBias):
        cells = with_class_token(grid(3, 4))
        q_pos, k_pos = cells[[0, 1, 12]], torch.stack([cells, cells.flip(0)])
    elif bias.num_axes == 2:
        q_pos, k_pos = grid(3, 4)[[0, 5, 11]], torch.stack([grid(3, 4), grid(3, 4).flip(0)])
    else:
        q_pos = torch.tensor([[0, 7, 300], [2, 2, 1_000_003]])
        k_pos = torch.tensor([1, 0, 299, 40, 1_000_000])
    dense = bias.dense(q_pos, k_pos, dtype=torch.float64)
    mod = bias.score_mod(q_pos, k_pos)
    zero = torch.zeros((), dtype=torch.float64)
    batch, _, num_queries, num_keys = dense.shape
    index = [torch.arange(n) for n in (batch, 3, num_queries, num_keys)]
    b, h, i, j = torch.meshgrid(*index, indexing="ij")
    # powers and products of matrices round by the shape that they are computed in
    rounds = isinstance(bias, Fire) or getattr(bias, "form", "") == "power"
    roundings = 4 * eps(torch.float32) * dense.abs().max() if rounds else 0.0
    assert (mod(zero, b, h, i, j) - dense).abs().max() <= roundings
    if bias.by_distance:
        distance = q_pos[0][:, None] - k_pos[None, :]
        vector = bias.per_distance(distance.flatten(), dtype=torch.float64)
        assert (vector.view(3, num_queries, num_keys) - dense[0]).abs().max() <= roundings
    else:
        with pytest.raises(ValueError, match="does not depend on distance alone"):
            bias.per_distance(torch.tensor([0]))


@pytest.mark.parametrize("name", BIASES)
def test_a_bias_reaches_the_logits_of_its_own_head(name: str) -> None:
    """Logits of zero queries are the bias: the weights are its softmax, head by head."""
    scheme, at = build(name, length=6), positions_of(name, 6)
    assert scheme.bias is not None
    k = random(1, HEADS, 6, HEAD_DIM)
    v = torch.eye(6, dtype=torch.float64).expand(1, HEADS, 6, 6)
    for impl in ("reference", "sdpa"):
        weights = attention(
            torch.zeros_like(k),
            k,
            v,
            scheme=scheme,
            k_pos=at,
            mask=causal if scheme.bias.causal_only else None,
            impl=impl,  # pyright: ignore[reportArgumentType]
        )
        dense = scheme.bias.dense(at, at, dtype=torch.float64)
        if scheme.bias.causal_only:
            dense = dense.masked_fill(at[:, None] < at, float("-inf"))
        assert_roundings(weights, dense.softmax(-1), 64)


# --- Sinusoids, learned tables, learned scales ---------------------------------------------------


@pytest.mark.parametrize("layout", ["alternating", "concatenated"])
@pytest.mark.parametrize("denominator", ["d", "d-2"])
@given(p=st.integers(-(10**6), 10**6), k=st.integers(-(10**6), 10**6))
def test_a_sinusoid_at_p_plus_k_is_a_fixed_matrix_times_the_one_at_p(
    layout: str, denominator: str, p: int, k: int
) -> None:
    encoding = Sinusoidal(10, denominator=denominator, layout=layout)  # pyright: ignore[reportArgumentType]
    here, there = encoding.encode(torch.tensor([p, p + k]), dtype=torch.float64)
    shift = encoding.shift(k)
    assert (shift @ here - there).abs().max() < (abs(p) + abs(k) + 1) * 2**-50
    assert_roundings(shift @ shift.T, torch.eye(10), 4)  # T_k itself is a rotation


def test_a_sinusoid_of_odd_width_has_no_shift_matrix() -> None:
    with pytest.raises(ValueError, match="odd dim"):
        Sinusoidal(5).shift(1)


@pytest.mark.parametrize(("old", "new"), [(5, 9), (9, 5), (4, 7), (3, 3)])
@pytest.mark.parametrize("padding_idx", [None, 1])
def test_resized_table_keeps_its_ends_and_is_linear_between(
    old: int, new: int, padding_idx: int | None
) -> None:
    table = Learned(old, 6, padding_idx=padding_idx)
    longer = table.resized(new)
    assert (longer.num_positions, longer.offset) == (new, table.offset)
    assert torch.equal(longer.weight[: table.offset], table.weight[: table.offset])
    rows, made = table.weight[table.offset :].double(), longer.weight[table.offset :]
    for i in range(new):
        where = i * (old - 1) / (new - 1)
        low = min(int(where), old - 2)
        expected = rows[low] + (where - low) * (rows[low + 1] - rows[low])
        assert_roundings(made[i], expected, 4, size=1.0)
    assert torch.equal(made[[0, -1]], table.weight[table.offset :][[0, -1]])
    longer.encode(torch.tensor([new - 1]))
    with pytest.raises(ValueError, match=f"size {new}"):
        longer.encode(torch.tensor([new]))


@pytest.mark.parametrize("blend", [None, 0.3])
def test_learned_scale_gradient_is_the_finite_difference(blend: float | None) -> None:
    """An integer cast of the scaled positions would make it zero."""
    rotary = LearnedScaleRope(Rope(HEAD_DIM), initial_scale=0.7, blend=blend).double()
    q, k, v = heads(6, batch=1)
    at = torch.tensor([0, 1, 3, 10, 11, 12])  # gaps
    weight = random(1, HEADS, 6, HEAD_DIM, seed=9)

    def loss() -> Tensor:
        scheme = Scheme(rotary=rotary)
        return (attention(q, k, v, scheme=scheme, k_pos=at, impl="reference") * weight).sum()

    (gradient,) = torch.autograd.grad(loss(), rotary.scale)
    step = 1e-5
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            rotary.scale.add_(sign * step)
            ends.append(loss())
            rotary.scale.sub_(sign * step)
    assert abs(gradient) > 0.1
    assert gradient == pytest.approx(((ends[0] - ends[1]) / (2 * step)).item(), rel=1e-6)


def test_learned_scale_gets_a_gradient_through_every_implementation() -> None:
    model = layer("learned-scale-rope")
    rotary = model.scheme.rotary
    assert isinstance(rotary, LearnedScaleRope)
    model(random(2, 6, DIM)).square().sum().backward()
    assert rotary.scale.grad is not None and rotary.scale.grad.abs() > 1e-3
    rotary.scale.grad = None
    q, k, v = heads(6)
    linear_attention(q, k, v, scheme=model.scheme).square().sum().backward()
    grad = rotary.scale.grad
    assert grad is not None and grad.abs() > 1e-3


def test_real_positions_get_a_gradient() -> None:
    at = torch.tensor([0.0, 1.5, 4.25], dtype=torch.float64, requires_grad=True)
    table = LearnedScaleRope(Rope(HEAD_DIM)).table(at, dtype=torch.float64)
    table.sin[0, :, 0].sum().backward()
    assert at.grad is not None
    assert torch.allclose(at.grad, at.detach().cos())


def test_blend_endpoints_are_the_two_rotations() -> None:
    rope, at = Rope(HEAD_DIM), sequence(5)
    scaled = LearnedScaleRope(rope, initial_scale=0.5)
    for weight, expected in ((1.0, rope.table(at)), (0.0, scaled.table(at))):
        made = LearnedScaleRope(rope, initial_scale=0.5, blend=weight).table(at)
        assert torch.equal(made.cos, expected.cos) and torch.equal(made.sin, expected.sin)


def test_a_scale_of_one_is_the_rope_itself() -> None:
    at = torch.tensor([0, 1, 99, 1_000_003, 2**24 + 1])
    ours, plain = LearnedScaleRope(Rope(HEAD_DIM)).table(at), Rope(HEAD_DIM).table(at)
    assert torch.equal(ours.cos, plain.cos) and torch.equal(ours.sin, plain.sin)


# --- Moving a cache ------------------------------------------------------------------------------


@pytest.mark.parametrize("pairing", ["half", "adjacent"])
@pytest.mark.parametrize("name", SCALINGS)
def test_rerotate_moves_keys_from_one_rotation_to_another(name: str, pairing: str) -> None:
    old = Rope(HEAD_DIM, pairing=pairing, rotary_dim=6)  # pyright: ignore[reportArgumentType]
    new = replace(old, scaling=SCALINGS[name].build(4.0, 64))
    k = random(2, 2, 4, HEAD_DIM, dtype=torch.float32)
    at = torch.tensor([[0, 1, 63, 1000], [5, 5, 2, 100_000]])
    for before, after in ((old, new), (new, old)):
        cached = rotate(k, before.table(at))
        assert_roundings(
            rerotate(cached, at, before, after), rotate(k.double(), after.table(at)), 8
        )


def test_rerotate_refuses_another_pairing() -> None:
    k = random(1, 1, 2, HEAD_DIM)
    with pytest.raises(ValueError, match="pairing"):
        rerotate(k, sequence(2), Rope(HEAD_DIM), Rope(HEAD_DIM, pairing="adjacent"))


# --- Precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_low_precision_costs_a_rotation_at_most_two_roundings(
    rope: Rope, dtype: torch.dtype
) -> None:
    at = torch.tensor([0, 1, 257, 511, 4095, 1_000_003])
    x = random(1, 3, len(at), HEAD_DIM, dtype=dtype)
    exact = rotate(x.double(), rope.table(at, dtype=torch.float64))
    limit = eps(dtype) * exact.abs() + 8 * eps(torch.float32) * x.abs().max()
    for impl, out in every_rotation(x, rope.table(at)):
        assert out.dtype == dtype, impl
        assert ((out.double() - exact).abs() <= limit).all(), impl


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [n for n in NAMES if build(n).additive is not None])
def test_low_precision_costs_an_addition_at_most_two_roundings(
    name: str, dtype: torch.dtype
) -> None:
    additive = build(name).additive
    assert additive is not None
    at, cells = torch.tensor([0, 1, 17, 23]), cells_of(name)
    at = at if cells is None else cells[at]
    x = random(1, 4, DIM, dtype=dtype)
    exact = x.double() + additive.encode(at).double()
    limit = eps(dtype) * exact.abs() + 4 * eps(torch.float32) * exact.abs().max()
    out = additive(x, at)
    assert out.dtype == dtype
    assert ((out.double() - exact).abs() <= limit).all()


@pytest.mark.parametrize("name", ROTARY)
def test_autocast_changes_no_rotation(name: str) -> None:
    rotary, at = build(name, length=9).rotary, positions_of(name, 9) + 1000
    assert rotary is not None
    q, k, _ = heads(9, dtype=torch.float32)
    plain = rotate_qk(q, k, rotary.tables(at, at))
    with torch.autocast("cpu", torch.bfloat16):
        under = rotate_qk(q, k, rotary.tables(at, at))
    assert all(torch.equal(a, b) for a, b in zip(plain, under, strict=True))


# --- Compilation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_compiles_without_a_graph_break(name: str) -> None:
    model, x = layer(name), random(2, 6, DIM)
    at = positions_of(name, 24)[:6]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert_roundings(compiled(x, at), model(x, at), 4)


MASKS = {
    "all": None,
    "causal": causal,
    "window": window(3),
    "sliding": causal & window(3),
    "documents": causal & same_segment(torch.tensor([0, 0, 0, 1, 1, 1])),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("attend", [attention, linear_attention])
def test_every_mask_compiles_without_a_graph_break(attend: Any, mask: Mask | None) -> None:
    scheme = Scheme(rotary=Rope(HEAD_DIM))
    q, k, v = heads(6)
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    with torch.no_grad():
        expected = attend(q, k, v, scheme=scheme, mask=mask)
        assert_roundings(compiled(q, k, v, scheme=scheme, mask=mask), expected, 4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own imports
def test_inductor_computes_the_same_rotation_and_attention() -> None:
    scheme = Scheme(rotary=Rope(HEAD_DIM), bias=Alibi(HEADS))
    q, k, v = heads(37, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True)
    exact = attention(q, k, v, scheme=scheme, impl="reference")
    assert_roundings(compiled(q, k, v, scheme=scheme), exact, 64)
