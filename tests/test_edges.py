"""Edges where rotations, caches and masks met inputs that nobody had thought of."""

import pytest
import torch

from posenc import (
    KVCache,
    LearnedScaleRope,
    LongRope,
    MultiHeadAttention,
    Rope,
    Scheme,
    Shaw,
    XPos,
    Yarn,
    attention,
    linear_attention,
    rotate,
    rotate_qk,
    same_segment,
)
from posenc.positions import query_key_positions

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
    with pytest.raises(ValueError, match=r"hold positions \[0, 1\], not \[\[2, 3\]\]"):
        layer(torch.randn(1, 2, 16), cache=cache, tables=tables)


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
