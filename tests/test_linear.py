"""Linear attention: the written-out quadratic sum in every mode, at linear cost."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import (
    Alibi,
    LearnedScaleRope,
    Rope,
    Scheme,
    Shaw,
    Yarn,
    causal,
    elu_plus_one,
    linear_attention,
    rotate_qk,
    same_segment,
    window,
)
from posenc.attention import batched, linear
from posenc.masks import All, Mask
from posenc.positions import from_lengths, sequence
from support import HEADS, Allocations, assert_roundings, chunks, heads, random

SCHEMES = {
    "none": Scheme(),
    "rope": Scheme(rotary=Rope(8)),
    "partial": Scheme(rotary=Rope(8, pairing="adjacent", rotary_dim=4)),
    "yarn": Scheme(rotary=Rope(8, scaling=Yarn(4.0, 64))),
}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())


@pytest.fixture(params=["loop", "graph"])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight tokens at a time, so that states are carried over many chunks: by the loop, and as in a
    compiled graph, all chunks at once."""
    monkeypatch.setattr(linear, "CHUNK", 8)
    monkeypatch.setattr(batched, "CHUNK", 8)
    if request.param == "graph":
        monkeypatch.setattr(linear, "_in_graph", lambda: True)


def written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    mask: Mask | None,
    q_pos: Tensor | None = None,
    k_pos: Tensor | None = None,
) -> Tensor:
    """RoFormer, eq. 19, with every pair of tokens: O(T²), float64."""
    num_keys, num_queries = k.shape[2], q.shape[2]
    k_pos = sequence(num_keys) if k_pos is None else k_pos
    q_pos = k_pos[..., num_keys - num_queries :] if q_pos is None else q_pos
    q, k = elu_plus_one(q.double()), elu_plus_one(k.double())
    group = q.shape[1] // k.shape[1]
    turned_q, turned_k = q, k
    if scheme.rotary is not None:
        tables = scheme.rotary.tables(q_pos, k_pos, dtype=torch.float64)
        turned_q, turned_k = rotate_qk(q, k, tables)
        turned_q = turned_q / tables.attention_factor**2
    k, turned_k, v = (x.repeat_interleave(group, 1) for x in (k, turned_k, v.double()))
    weights, below = turned_q @ turned_k.transpose(-1, -2), q @ k.transpose(-1, -2)
    if mask is not None:
        rows = [p if p.ndim == 2 else p[None] for p in (q_pos, k_pos)]
        allowed = mask.fitted(num_queries, num_keys, q.shape[0]).allowed(*rows)[:, None]
        weights, below = weights * allowed, below * allowed
    total = below.sum(-1, keepdim=True)
    return (weights @ v) / torch.where(total == 0, 1.0, total)


DOCUMENTS = from_lengths([5, 16, 1, 15])[1]
MASKS: dict[str, Mask | None] = {
    "all": None,
    "causal": causal,
    "window": window(5),
    "sliding": causal & window(5),
    "wide": causal & window(1000),
    "one": window(1),
    "documents": same_segment(DOCUMENTS),
    "causal documents": causal & same_segment(DOCUMENTS),
    "one document": causal & same_segment(torch.zeros(37, dtype=torch.int64)),
    "sliding documents": causal & window(3) & same_segment(DOCUMENTS),
    "documents by row": causal & same_segment(torch.stack([DOCUMENTS, DOCUMENTS.flip(0)])),
    "documents by row, both ways": same_segment(torch.stack([DOCUMENTS, DOCUMENTS.flip(0)])),
}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
@every_mask
@every_scheme
def test_every_mask_equals_the_written_out_sum(
    scheme: Scheme, mask: Mask | None, num_kv_heads: int
) -> None:
    q, k, v = heads(37, num_kv_heads=num_kv_heads)
    expected = written_out(q, k, v, scheme=scheme, mask=mask)
    assert_roundings(linear_attention(q, k, v, scheme=scheme, mask=mask), expected, 256)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
@pytest.mark.parametrize("mask", [None, causal, causal & window(3)], ids=["all", "causal", "slide"])
def test_odd_lengths_equal_the_written_out_sum(length: int, mask: Mask | None) -> None:
    q, k, v = heads(length)
    expected = written_out(q, k, v, scheme=SCHEMES["rope"], mask=mask)
    assert_roundings(linear_attention(q, k, v, scheme=SCHEMES["rope"], mask=mask), expected, 256)


@pytest.mark.usefixtures("small_chunks")
@every_mask
def test_gradients_equal_those_of_the_written_out_sum(mask: Mask | None) -> None:
    weight, grads = random(2, HEADS, 37, 8, seed=5), []
    for attend in (linear_attention, written_out):
        inputs = [x.requires_grad_() for x in heads(37)]
        out: Tensor = attend(*inputs, scheme=SCHEMES["rope"], mask=mask)
        grads.append(torch.autograd.grad((out * weight).sum(), inputs))
    for ours, exact in zip(*grads, strict=True):
        assert_roundings(ours, exact, 256, size=1.0)


def test_float32_states_are_as_good_as_the_sum_in_float32() -> None:
    q, k, v = heads(300, dtype=torch.float32)
    exact = written_out(q, k, v, scheme=SCHEMES["rope"], mask=causal)
    assert_roundings(linear_attention(q, k, v, scheme=SCHEMES["rope"]), exact, 64)


def test_low_precision_inputs_are_summed_in_float32() -> None:
    q, k, v = heads(300, dtype=torch.bfloat16)
    out = linear_attention(q, k, v, scheme=SCHEMES["rope"])
    assert out.dtype == torch.bfloat16
    assert_roundings(out, written_out(q, k, v, scheme=SCHEMES["rope"], mask=causal), 1)


@pytest.mark.usefixtures("small_chunks")
@every_scheme
@given(sizes=st.lists(st.integers(1, 9), max_size=5))
def test_decoding_and_any_chunking_equal_the_whole(scheme: Scheme, sizes: list[int]) -> None:
    q, k, v = heads(21)
    whole = linear_attention(q, k, v, scheme=scheme)
    pieces = [
        linear_attention(
            q[:, :, piece], k[:, :, : piece.stop], v[:, :, : piece.stop], scheme=scheme
        )
        for piece in chunks(21, sizes)
    ]
    assert_roundings(torch.cat(pieces, 2), whole, 256)


@pytest.mark.usefixtures("small_chunks")
def test_a_decoding_step_takes_positions_in_any_order() -> None:
    q, k, v = heads(20, num_queries=2)
    at: dict[str, Any] = {
        "q_pos": torch.tensor([[9, 30], [4, 4]]),
        "k_pos": torch.stack([torch.arange(20).flip(0), torch.arange(20) * 2]),
    }
    for mask in (causal, causal & window(4), None):
        expected = written_out(q, k, v, scheme=SCHEMES["rope"], mask=mask, **at)
        out = linear_attention(q, k, v, scheme=SCHEMES["rope"], mask=mask, **at)
        assert_roundings(out, expected, 256)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("positions", [sequence(20, start=1000), sequence(20) * 3 + 1])
@pytest.mark.parametrize("mask", [causal, causal & window(4), window(4)])
def test_given_positions_are_obeyed(positions: Tensor, mask: Mask) -> None:
    q, k, v = heads(20)
    run: dict[str, Any] = {"scheme": SCHEMES["rope"], "mask": mask, "k_pos": positions}
    assert_roundings(linear_attention(q, k, v, **run), written_out(q, k, v, **run), 256)


@pytest.mark.usefixtures("small_chunks")
@every_scheme
def test_packed_documents_equal_separate_documents(scheme: Scheme) -> None:
    lengths = [5, 9, 1, 11]
    at, segments = from_lengths(lengths)
    q, k, v = heads(sum(lengths))
    for mask in (causal & same_segment(segments), same_segment(segments)):
        packed = linear_attention(q, k, v, scheme=scheme, k_pos=at, mask=mask)
        only = causal if isinstance(mask, All) else None
        start = 0
        for n in lengths:
            here = slice(start, start + n)
            alone = linear_attention(
                q[:, :, here], k[:, :, here], v[:, :, here], scheme=scheme, mask=only
            )
            assert_roundings(packed[:, :, here], alone, 256)
            start += n


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("is_causal", [True, False])
def test_left_padding_equals_no_padding(is_causal: bool) -> None:
    lengths, width = [3, 19, 11], 19
    real = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    at = torch.where(real == 1, real.cumsum(-1) - 1, -1)
    q, k, v = heads(width, batch=3)
    documents = same_segment(real)
    mask = causal & documents if is_causal else documents
    out = linear_attention(q, k, v, scheme=SCHEMES["rope"], k_pos=at, mask=mask)
    for row, n in enumerate(lengths):
        x = [t[row : row + 1, :, width - n :] for t in (q, k, v)]
        alone = linear_attention(
            x[0], x[1], x[2], scheme=SCHEMES["rope"], mask=causal if is_causal else None
        )
        assert_roundings(out[row : row + 1, :, width - n :], alone, 256)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "mask",
    [
        causal & same_segment(torch.tensor([0] * 6 + [1] * 6 + [0] * 13)),
        same_segment(torch.tensor([0] * 6 + [1] * 6 + [0] * 13)),
        causal & window(12) & same_segment(torch.tensor([0] * 6 + [1] * 6 + [0] * 13)),
        causal & same_segment(torch.arange(25) // 5, torch.arange(25) // 7),
    ],
    ids=["causal", "both ways", "sliding", "queries of other documents"],
)
def test_documents_that_resume_are_summed_or_refused_but_never_cut(mask: Mask) -> None:
    q, k, v = heads(25)
    try:
        out = linear_attention(q, k, v, scheme=SCHEMES["rope"], mask=mask)
    except ValueError as error:
        assert "segment" in str(error)  # noqa: PT017
        return
    assert_roundings(out, written_out(q, k, v, scheme=SCHEMES["rope"], mask=mask), 256)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("mask", [causal, causal & window(4), window(4)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_at_minus_one_is_summed_or_refused_but_never_cut(side: str, mask: Mask) -> None:
    """Position −1 comes before every real one: without segments, a causal mask shows it to all."""
    q, k, v = heads(20)
    padding = torch.full((8,), -1)
    at = torch.cat((padding, sequence(12)) if side == "left" else (sequence(12), padding))
    run: dict[str, Any] = {"scheme": SCHEMES["rope"], "mask": mask, "k_pos": at}
    try:
        out = linear_attention(q, k, v, **run)
    except ValueError as error:
        assert "position" in str(error)  # noqa: PT017
        return
    expected = written_out(q, k, v, **run)
    assert_roundings(out[:, :, at >= 0], expected[:, :, at >= 0], 256)


@pytest.mark.usefixtures("small_chunks")
def test_left_padding_at_minus_one_needs_no_segments_under_a_causal_mask() -> None:
    q, k, v = heads(20)
    at = torch.cat((torch.full((8,), -1), sequence(12)))
    run: dict[str, Any] = {"scheme": SCHEMES["rope"], "mask": causal, "k_pos": at}
    expected = written_out(q, k, v, **run)
    assert_roundings(linear_attention(q, k, v, **run)[:, :, 8:], expected[:, :, 8:], 256)


def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients() -> None:
    q, k, v = heads(5, num_queries=2)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(
        q, k, v, scheme=SCHEMES["rope"], q_pos=torch.tensor([0, 9]), k_pos=sequence(5, start=6)
    )
    assert torch.equal(out[:, :, 0], torch.zeros_like(out[:, :, 0]))
    grads = torch.autograd.grad(out.square().sum(), inputs)
    assert all(g.isfinite().all() for g in grads)
    assert torch.equal(grads[0][:, :, 0], torch.zeros_like(grads[0][:, :, 0]))


def test_the_normaliser_is_not_rotated() -> None:
    """All values equal: the weights of an unrotated normaliser sum to 1 where nothing turns."""
    q, k, _ = heads(300)
    ones = torch.ones(2, HEADS, 300, 1, dtype=torch.float64)
    out = linear_attention(q, k, ones, scheme=Scheme())
    assert_roundings(out, ones, 64)
    turned = linear_attention(q, k, ones, scheme=SCHEMES["rope"])
    assert (turned - 1).abs().max() > 0.1  # a rotated normaliser would keep every sum at 1


def test_an_amplitude_of_cos_and_sin_is_no_temperature_here() -> None:
    """YaRN's attention factor sharpens a softmax; a sum of features must not grow by its square."""
    q, k, v = heads(9)
    sharp = Yarn(8.0, 64)
    plain = Yarn(8.0, 64, attention_factor=1.0)
    out = linear_attention(q, k, v, scheme=Scheme(rotary=Rope(8, scaling=sharp)))
    same = linear_attention(q, k, v, scheme=Scheme(rotary=Rope(8, scaling=plain)))
    assert_roundings(out, same, 64)


def test_the_feature_map_acts_on_the_channels_of_each_head() -> None:
    """A softmax over the tokens, or features of mixed heads, are tutorial faults."""
    x = torch.tensor([-2.0, 0.0, 3.0])
    expected = torch.tensor([torch.e**-2, 1.0, 4.0], dtype=torch.float64)
    assert_roundings(elu_plus_one(x), expected, 2)
    q, k, v = heads(6)
    one_head = linear_attention(q[:, :1], k[:, :1], v[:, :1], scheme=SCHEMES["rope"])
    assert_roundings(linear_attention(q, k, v, scheme=SCHEMES["rope"])[:, :1], one_head, 64)
    seen: list[torch.Size] = []

    def watched(features: Tensor) -> Tensor:
        seen.append(features.shape)
        return features.softmax(-1)

    linear_attention(q, k, v, feature_map=watched)
    assert seen == [q.shape, k.shape]
    with pytest.raises(ValueError, match=r"feature_map must keep batch, heads and tokens"):
        linear_attention(q, k, v, feature_map=lambda x: x.transpose(1, 2))


def test_features_may_have_another_width() -> None:
    q, k, v = heads(6)

    def wide(x: Tensor) -> Tensor:
        return torch.cat((elu_plus_one(x), elu_plus_one(-x)), -1)

    out = linear_attention(q, k, v, feature_map=wide, scheme=Scheme(rotary=Rope(16)), mask=None)
    assert out.shape == v.shape
    narrow = linear_attention(q, k, v[..., :3], scheme=SCHEMES["rope"])
    full = linear_attention(q, k, v, scheme=SCHEMES["rope"])
    assert_roundings(narrow, full[..., :3], 64)


@pytest.mark.parametrize("mask", [None, causal, causal & window(16), window(16)])
def test_time_and_memory_grow_linearly_with_the_length(mask: Mask | None) -> None:
    made = {}
    for length in (1024, 4096):
        q, k, v = heads(length, batch=1, dtype=torch.float32)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        with Allocations() as made[length]:
            out = linear_attention(q, k, v, scheme=SCHEMES["rope"], mask=mask)
            torch.autograd.grad(out.sum(), inputs)
    assert made[4096].peak < 4.2 * made[1024].peak
    assert made[4096].total < 4.2 * made[1024].total
    assert made[4096].largest <= 4096 * HEADS * 8


@pytest.mark.parametrize("mask", [causal, causal & window(16), window(16), same_segment])
def test_memory_in_a_graph_grows_linearly_with_the_length(
    mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_in_graph", lambda: True)
    made = {}
    for length in (1024, 4096):
        q, k, v = heads(length, batch=1, dtype=torch.float32)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        seen = mask if isinstance(mask, Mask) else mask(torch.arange(length) // 300)
        with Allocations() as made[length]:
            out = linear_attention(q, k, v, scheme=SCHEMES["rope"], mask=seen)
            torch.autograd.grad(out.sum(), inputs)
    assert made[4096].peak < 4.2 * made[1024].peak
    assert made[4096].total < 4.2 * made[1024].total


@pytest.mark.usefixtures("small_chunks")
def test_documents_do_not_reach_each_other_however_large_they_are() -> None:
    """States are summed, never taken away again: nothing of another document stays behind."""
    q, k, v = heads(40)
    segments = torch.arange(40) // 20
    mask = causal & same_segment(segments)
    first = linear_attention(q, k, v, mask=mask)
    for x in (k, v):
        x[:, :, :20] *= 1e12
    assert torch.equal(linear_attention(q, k, v, mask=mask)[:, :, 20:], first[:, :, 20:])


@pytest.mark.parametrize(
    ("scheme", "part"),
    [(Scheme(bias=Alibi(HEADS)), "Alibi"), (Scheme(relative=Shaw(8, max_distance=2)), "Shaw")],
)
def test_a_scheme_with_no_linear_form_is_refused(scheme: Scheme, part: str) -> None:
    q, k, v = heads(5)
    with pytest.raises(ValueError, match=part):
        linear_attention(q, k, v, scheme=scheme)


@pytest.mark.parametrize(
    "at",
    [
        {"k_pos": torch.tensor([0, 2, 1, 3])},
        {"k_pos": torch.tensor([0, 1, 1, 2])},
        {"q_pos": torch.tensor([1, 2, 3, 4]), "k_pos": torch.tensor([0, 1, 2, 3])},
    ],
    ids=["falling", "repeated", "queries elsewhere"],
)
def test_positions_that_a_state_cannot_follow_are_refused(at: dict[str, Any]) -> None:
    q, k, v = heads(4)
    with pytest.raises(ValueError, match=r"rising along each segment|q_pos = k_pos"):
        linear_attention(q, k, v, scheme=SCHEMES["rope"], **at)


def test_positions_that_fall_are_named_and_not_all_listed() -> None:
    q, k, v = heads(3000)
    at = torch.arange(3000)
    at[1500:] -= 7
    with pytest.raises(ValueError, match="rising along each segment") as raised:
        linear_attention(q, k, v, scheme=SCHEMES["rope"], k_pos=at)
    assert "got [1498, 1499, 1493] about token 1499 of row 0" in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("mask", [causal & window(5), window(5)])
def test_a_window_over_positions_closer_than_one_reaches_every_token_in_it(mask: Mask) -> None:
    q, k, v = heads(40)
    scheme, at = Scheme(rotary=LearnedScaleRope(Rope(q.shape[-1]))), torch.arange(40) * 0.1
    out = linear_attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at, mask=mask)
    step = linear_attention(
        q[:, :, -7:], k, v, scheme=scheme, q_pos=at[-7:], k_pos=at, mask=mask
    )  # fewer queries than keys: every pair is written out
    torch.testing.assert_close(out[:, :, -7:], step, rtol=0, atol=1e-5)


def test_a_mask_that_a_state_cannot_follow_is_refused() -> None:
    class Odd(Mask):
        def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return (q_pos[:, :, None] + k_pos[:, None, :]) % 2 == 0

    q, k, v = heads(4)
    with pytest.raises(ValueError, match="knows causal, window and same_segment"):
        linear_attention(q, k, v, mask=causal & Odd())
    two = same_segment(torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match="one same_segment"):
        linear_attention(q, k, v, mask=causal & two & two)


def test_a_learned_scale_follows_real_positions() -> None:
    rotary = LearnedScaleRope(Rope(8), initial_scale=0.5)
    at = torch.tensor([0.0, 0.5, 1.75, 4.0], dtype=torch.float64)
    q, k, v = heads(4)
    run: dict[str, Any] = {"scheme": Scheme(rotary=rotary), "mask": causal, "k_pos": at}
    assert_roundings(linear_attention(q, k, v, **run), written_out(q, k, v, **run).detach(), 64)


@pytest.mark.parametrize("x", [-80.0, -20.0, -17.0, -1.0, -0.0, 0.0, 2.0])
def test_the_feature_map_is_positive_and_exact_far_below_zero(x: float) -> None:
    at = torch.tensor(x, requires_grad=True)
    made = elu_plus_one(at)
    made.backward()
    assert float(made.detach()) == pytest.approx(math.exp(x) if x < 0 else x + 1, rel=1e-6)
    assert at.grad is not None
    assert float(at.grad) == pytest.approx(math.exp(min(x, 0.0)), rel=1e-6)
