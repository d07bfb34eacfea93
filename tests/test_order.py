"""Explicit positions that follow one by one, and packed rows: equal to the definition, no masks."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from posenc import Scheme, attention, causal, same_segment, window
from posenc.attention import order
from posenc.attention.problem import checked
from posenc.bias import Kerple
from posenc.masks import Mask
from posenc.positions import from_lengths, sequence
from support import HEADS, Allocations, assert_roundings, build, heads

LENGTHS = [300, 170, 400]
NAMES = ("none", "rope", "alibi", "t5", "kerple", "fire")


def scheme_of(name: str) -> Scheme:
    return Scheme() if name == "none" else build(name)


def is_reference(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> None:
    with torch.no_grad():
        out = attention(q, k, v, **options)
        exact = attention(q, k, v, impl="reference", **options)
    assert_roundings(out.float(), exact, 64)


@pytest.mark.parametrize("mask", [causal, causal & window(20)], ids=["causal", "window"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_are_the_reference(name: str, batch: int, mask: Mask) -> None:
    at, segments = from_lengths(LENGTHS)
    q, k, v = heads(sum(LENGTHS), batch=batch, num_kv_heads=2)
    of_rows = torch.stack([segments, *[(segments > 1).long()] * (batch - 1)])
    for joined in (mask & same_segment(segments), mask & same_segment(of_rows)):
        for num_queries in (sum(LENGTHS), 500):
            options: dict[str, Any] = {"scheme": scheme_of(name), "mask": joined}
            last = q[:, :, -num_queries:]
            is_reference(last, k, v, **options)
            is_reference(last, k, v, k_pos=at + 7, **options)


@pytest.mark.parametrize("name", ["alibi", "t5", "rope"])
def test_gradients_through_documents_are_the_reference(name: str) -> None:
    at, segments = from_lengths(LENGTHS)
    scheme, mask = scheme_of(name), causal & same_segment(segments)
    learned = [p for part in scheme.modules().values() for p in part.parameters()]
    inputs = [x.requires_grad_() for x in heads(sum(LENGTHS), batch=1)]
    grads: list[tuple[Tensor, ...]] = []
    for impl in ("auto", "reference"):
        out = attention(*inputs, scheme=scheme, mask=mask, k_pos=at, impl=impl)  # pyright: ignore
        grads.append(torch.autograd.grad(out.square().sum(), [*inputs, *learned]))
    for mine, exact in zip(*grads, strict=True):
        assert_roundings(mine.float(), exact, 256)


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "t5"])
def test_positions_one_by_one_build_no_mask(name: str) -> None:
    length, scheme = 700, scheme_of(name)
    q, k, v = heads(length, dtype=torch.float32)
    each = torch.stack([sequence(length), sequence(length, start=90)])
    for at in (sequence(length, start=5), each):
        with Allocations() as seen, torch.no_grad():
            out = attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at)
        assert seen.largest < length * length
        with torch.no_grad():
            exact = attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at, impl="reference")
        assert_roundings(out, exact, 64)


@pytest.mark.parametrize("name", ["none", "t5"])
def test_documents_build_no_mask(name: str) -> None:
    at, segments = from_lengths([700, 700, 700])
    q, k, v = heads(2100, batch=1, dtype=torch.float32)
    mask = causal & same_segment(segments)
    with Allocations() as seen, torch.no_grad():
        attention(q, k, v, scheme=scheme_of(name), q_pos=at, k_pos=at, mask=mask)
    assert seen.largest < 700 * 700


def test_positions_that_skip_or_repeat_are_not_taken_for_places() -> None:
    q, k, v = heads(300, batch=1)
    scheme = Scheme(bias=Kerple(HEADS))
    for at in (
        sequence(300) * 2,
        sequence(300).flip(0),
        sequence(300).clamp(max=200),
        torch.cat((sequence(299), torch.tensor([400]))),
    ):
        is_reference(q, k, v, scheme=scheme, q_pos=at, k_pos=at)
    for start in (0, 1, 30):  # queries that are not the last of the keys
        is_reference(q[:, :, :200], k, v, scheme=scheme, q_pos=sequence(200, start=start),
                     k_pos=sequence(300))  # fmt: skip


def test_documents_in_pieces_short_ones_and_other_queries_are_masked() -> None:
    pieces = torch.tensor([0, 1, 0]).repeat_interleave(200)
    short = torch.arange(600) // 20
    other = torch.tensor([0, 1, 1]).repeat_interleave(200)
    q, k, v = heads(600, batch=1)
    for mask in (same_segment(pieces), same_segment(short), same_segment(other, pieces)):
        problem = checked(q, k, v, Scheme(), None, None, causal & mask, None)
        assert order.documents(problem) is None
        is_reference(q, k, v, scheme=build("alibi"), mask=causal & mask)
    whole = checked(q, k, v, Scheme(), None, None, causal & same_segment(other), None)
    found = order.documents(whole)
    assert found is not None and [part[2] for part in found] == [slice(0, 200), slice(200, 600)]


def test_two_kinds_of_segments_make_the_documents_of_both() -> None:
    first, second = ((torch.arange(600) >= at).long() for at in (200, 350))
    q, k, v = heads(600, batch=1)
    mask = causal & same_segment(first) & same_segment(second)
    found = order.documents(checked(q, k, v, Scheme(), None, None, mask, None))
    assert found is not None and [part[2].stop for part in found] == [200, 350, 600]
    is_reference(q, k, v, scheme=build("t5"), mask=mask)


@dataclass(frozen=True)
class From(Mask):
    """Keys at a position and after."""

    start: int

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (k_pos[:, None, :] >= self.start).expand(-1, q_pos.shape[1], -1)

    def visible(self, first: int, last: int) -> tuple[int | None, int | None]:
        return self.start, None


def test_a_mask_of_ones_own_is_asked_for_positions() -> None:
    q, k, v = heads(600, batch=1)
    is_reference(q, k, v, k_pos=torch.arange(600) + 50, mask=causal & From(20))
    is_reference(q, k, v, k_pos=torch.arange(600) + 50, mask=From(20))


def test_a_recorded_graph_keeps_no_positions_of_its_example() -> None:
    q, k, v = heads(300, batch=1, dtype=torch.float32)
    scheme, at = scheme_of("alibi"), torch.arange(300)

    def attend(q: Tensor, at: Tensor, ids: Tensor) -> Tensor:
        return attention(q, k, v, scheme=scheme, k_pos=at, mask=causal & same_segment(ids))

    graph = make_fx(attend)(q, at, torch.zeros(300, dtype=torch.int64))
    ids, other = (at > 150).long(), at * 3
    torch.testing.assert_close(graph(q, other, ids), attend(q, other, ids))
