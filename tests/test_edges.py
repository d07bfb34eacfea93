"""Edges where rotations, caches and masks met inputs that nobody had thought of."""

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from posenc import (
    Fire,
    Frequencies,
    KVCache,
    LearnedScaleRope,
    LongRope,
    MRope,
    MultiHeadAttention,
    Rope,
    Scheme,
    Shaw,
    Spectrum,
    XPos,
    Yarn,
    attention,
    causal,
    linear_attention,
    positions,
    rerotate,
    rotate,
    rotate_qk,
    same_segment,
    window,
)
from posenc.kernels.overlap import overlap, overlaps_itself
from posenc.positions import query_key_positions
from posenc.rotate import RotateImpl
from support import DIM, assert_roundings, layer, random

POSITIONS = torch.arange(4)
ROPE = Rope(8)


@pytest.mark.parametrize("shape", [(0, 2, 4, 8), (2, 0, 4, 8)])
def test_an_empty_batch_stays_empty(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    assert rotate(x, ROPE.table(POSITIONS)).shape == x.shape


def test_a_table_on_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="x lies on cpu, its table on meta"):
        rotate(torch.randn(1, 2, 4, 8), ROPE.table(POSITIONS.to("meta")))


def test_in_place_rotation_under_a_learned_table_turns() -> None:
    tables = LearnedScaleRope(ROPE).tables(POSITIONS, POSITIONS)
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    wanted = rotate(q, tables.q).detach()
    with pytest.raises(ValueError, match="q or its table requires grad"):
        rotate_qk(q.clone(), k.clone(), tables, inplace=True)
    with torch.no_grad():
        rotate_qk(q, k, tables, inplace=True)
    assert torch.equal(q, wanted)


def test_in_place_rotation_tells_autograd_that_values_are_gone() -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(1, 2, 4, 8)
    loss = (x @ weight).square().sum()
    rotate_qk(x, x.clone(), ROPE.tables(POSITIONS, POSITIONS), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_one_tensor_is_not_turned_twice() -> None:
    x = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="share their memory"):
        rotate_qk(x, x, ROPE.tables(POSITIONS, POSITIONS), inplace=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # of PyTorch's own
def test_forward_mode_keeps_its_tangent() -> None:
    x, tangent, table = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8), ROPE.table(POSITIONS)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        turned = torch.autograd.forward_ad.unpack_dual(rotate(dual, table)).tangent
    assert turned is not None
    torch.testing.assert_close(turned, rotate(tangent, table))


def test_default_positions_make_one_table() -> None:
    q_pos, k_pos = query_key_positions(4, 4, None, None)
    assert q_pos is k_pos
    tables = ROPE.tables(q_pos, k_pos)
    assert tables.q is tables.k


@pytest.mark.parametrize("form", [XPos(ROPE), 64])
def test_a_learned_scale_takes_a_rope_alone(form: object) -> None:
    with pytest.raises(TypeError, match="LearnedScaleRope"):
        LearnedScaleRope(form)  # pyright: ignore[reportArgumentType]


def test_prepared_tables_are_made_again_for_the_reference() -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, dtype=torch.float64) for _ in range(3))
    scheme = Scheme(rotary=ROPE)
    prepared = scheme.prepared(POSITIONS, POSITIONS)
    wanted = attention(q, k, v, scheme=scheme, impl="reference")
    assert torch.equal(attention(q, k, v, scheme=prepared, impl="reference"), wanted)


def test_tables_of_other_positions_are_refused() -> None:
    layer, cache = MultiHeadAttention(16, 2, scheme=Scheme(rotary=ROPE)), KVCache()
    tables = ROPE.tables(POSITIONS[:2], POSITIONS[:2])
    layer(torch.randn(1, 2, 16), cache=cache, tables=tables)
    with pytest.raises(ValueError, match="hold position 0 for q where the token is at 2"):
        layer(torch.randn(1, 2, 16), cache=cache, tables=tables)


def test_tables_of_other_keys_are_refused() -> None:
    layer = MultiHeadAttention(16, 2, scheme=Scheme(rotary=ROPE))
    tables = ROPE.tables(POSITIONS[:2], POSITIONS[:2] + 1000)
    with pytest.raises(ValueError, match="hold position 1000 for k where the token is at 0"):
        layer(torch.randn(1, 2, 16), tables=tables)


@pytest.mark.parametrize("grad", [False, True])
def test_a_call_that_attention_refuses_leaves_the_cache_as_it_was(grad: bool) -> None:
    """Or a retry would find its tokens there twice."""
    layer, cache = MultiHeadAttention(16, 2, scheme=Scheme(rotary=ROPE)), KVCache()
    x = torch.randn(1, 7, 16)
    with torch.set_grad_enabled(grad):
        layer(x[:, :4], cache=cache)
        layer(x[:, 4:5], cache=cache)
        held = dict(vars(cache))
        layer.mask = None
        layer.scheme = Scheme(rotary=ROPE, bias=Fire(2))
        with pytest.raises(ValueError, match="means nothing for keys after the query"):
            layer(x[:, 5:6], cache=cache)
        assert len(cache) == 5
        assert vars(cache) == held
        layer.mask, layer.scheme = causal, Scheme(rotary=ROPE)
        steps = [layer(x[:, i : i + 1], cache=cache) for i in (5, 6)]
    assert_roundings(torch.cat(steps, 1), layer(x)[:, 5:], 16)


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    layer, cache = MultiHeadAttention(16, 2, scheme=Scheme(rotary=ROPE)), KVCache()
    layer(torch.randn(2, 3, 16), cache=cache)
    with pytest.raises(ValueError, match="batch, heads and channels must agree"):
        layer(torch.randn(1, 1, 16), cache=cache)
    with pytest.raises(ValueError, match="segments must be given for every call"):
        layer(torch.randn(2, 1, 16), segments=torch.zeros(1, dtype=torch.int64), cache=cache)
    assert len(cache) == 3
    assert cache.contiguous


def test_parts_of_a_scheme_read_the_same_axes() -> None:
    from posenc import Alibi, AxialRope  # noqa: PLC0415

    with pytest.raises(ValueError, match="bias= reads 1, rotary= reads 2"):
        Scheme(rotary=AxialRope(12), bias=Alibi(4))


def test_long_rope_at_a_short_length_uses_the_short_list() -> None:
    method = LongRope((1.0, 1.0), (4.0, 4.0), factor=8.0, original_length=4096, length=100)
    assert Rope(4, scaling=method).frequencies().inv_freq[0] == 1.0


def test_yarn_refuses_an_amplitude_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="mscale must be 0 or more, got nan"):
        Yarn(4.0, 4096, mscale=float("nan"))


def test_shaw_values_must_fit() -> None:
    q, k, v = (torch.randn(1, 2, 4, n) for n in (8, 8, 1))
    with pytest.raises(ValueError, match="8 channels are added to values, which have 1"):
        attention(q, k, v, scheme=Scheme(relative=Shaw(8, max_distance=2)))


def test_bidirectional_segments_need_no_rising_positions() -> None:
    q, k, v = (torch.randn(2, 2, 6, 8) for _ in range(3))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 2]])
    falling = torch.arange(6).flip(0)
    out = linear_attention(q, k, v, k_pos=falling, mask=same_segment(segments))
    alone = linear_attention(q[1:, :, 1:5], k[1:, :, 1:5], v[1:, :, 1:5], mask=None)
    torch.testing.assert_close(out[1:, :, 1:5], alone)


def test_a_linear_state_is_wide_under_autocast() -> None:
    q, k, v = (torch.randn(1, 2, 400, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = linear_attention(q, k, v)
    assert torch.equal(out, linear_attention(q, k, v))


# --- float16 and amplitudes ---


def test_xpos_in_float16_is_exact_up_to_its_room_and_refused_beyond() -> None:
    """ζ**p of the fastest falling pair is 0.4/1.4 a 512: 1,024 at 2,832 positions."""
    assert (1.4 / 0.4) ** (2832 / 512) < 1024 < (1.4 / 0.4) ** (2833 / 512)
    form, x = XPos(Rope(8)), torch.randn(1, 2, 1, 8) * 16
    half = x.half()
    for position in (2832, -2832):
        at = torch.tensor([position])
        tables, exact = form.tables(at, at), form.tables(at, at, dtype=torch.float64)
        for side in ("q", "k"):
            out = rotate(half, getattr(tables, side))
            wanted = rotate(half.double(), getattr(exact, side))
            assert out.isfinite().all()
            assert ((out.double() - wanted).abs() <= 2**-10 * wanted.abs() + 2**-18).all()
    far = torch.tensor([2833])
    tables = form.tables(far, far)
    for side in ("q", "k"):
        for impl in ("auto", "eager", "reference"):
            with pytest.raises(ValueError, match="float16 has room for amplitudes between 1/1024"):
                rotate(half, getattr(tables, side), impl=impl)
        assert rotate(x.bfloat16(), getattr(tables, side)).isfinite().all()
    with pytest.raises(ValueError, match="rotate in bfloat16 or float32, or take an origin"):
        attention(half, half, half, scheme=Scheme(rotary=form), k_pos=far)
    nearer = XPos(Rope(8), origin=2000).tables(far, far)
    assert rotate(half, nearer.k).isfinite().all()


def test_float16_keys_of_xpos_move_within_their_room() -> None:
    form, at = XPos(Rope(8)), torch.tensor([-2800])
    k = torch.randn(1, 2, 1, 8)
    cached = rotate(k, form.tables(at, at).k).half()
    moved = rerotate(cached, at, form, form, new_positions=-at)
    wanted = rotate(k.double(), form.tables(-at, -at, dtype=torch.float64).k)
    assert ((moved.double() - wanted).abs() <= 2**-5 * wanted.abs().max()).all()
    with pytest.raises(ValueError, match="float16 has room"):
        rerotate(cached, at, form, form, new_positions=at * 2)


# --- copies of a cache ---


@pytest.mark.parametrize("rotary", [Rope(8), LearnedScaleRope(Rope(8)), None])
def test_a_cache_with_a_graph_can_be_copied_and_branched(rotary: Any) -> None:
    layer, cache = MultiHeadAttention(16, 2, scheme=Scheme(rotary=rotary)), KVCache()
    x = torch.randn(2, 5, 16)
    layer(x[:, :3], cache=cache)
    assert cache.keys is not None and cache.keys.requires_grad
    twin = copy.deepcopy(cache)
    assert twin.keys is not None and not twin.keys.requires_grad
    assert twin.keys.data_ptr() != cache.keys.data_ptr()
    assert twin.encoding is cache.encoding
    first, second = (layer(x[:, 3:], cache=held) for held in (cache, twin))
    assert torch.equal(first, second)
    layer(x[:, :1], cache=twin)
    assert (len(cache), len(twin)) == (5, 6)
    assert len(copy.deepcopy(KVCache())) == 0


def test_a_cache_copied_with_its_model_goes_on_with_the_copy() -> None:
    scheme = Scheme(rotary=LearnedScaleRope(Rope(8)))
    layer, cache = MultiHeadAttention(16, 2, scheme=scheme), KVCache()
    layer(torch.randn(1, 3, 16), cache=cache)
    other, held = copy.deepcopy((layer, cache))
    assert held.encoding is other.scheme.rotary
    assert other(torch.randn(1, 1, 16), cache=held).shape == (1, 1, 16)


# --- padding told by positions ---

TOLD = ("none", "sinusoidal", "rope", "learned-scale-rope", "xpos", "alibi", "t5", "shaw")


@pytest.mark.parametrize("mask", [causal, None, causal & window(3)])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TOLD)
def test_b108_padding_at_negative_positions_is_seen_by_no_token(
    name: str, side: str, mask: Any
) -> None:
    """No segments: what `from_padding_mask` says of a token is enough for a layer."""
    model = layer(name)
    model.attention.mask = mask
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    real = real if side == "left" else real.flip(-1)
    x = random(2, 7, DIM)
    cache = KVCache()
    out = model(x[:, :5], positions.from_padding_mask(real), cache=cache)
    then = model(x[:, 5:], cache=cache)
    assert out.isfinite().all()
    for row, length in ((0, 3), (1, 5)):
        tokens = real[row].bool()
        text = torch.cat((x[row : row + 1, :5][:, tokens], x[row : row + 1, 5:]), 1)
        assert_roundings(out[row : row + 1, tokens], model(text[:, :length]), 256)
        if mask is not None:
            assert (then[row] - model(text)[0, length:]).abs().max() < 2**-20


def test_attention_takes_a_negative_position_for_a_position() -> None:
    """There distances are all that counts; padding is a segment, `same_segment(mask)`."""
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    at, scheme = torch.arange(-3, 2), Scheme(rotary=Rope(8))
    moved = attention(q, k, v, scheme=scheme, k_pos=at)
    torch.testing.assert_close(moved, attention(q, k, v, scheme=scheme))
    real = torch.tensor([[0, 0, 1, 1, 1]])
    padded = positions.from_padding_mask(real)
    seen = attention(q, k, v, scheme=scheme, k_pos=padded)[:, :, 2:]
    alone = attention(*(x[:, :, 2:] for x in (q, k, v)), scheme=scheme)
    assert (seen - alone).abs().max() > 1e-3
    mask = causal & same_segment(real)
    hidden = attention(q, k, v, scheme=scheme, k_pos=padded, mask=mask)
    torch.testing.assert_close(hidden[:, :, 2:], alone)


def test_padding_is_hidden_in_a_compiled_layer_too() -> None:
    model = MultiHeadAttention(16, 2, scheme=Scheme(rotary=Rope(8)))
    x, at = torch.randn(1, 5, 16), positions.from_padding_mask(torch.tensor([[0, 0, 1, 1, 1]]))
    torch._dynamo.reset()
    with torch.no_grad():
        made = torch.compile(model, backend="eager", fullgraph=True)(x, at)
        torch.testing.assert_close(made[:, 2:], model(x[:, 2:]))


# --- several axes ---


def test_a_layer_with_several_axes_is_causal_by_storage() -> None:
    """The cells of an image have no order of their own: a later token is seen by no earlier one."""
    model = MultiHeadAttention(16, 2, scheme=Scheme(rotary=MRope(Rope(8), (1, 1, 2)))).double()
    at = torch.tensor([[5, 5, 5], [6, 7, 6], [6, 6, 6], [0, 0, 0], [6, 6, 7]])
    x = random(1, 5, 16)
    whole = model(x, at)
    for t in range(1, 5):
        assert_roundings(model(x[:, :t], at[:t]), whole[:, :t], 64)
        other = torch.cat((x[:, :t], random(1, 5 - t, 16, seed=9)), 1)
        assert_roundings(model(other, at)[:, :t], whole[:, :t], 64)
        assert (model(other, at)[:, t:] - whole[:, t:]).abs().min() > 0


def test_with_several_axes_padding_is_a_segment() -> None:
    model = MultiHeadAttention(16, 2, scheme=Scheme(rotary=MRope(Rope(8), (2, 2)))).double()
    real = torch.tensor([[0, 0, 1, 1, 1]])
    at, x = positions.on_axes(positions.from_padding_mask(real), 2), random(1, 5, 16)
    with pytest.raises(ValueError, match=r"several axes .* tell no padding: .*segments="):
        model(x, at)
    assert_roundings(model(x, at, segments=real)[:, 2:], model(x[:, 2:], at[:, 2:]), 64)
    assert model(x, at.clamp(min=0) - torch.tensor([1, 0])).isfinite().all()  # left of the image


# --- small things ---


def test_tables_without_a_rotation_to_use_them_are_refused() -> None:
    model = MultiHeadAttention(16, 2)
    with pytest.raises(ValueError, match="tables= were given, but this layer's scheme has no"):
        model(torch.randn(1, 4, 16), tables=ROPE.tables(POSITIONS, POSITIONS))


def test_frequencies_are_equal_where_their_numbers_are() -> None:
    made = Rope(8, scaling=Yarn(4.0, 64)).frequencies()
    assert made == Rope(8, scaling=Yarn(4.0, 64)).frequencies()
    assert made != replace(made, inv_freq=made.inv_freq * 2)
    assert made != replace(made, attention_factor=1.0)
    assert made != replace(made, inv_freq=made.inv_freq.float())
    assert made != 3
    spectrum = Spectrum(torch.tensor([1.0, 10.0]), 10.0, 4)
    assert spectrum == replace(spectrum)
    assert spectrum != replace(spectrum, base=9.0)
    assert spectrum != Frequencies(spectrum.per_radian, 10.0, 4)
    for value in (made, spectrum):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_queries_and_keys_together_are_each_alone(inplace: bool, dtype: torch.dtype) -> None:
    fused = random(2, 7, 3, 3, 16).to(dtype)  # [B, T, 3, H, D]: views, and of unequal heads
    q, k = fused[:, :, 0].transpose(1, 2), fused[:, :, 1, :1].transpose(1, 2)
    rope = Rope(16)
    tables = rope.tables(torch.arange(5, 12), torch.arange(1, 8))
    alone = rotate(q.clone(), tables.q, impl="eager"), rotate(k.clone(), tables.k, impl="eager")
    untouched = fused[:, :, 2].clone()
    together = rotate_qk(q, k, tables, inplace=inplace)
    for mine, other in zip(together, alone, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)
    torch.testing.assert_close(fused[:, :, 2], untouched, rtol=0, atol=0)
    assert (together[0].data_ptr() == q.data_ptr()) is inplace


@pytest.mark.parametrize("who", ["q", "k"])
def test_one_that_learns_keeps_its_graph(who: str) -> None:
    x = {name: random(1, 2, 4, 16, dtype=torch.float32) for name in "qk"}
    x[who].requires_grad_()
    tables = Rope(16).tables(torch.arange(4), torch.arange(4))
    turned = dict(zip("qk", rotate_qk(x["q"], x["k"], tables), strict=True))
    grad = torch.autograd.grad(turned[who].square().sum(), x[who])[0]
    torch.testing.assert_close(grad, 2 * x[who])  # a rotation keeps lengths


def test_overlapping_windows_are_read_and_not_written_over() -> None:
    """PyTorch gives a copy of such a view another order: channels are then not side by side."""
    x = random(7, dtype=torch.float32).as_strided((1, 3, 2, 4), (1, 1, 1, 1))
    assert torch.empty_like(x).stride(-1) != 1
    tables = Rope(4).tables(torch.arange(2), torch.arange(2))
    wanted = rotate(x.contiguous(), tables.q, impl="eager")
    for turned in (*rotate_qk(x, x, tables), rotate(x, tables.q)):
        torch.testing.assert_close(turned, wanted, rtol=0, atol=0)


def _places(x: Tensor) -> list[int]:
    """The storage index of every element, by counting."""
    steps = [range(n) for n in x.shape]
    return [
        int(x.storage_offset() + sum(s * i for s, i in zip(x.stride(), at, strict=True)))
        for at in itertools.product(*steps)
    ]


@given(st.data())
def test_overlap_is_what_counting_says(data: st.DataObject) -> None:
    base = torch.zeros(4000)
    views = []
    for _ in "ab":
        shape = data.draw(st.tuples(*[st.integers(1, 4)] * 4))
        strides = data.draw(st.tuples(*[st.sampled_from([0, 1, 2, 3, 4, 8, 12, 24, 48])] * 4))
        views.append(base.as_strided(shape, strides, data.draw(st.integers(0, 60))))
    a, b = views
    assert overlap(a, b) == bool(set(_places(a)) & set(_places(b)))
    assert overlaps_itself(a) == (len(set(_places(a))) < a.numel())


@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_in_place_memory_that_two_tensors_share_in_part_is_refused(impl: RotateImpl) -> None:
    tables = Rope(8).tables(torch.arange(6), torch.arange(6))
    memory = torch.randn(1, 1, 8, 8)
    before = memory.clone()
    with pytest.raises(ValueError, match="share their memory"):
        rotate_qk(memory[:, :, :6], memory[:, :, 2:], tables, inplace=True, impl=impl)
    windows = torch.randn(1, 500).as_strided((1, 1, 6, 8), (500, 500, 2, 1))
    with pytest.raises(ValueError, match="names places of memory twice"):
        rotate_qk(windows, torch.randn(1, 1, 6, 8), tables, inplace=True, impl=impl)
    assert torch.equal(memory, before)


@pytest.mark.parametrize("impl", ["auto", "eager"])
@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_heads_of_one_projection_turn_in_place(impl: RotateImpl, layout: tuple[int, ...]) -> None:
    """Their bytes lie between each other's, and no place is shared."""
    tables = Rope(8).tables(torch.arange(6), torch.arange(6))
    fused = torch.randn(2, 6, 9, 8).permute(*layout)
    fused = fused if layout[1] == 2 else torch.randn(2, 9, 6, 8)
    q, k = fused[:, :5], fused[:, 5:7]
    wanted = rotate_qk(q, k, tables)
    for mine, right in zip(rotate_qk(q, k, tables, inplace=True, impl=impl), wanted, strict=True):
        torch.testing.assert_close(mine, right)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("record", ["make_fx", "trace"])
def test_a_recorded_graph_holds_the_rotation(record: str) -> None:
    rope, at = Rope(16), torch.arange(4)
    tables = rope.tables(at, at)

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rotate(q, tables.q), *rotate_qk(q[:, :, :, :], k, tables)[:2]

    q, k, other, more = (torch.randn(1, 2, 4, 16) for _ in range(4))
    graph: Any = make_fx(turn)(q, k) if record == "make_fx" else torch.jit.trace(turn, (q, k))
    for mine, right in zip(graph(other, more), turn(other, more), strict=True):
        torch.testing.assert_close(mine, right)


def test_a_negated_view_turns_as_its_values() -> None:
    q = torch.randn(1, 2, 4, 16)
    tables = Rope(16).tables(torch.arange(4), torch.arange(4))
    negated: Any = torch._neg_view(q)  # pyright: ignore
    torch.testing.assert_close(rotate(negated, tables.q), rotate(-q, tables.q))
    torch.testing.assert_close(rotate_qk(negated, q, tables)[0], rotate(-q, tables.q))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # PyTorch's vmap
def test_positions_may_be_those_of_a_transform() -> None:
    q, k, v = (torch.randn(3, 2, 4, 9, 8) for _ in range(3))
    at = torch.arange(9) + torch.arange(3)[:, None]

    def one(q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        return attention(q, k, v, scheme=Scheme(rotary=Rope(8)), q_pos=at, k_pos=at)

    together = torch.vmap(one)(q, k, v, at)
    for index in range(3):
        alone = one(q[index], k[index], v[index], at[index])
        torch.testing.assert_close(together[index], alone)
