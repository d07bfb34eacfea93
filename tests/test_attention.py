"""Attention under a scheme: every implementation, mask, cache and module against the definition."""

import copy
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import (
    Alibi,
    KVCache,
    LearnedScaleRope,
    Linear,
    LogitBias,
    MultiHeadAttention,
    Rope,
    Scheme,
    Shaw,
    T5Bias,
    Yarn,
    attention,
    causal,
    rerotate,
    rotate_qk,
    same_segment,
    window,
)
from posenc.attention import distance, sdpa
from posenc.attention.softmax import AttentionImpl
from posenc.masks import Mask
from posenc.positions import from_lengths, query_key_positions, sequence
from posenc.registry import ENCODINGS
from support import (
    BIASES,
    DIM,
    HEAD_DIM,
    HEADS,
    NAMES,
    Allocations,
    assert_as_good_as,
    assert_roundings,
    build,
    heads,
    mask_of,
    plain_attention,
    positions_of,
    random,
)

ROPE = Scheme(rotary=Rope(HEAD_DIM))
IMPLS: tuple[Any, ...] = ("reference", "sdpa", "auto")


def in_dtype(scheme: Scheme, dtype: torch.dtype) -> Scheme:
    """A copy of a scheme with its learned parts in another dtype."""
    scheme = copy.deepcopy(scheme)
    for part in scheme.modules().values():
        part.to(dtype)
    return scheme


def gradients(out: Tensor, inputs: list[Tensor], scheme: Scheme, weight: Tensor) -> list[Tensor]:
    """Of the inputs, then of every learned tensor that took part."""
    parameters = [p for part in scheme.modules().values() for p in part.parameters()]
    learned = [p for p in parameters if p.requires_grad]
    loss = (out * weight.to(out.dtype)).sum()
    grads = torch.autograd.grad(loss, [*inputs, *learned], allow_unused=True)
    return [g for g in grads if g is not None]


# --- Every implementation is the definition ------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen queries at a time, so that odd lengths end in a partial block."""
    monkeypatch.setattr(sdpa, "BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(distance, "BLOCK", 16)


def ways(name: str, length: int) -> list[dict[str, Any]]:
    """Positions in storage order (left out) and given: two roads through the implementations."""
    at, mask = positions_of(name, length), mask_of(name)
    given = {"k_pos": at, "mask": mask}
    return [given] if ENCODINGS[name].positions is not None else [{"mask": mask}, given]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("num_kv_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("length", [1, 7, 37])
@pytest.mark.parametrize("name", NAMES)
def test_sdpa_equals_the_reference_forward_and_backward(
    name: str, length: int, num_kv_heads: int
) -> None:
    for run in ways(name, length):
        check_gradients(name, length, num_kv_heads, run)


def check_gradients(name: str, length: int, num_kv_heads: int, run: dict[str, Any]) -> None:
    tensors = heads(length, num_kv_heads=num_kv_heads, dtype=torch.float32)
    weight = random(2, HEADS, length, HEAD_DIM, seed=5)
    results: dict[str, list[Tensor]] = {}
    for kind, dtype in (("exact", torch.float64), ("ours", None), ("plain", None)):
        scheme = in_dtype(build(name, length=length), dtype or torch.float32)
        inputs = [x.to(dtype or x.dtype).requires_grad_() for x in tensors]
        q, k, v = inputs
        if kind == "plain":
            at = {"k_pos": positions_of(name, length), **run}
            out = plain_attention(q, k, v, scheme=scheme, **at)
        else:
            impl: Any = "reference" if kind == "exact" else "sdpa"
            out = attention(q, k, v, scheme=scheme, impl=impl, **run)
        results[kind] = [out.detach(), *gradients(out, inputs, scheme, weight)]
    size = 0.0  # of the output; gradients of q and k are differences of products weight · v
    terms = (weight.norm(dim=-1).max() * tensors[2].norm(dim=-1).max()).item()
    three = zip(results["plain"], results["ours"], results["exact"], strict=True)
    for i, (plain, ours, exact) in enumerate(three):
        assert_as_good_as(plain, ours, exact, size=size)
        size = terms * (length if i >= 3 else 1)  # what is learned sums over tokens


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
    "documents by row": window(9) & same_segment(torch.stack([DOCUMENTS, DOCUMENTS.flip(0)])),
}


@pytest.mark.parametrize("num_queries", [37, 18])
@pytest.mark.parametrize("blocks", ["small", "whole"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5", "shaw"])
def test_every_mask_in_blocks_of_queries_equals_the_reference(
    name: str, mask: Mask | None, blocks: str, num_queries: int, request: pytest.FixtureRequest
) -> None:
    if blocks == "small":
        request.getfixturevalue("small_blocks")
    q, k, v = heads(37, num_queries=num_queries, num_kv_heads=2, dtype=torch.float32)
    scheme = build(name)
    exact = attention(q, k, v, scheme=scheme, mask=mask, impl="reference")
    at = sequence(37)
    in_order = attention(q, k, v, scheme=scheme, mask=mask)
    placed = attention(q, k, v, scheme=scheme, mask=mask, k_pos=at)
    plain = plain_attention(q, k, v, scheme=scheme, mask=mask, k_pos=at)
    for out in (in_order, placed):
        assert_as_good_as(plain.detach(), out.detach(), exact.detach())


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_as_good_as_plain_attention(name: str) -> None:
    q, k, v = heads(37, num_kv_heads=2, dtype=torch.bfloat16)
    scheme, at, mask = build(name, length=37), positions_of(name, 37), mask_of(name)
    wide = (x.double() for x in (q, k, v))
    exact = attention(*wide, scheme=scheme, k_pos=at, mask=mask, impl="reference")
    low = in_dtype(scheme, torch.bfloat16)
    plain = plain_attention(q, k, v, scheme=low, k_pos=at, mask=mask)
    for impl in IMPLS:
        for run in ways(name, 37):
            ours = attention(q, k, v, scheme=scheme, impl=impl, **run)
            assert_as_good_as(plain.detach(), ours.detach(), exact.detach())


def test_far_biases_are_not_rounded_to_bfloat16() -> None:
    """Slope ½ at distance 1,000 is −500; in bfloat16 its neighbours would be 2 apart."""
    q = torch.zeros(1, 2, 1, HEAD_DIM, dtype=torch.bfloat16)
    k = torch.zeros(1, 2, 3, HEAD_DIM, dtype=torch.bfloat16)
    v = torch.eye(3, dtype=torch.bfloat16).expand(1, 2, 3, 3)
    at = torch.tensor([0, 1, 2])
    weights = attention(
        q, k, v, scheme=Scheme(bias=Alibi(2)), q_pos=torch.tensor([1001]), k_pos=at, mask=None
    )
    slope = 2.0**-4
    expected = torch.tensor([[-1001.0 * slope, -1000 * slope, -999 * slope]]).double().softmax(-1)
    assert_roundings(weights[0, 0], expected, 1)


@pytest.mark.parametrize("impl", IMPLS)
def test_scale_multiplies_the_logits(impl: Any) -> None:
    q, k, v = heads(5)
    for scale in (1.0, 0.25):
        by_scale = attention(q, k, v, scheme=Scheme(), scale=scale, impl=impl)
        by_hand = attention(q * scale * HEAD_DIM**0.5, k, v, scheme=Scheme(), impl=impl)
        assert_roundings(by_scale, by_hand, 16)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_values_may_have_another_width(name: str, impl: Any) -> None:
    q, k, _ = heads(5)
    v = random(2, HEADS, 5, 3, seed=8)
    wide = torch.cat((v, torch.zeros(2, HEADS, 5, HEAD_DIM - 3, dtype=v.dtype)), -1)
    out = attention(q, k, v, scheme=build(name), impl=impl)
    assert_roundings(out, attention(q, k, wide, scheme=build(name), impl=impl)[..., :3], 16)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", NAMES)
def test_grouped_heads_equal_repeated_heads(name: str, impl: Any) -> None:
    run: dict[str, Any] = {"mask": mask_of(name), "k_pos": positions_of(name, 7), "impl": impl}
    for num_kv_heads in (1, 2):
        q, k, v = heads(7, num_kv_heads=num_kv_heads)
        group = HEADS // num_kv_heads
        repeated = (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        scheme = build(name, length=7)
        grouped = attention(q, k, v, scheme=scheme, **run)
        assert_roundings(grouped, attention(q, *repeated, scheme=scheme, **run), 64)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", [n for n in NAMES if mask_of(n) is causal])
def test_queries_default_to_the_end_of_the_keys(name: str, impl: Any) -> None:
    """`attention(q_last, k_all, v_all)` is a step of decoding."""
    q, k, v = heads(7)
    scheme = build(name)
    whole = attention(q, k, v, scheme=scheme, impl=impl)
    for n in (1, 3):
        assert_roundings(
            attention(q[:, :, -n:], k, v, scheme=scheme, impl=impl), whole[:, :, -n:], 64
        )


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", [n for n in NAMES if mask_of(n) is causal])
def test_a_query_that_sees_no_key_gets_zeros_and_finite_gradients(name: str, impl: Any) -> None:
    q, k, v = heads(5)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    q_pos = torch.tensor([0, 7, 8, 9, 10])
    scheme = build(name)
    out = attention(q, k, v, scheme=scheme, q_pos=q_pos, k_pos=sequence(5, start=6), impl=impl)
    assert torch.equal(out[:, :, 0], torch.zeros_like(out[:, :, 0]))
    grads = torch.autograd.grad(out.square().sum(), inputs)
    assert all(g.isfinite().all() for g in grads)
    assert torch.equal(grads[0][:, :, 0], torch.zeros_like(grads[0][:, :, 0]))
    assert grads[0][:, :, 1:].abs().sum() > 0


def test_a_hidden_value_of_nan_stays_hidden_from_logits() -> None:
    """Uninitialised cache slots behind the mask move no score."""
    q, k, v = heads(5, dtype=torch.float32)
    k, v = k.clone(), v.clone()
    k[:, :, 4] = 1e30
    for name in ("rope", "alibi", "shaw"):
        scheme = build(name)
        out = attention(q[:, :, :4], k, v, scheme=scheme, q_pos=sequence(4), k_pos=sequence(5))
        seen = attention(q[:, :, :4], k[:, :, :4], v[:, :, :4], scheme=scheme)
        assert_roundings(out, seen.detach(), 16)


# --- Memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BIASES)
def test_biases_are_built_for_one_block_of_queries(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "BLOCK_ELEMENTS", 1 << 16)
    length = 1024
    q, k, v = heads(length, batch=1, dtype=torch.float32)
    scheme = build(name, length=length)
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=scheme, k_pos=positions_of(name, length), mask=mask_of(name))
    # the whole bias would be 4 · 1024 · 1024; an MLP of offsets has its hidden units for each offset
    units = 63 * 63 * 512 if name == "swinv2" else 0
    assert made.largest <= max(1 << 17, units)


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_bias_by_distance_costs_a_vector_for_each_head(name: str) -> None:
    """Never its [H, Q, K] form: memory for positions is O(H · T), forward and backward."""
    q, k, v = heads(1024, batch=1, dtype=torch.float32)
    scheme = build(name)
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=scheme)
    assert made.largest <= q.numel()
    assert made.total < 12 * q.numel()
    if name == "t5":
        with Allocations() as made:
            attention(q, k, v, scheme=scheme).sum().backward()
        assert made.largest <= HEADS * distance.BLOCK * (1024 + distance.BLOCK)


def test_masks_are_built_for_one_block_of_queries_and_a_causal_one_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sdpa, "BLOCK_ELEMENTS", 1 << 16)
    q, k, v = heads(1024, batch=1, dtype=torch.float32)
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=ROPE, mask=causal & window(64))
    assert made.largest <= 1 << 16
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=ROPE)
    assert made.largest <= q.numel()
    layer = MultiHeadAttention(DIM, HEADS, scheme=ROPE)
    x = random(1, 1024, DIM, dtype=torch.float32)
    with Allocations() as made, torch.no_grad():
        layer(x)
    assert made.largest <= q.numel()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("name", "maps"), [("none", 1), ("shaw", HEADS)])
def test_a_window_meets_only_the_keys_that_it_can_see(name: str, maps: int) -> None:
    length, scheme = 1024, build(name)
    q, k, v = heads(length, batch=1, dtype=torch.float32)
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=scheme, mask=causal & window(32))
    assert made.total < maps * length * length  # less than one [T, T] a map


def test_shaw_never_builds_a_vector_for_each_pair_of_tokens() -> None:
    length, width = 1536, 64
    shaw = Shaw(width, max_distance=16)
    q, k, v = (random(1, 1, length, width, seed=n, dtype=torch.float32) for n in range(3))
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=Scheme(relative=shaw))
    assert made.largest <= length * length
    assert made.peak < length * length * 4 * width / 2  # 0.6 GB for the gathered vectors alone


# --- Caches --------------------------------------------------------------------------------------


def rotated_keys(rope: Rope, num_tokens: int) -> tuple[Tensor, Tensor]:
    _, k, v = heads(num_tokens)
    at = sequence(num_tokens)
    return rotate_qk(k, k, rope.tables(at, at))[1], v


def test_a_cache_refuses_keys_of_another_encoding_and_says_what_to_do() -> None:
    layer = MultiHeadAttention(DIM, HEADS, scheme=ROPE)
    longer = MultiHeadAttention(
        DIM, HEADS, scheme=Scheme(rotary=Rope(HEAD_DIM, scaling=Linear(4.0)))
    )
    unrotated = MultiHeadAttention(DIM, HEADS)
    cache, x = KVCache(), random(1, 3, DIM, dtype=torch.float32)
    layer(x, cache=cache)
    for other in (longer, unrotated):
        with pytest.raises(ValueError, match=r"cached under Rope.*rerotate"):
            other(x, cache=cache)
    assert len(cache) == 3
    same = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=Rope(HEAD_DIM)))
    same(x, cache=cache)
    assert len(cache) == 6


def test_rerotated_keys_decode_like_a_fresh_forward() -> None:
    old = Rope(HEAD_DIM)
    new = Rope(HEAD_DIM, scaling=Yarn(4.0, 64))
    layer = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=old)).double()
    longer = copy.deepcopy(layer)
    longer.scheme = Scheme(rotary=new)
    x, cache = random(2, 9, DIM), KVCache()
    layer(x[:, :8], cache=cache)
    assert cache.keys is not None and cache.positions is not None
    cache.keys, cache.encoding = rerotate(cache.keys, cache.positions, old, new), new
    out = longer(x[:, 8:], cache=cache)
    assert_roundings(out.float(), longer(x)[:, 8:], 16)


def test_a_cache_keeps_the_next_position_of_every_row() -> None:
    layer, cache = MultiHeadAttention(DIM, HEADS, scheme=ROPE), KVCache()
    assert cache.next_positions(2).tolist() == [[0, 1]]
    at = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    real = (at >= 0).long()
    layer(random(2, 5, DIM, dtype=torch.float32), at, segments=real, cache=cache)
    assert cache.next_positions(2).tolist() == [[3, 4], [5, 6]]


def test_segments_are_given_for_every_call_on_a_cache_or_for_none() -> None:
    layer, x = MultiHeadAttention(DIM, HEADS, scheme=ROPE), random(1, 2, DIM, dtype=torch.float32)
    cache = KVCache()
    layer(x, cache=cache)
    with pytest.raises(ValueError, match="segments must be given for every call"):
        layer(x, cache=cache, segments=torch.zeros(1, 2, dtype=torch.int64))


@pytest.mark.parametrize("name", ["rope", "alibi"])
def test_a_cache_shared_by_rows_of_other_positions_grows_to_the_batch(name: str) -> None:
    """Prefill at shared positions [1, T], then rows that go on at their own."""
    layer = MultiHeadAttention(DIM, HEADS, scheme=build(name)).double()
    x, cache = random(2, 5, DIM), KVCache()
    layer(x[:, :3], cache=cache)
    layer(x[:, 3:4], torch.tensor([[3], [10]]), cache=cache)
    out = layer(x[:, 4:], cache=cache)
    for row, at in enumerate(([0, 1, 2, 3, 4], [0, 1, 2, 10, 11])):
        alone = layer(x[row : row + 1], torch.tensor(at))[:, 4:]
        assert_roundings(out[row : row + 1], alone, 64)


# --- The module ----------------------------------------------------------------------------------


def test_multi_head_attention_is_one_head_at_a_time() -> None:
    """Scores computed across heads, because nothing was transposed, are a tutorial fault."""
    layer = MultiHeadAttention(DIM, HEADS, num_kv_heads=2, projection_bias=True).double()
    x = random(2, 5, DIM)
    mixed = []
    for head in range(HEADS):
        mine = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        shared = slice(head // 2 * HEAD_DIM, (head // 2 + 1) * HEAD_DIM)
        q = x @ layer.q.weight[mine].T + layer.q.bias[mine]
        k = x @ layer.k.weight[shared].T + layer.k.bias[shared]
        v = x @ layer.v.weight[shared].T + layer.v.bias[shared]
        logits = q @ k.transpose(1, 2) / HEAD_DIM**0.5
        hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
        mixed.append(logits.masked_fill(hidden, float("-inf")).softmax(-1) @ v)
    assert_roundings(layer(x), layer.out(torch.cat(mixed, -1)), 64)


def test_tables_made_once_are_the_ones_that_a_layer_uses() -> None:
    layer = MultiHeadAttention(DIM, HEADS, scheme=ROPE)
    slow = Rope(HEAD_DIM, scaling=Linear(8.0))
    other = copy.deepcopy(layer)
    other.scheme = Scheme(rotary=slow)
    x, at = random(2, 5, DIM, dtype=torch.float32), torch.tensor([3, 1, 4, 1, 5])
    for rope, expected in ((Rope(HEAD_DIM), layer), (slow, other)):
        assert torch.equal(layer(x, at, tables=rope.tables(at, at)), expected(x, at))
    assert not torch.equal(layer(x, at), other(x, at))


def test_the_softmax_scale_of_a_method_reaches_the_module() -> None:
    method = Yarn(40.0, 64, mscale=1.0, mscale_all_dim=0.707, scale_softmax=True)
    plain = Yarn(40.0, 64, mscale=1.0, mscale_all_dim=0.707)
    rope = Rope(HEAD_DIM, scaling=method)
    layer = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=rope)).double()
    by_hand = MultiHeadAttention(
        DIM,
        HEADS,
        scheme=Scheme(rotary=Rope(HEAD_DIM, scaling=plain)),
        scale=HEAD_DIM**-0.5 * rope.frequencies().softmax_scale,
    ).double()
    by_hand.load_state_dict(layer.state_dict())
    x = random(2, 5, DIM)
    assert_roundings(layer(x), by_hand(x), 64)


def test_a_learned_scale_takes_real_positions_in_the_module_too() -> None:
    rotary = LearnedScaleRope(Rope(HEAD_DIM), initial_scale=2.0)
    layer = MultiHeadAttention(DIM, HEADS, scheme=Scheme(rotary=rotary)).double()
    plain = MultiHeadAttention(DIM, HEADS, scheme=ROPE).double()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "learned" not in k})
    x, at = random(2, 4, DIM), torch.tensor([0.0, 0.5, 2.0, 2.5], dtype=torch.float64)
    assert_roundings(layer(x, at), plain(x, (2 * at).long()), 64)
    prepared = Scheme(rotary=rotary).prepared(at, at)
    q, k, v = heads(4)
    assert_roundings(
        attention(q, k, v, scheme=prepared, q_pos=at, k_pos=at),
        attention(q, k, v, scheme=Scheme(rotary=rotary), q_pos=at, k_pos=at),
        4,
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_learns_is_a_parameter_of_the_module(name: str) -> None:
    """So that an optimizer finds it, and `.to()` and checkpoints carry it."""
    scheme = build(name)
    layer = MultiHeadAttention(DIM, HEADS, scheme=scheme, mask=mask_of(name))
    inside = {id(p) for p in layer.parameters()}
    for field, part in scheme.modules().items():
        assert {id(p) for p in part.parameters()} <= inside or field == "additive"
    projections = {"q.weight", "k.weight", "v.weight", "out.weight"}
    assert all(key in projections or key.startswith("learned.") for key in layer.state_dict())


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_more_queries_than_keys_need_positions_only_where_something_reads_them(impl: Any) -> None:
    q, k, v = heads(3, num_queries=5)
    real = same_segment(torch.tensor([[1, 1, 0]]), torch.ones(1, 5, dtype=torch.int64))
    for mask, seen in ((None, 3), (real, 2)):
        out = attention(q, k, v, mask=mask, impl=impl)
        keys, values = k[:, :, :seen], v[:, :, :seen]
        exact = torch.softmax(q @ keys.mT * HEAD_DIM**-0.5, -1) @ values
        assert_roundings(out, exact, 16)
    for scheme, mask in ((Scheme(), causal), (Scheme(), window(2)), (Scheme(bias=Alibi(4)), None)):
        with pytest.raises(ValueError, match="5 queries but 3 keys: give q_pos and k_pos"):
            attention(q, k, v, scheme=scheme, mask=mask, impl=impl)


def test_cross_attention_takes_positions_of_both_sides() -> None:
    q, k, v = heads(6, num_queries=2)
    q_pos, k_pos = torch.tensor([[2, 9], [0, 4]]), torch.tensor([5, 3, 3, 0, 8, -2])
    for scheme in (ROPE, Scheme(bias=T5Bias(HEADS))):
        together = attention(q, k, v, scheme=scheme, q_pos=q_pos, k_pos=k_pos, mask=None)
        exact = attention(
            q, k, v, scheme=scheme, q_pos=q_pos, k_pos=k_pos, mask=None, impl="reference"
        )
        assert_roundings(together.float(), exact.detach(), 16)
        for row in range(2):
            alone = attention(
                *(x[row : row + 1] for x in (q, k, v)),
                scheme=scheme,
                q_pos=q_pos[row],
                k_pos=k_pos,
                mask=None,
            )
            assert_roundings(together[row : row + 1], alone, 16)


@pytest.mark.parametrize(("num_queries", "num_keys"), [(4, 4), (2, 4), (1, 1)])
def test_default_positions_count_from_zero_and_end_with_the_keys(
    num_queries: int, num_keys: int
) -> None:
    q_pos, k_pos = query_key_positions(num_queries, num_keys, None, None)
    assert k_pos.tolist() == list(range(num_keys))
    assert q_pos.tolist() == list(range(num_keys - num_queries, num_keys))


def test_what_a_learned_distance_bias_keeps_is_freed_by_the_backward_pass() -> None:
    q, k, v = (x.requires_grad_() for x in heads(300, batch=1, dtype=torch.float32))
    turned = q * 1.0
    seen = weakref.ref(turned)
    out = attention(turned, k, v, scheme=build("t5"))
    del turned
    out.sum().backward()
    assert seen() is None
    assert q.grad is not None


def test_a_class_that_changes_a_value_changes_every_form_of_it() -> None:
    class Doubled(T5Bias):
        def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return 2 * super().value(head, q_pos, k_pos)

    bias, at = Doubled(2), torch.arange(300)
    rows = bias.per_distance(299 - at)
    assert torch.equal(rows, bias.dense(at[-1:], at)[0, :, 0])
    assert torch.equal(rows, 2 * T5Bias.value(bias, torch.arange(2)[:, None], at[-1:], at))


@pytest.mark.parametrize(("impl", "by_distance"), [("auto", True), ("auto", False), ("flex", True)])
def test_a_bias_that_is_the_same_for_every_head_needs_no_heads(
    impl: AttentionImpl, by_distance: bool
) -> None:
    class Same(LogitBias):
        def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return -0.1 * (q_pos - k_pos).abs()

    bias, at = Same(HEADS), torch.arange(9)
    bias.by_distance = by_distance
    assert bias.dense(at, at).shape == (1, HEADS, 9, 9)
    q, k, v = heads(9, dtype=torch.float32)
    scheme = Scheme(bias=bias)
    wanted = attention(q, k, v, scheme=scheme, impl="reference")
    torch.testing.assert_close(attention(q, k, v, scheme=scheme, impl=impl), wanted)
    if by_distance:
        assert bias.per_distance(at).shape == (HEADS, 9)


def test_a_vector_that_is_part_of_a_table_is_read_from_where_it_lies() -> None:
    class Rows(LogitBias):
        by_distance = True

        def __init__(self) -> None:
            super().__init__(1)
            self.table = torch.randn(100, generator=torch.Generator().manual_seed(0))

        def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return self.table[50 + q_pos - k_pos]

        def _of_distances(self, head: Tensor, distances: Tensor) -> Tensor:
            backwards = self.table.flip(0)
            return backwards[None, 49 - int(distances[0]) : 50 - int(distances[-1])]

    q, k, v = (random(1, 1, 9, 8, seed=seed, dtype=torch.float32) for seed in range(3))
    scheme = Scheme(bias=Rows())
    for mask in (None, causal & window(5), causal):
        wanted = attention(q, k, v, scheme=scheme, mask=mask, impl="reference")
        torch.testing.assert_close(attention(q, k, v, scheme=scheme, mask=mask), wanted)
