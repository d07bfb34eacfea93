"""Calls that are plainer than they look: explicit positions that follow one by one, and packed rows.

Distances between positions s, s + 1, … are those between places in storage, whatever s is: masks and
biases of distance then need no form per pair. Documents side by side in one row do not see each
other, so each is a call of its own, and no mask between documents is ever built.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import and_

import torch
from torch import Tensor

from posenc.attention.problem import Problem
from posenc.contracts import rows
from posenc.masks import Causal, SameSegment, Window, parts_of
from posenc.positions.checks import can_look

__all__ = ["by_document", "documents", "in_order"]

FEW = 128  # queries of a document on average, below which one call with a mask is faster
Document = tuple[slice, slice, slice]  # rows of the batch, queries, keys


def in_order(problem: Problem) -> Problem:
    """With `contiguous` set where the given positions follow one by one, in each row from its own
    first, and queries are the last of the keys. Asked on the CPU alone, where looking is free."""
    q_pos, k_pos = problem.q_pos, problem.k_pos
    # a mask of one's own may ask where positions begin
    is_known = all(
        isinstance(part, Causal | Window | SameSegment) for part in parts_of(problem.mask)
    )
    is_asked = is_known and problem.num_axes == 1 and problem.scheme.relative is None
    if problem.contiguous or not is_asked or not can_look(q_pos, k_pos):
        return problem
    num_queries, num_keys = q_pos.shape[-1], k_pos.shape[-1]
    if num_queries > num_keys:
        return problem
    follows = not k_pos.is_floating_point() and bool((k_pos.diff(dim=-1) == 1).all())
    at_end = follows and bool((q_pos == k_pos[..., num_keys - num_queries :]).all())
    return replace(problem, contiguous=True) if at_end else problem


def documents(problem: Problem) -> list[Document] | None:
    """Where each document of a packed row lies, or None where one call with a mask is better: on a
    device, in a compiled graph, where a document lies in pieces, where documents are short."""
    segments = [part for part in parts_of(problem.mask) if isinstance(part, SameSegment)]
    tensors = [x for part in segments for x in (part.q_segments, part.k_segments)]
    if not segments or problem.scheme.relative is not None or not can_look(*tensors):
        return None
    if problem.q.shape[2] < FEW:
        return None
    of_keys, of_queries = (
        torch.stack(torch.broadcast_tensors(*(rows(x).long() for x in sides)), -1)
        for sides in (tensors[1::2], tensors[::2])
    )
    shift = problem.k.shape[2] - problem.q.shape[2]
    if shift < 0 or not bool((of_queries == of_keys[:, shift:]).all()):
        return None
    batch, found = problem.q.shape[0], []
    for row, ids in enumerate(of_keys):
        places = _runs(ids)
        if places is None:
            return None
        where = slice(0, batch) if of_keys.shape[0] == 1 else slice(row, row + 1)
        for start, stop in places:
            if stop > shift:  # else only keys, that no query sees
                queries = slice(max(start - shift, 0), stop - shift)
                found.append((where, queries, slice(start, stop)))
    return found if of_keys.shape[0] * problem.q.shape[2] >= FEW * len(found) else None


def _runs(ids: Tensor) -> list[tuple[int, int]] | None:
    """Where the documents of one row, `[K, parts]`, lie; None where one is in pieces."""
    distinct, counts = torch.unique_consecutive(ids, dim=0, return_counts=True)
    if len(set(map(tuple, distinct.tolist()))) < len(distinct):
        return None
    stops = counts.cumsum(0).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


def by_document(
    problem: Problem, found: list[Document], attend: Callable[[Problem], Tensor]
) -> Tensor:
    """`attend` over each document by itself, put together again."""
    outs: dict[int, list[Tensor]] = {}
    for where, queries, keys in found:
        part = _of_rows(problem, where).block(queries, keys)
        others = [p for p in parts_of(part.mask) if not isinstance(p, SameSegment)]
        mask = reduce(and_, others) if others else None
        part = in_order(replace(part, mask=mask, contiguous=problem.contiguous))
        outs.setdefault(where.start, []).append(attend(part))
    return torch.cat([torch.cat(of_row, 2) for of_row in outs.values()], 0)


def _of_rows(problem: Problem, where: slice) -> Problem:
    """The rows of the batch alone; segments are dropped later, so that they may stay as they are."""
    q_pos, k_pos = (
        x if rows(x, problem.num_axes).shape[0] == 1 else x[where]
        for x in (problem.q_pos, problem.k_pos)
    )
    q, k, v = (x[where] for x in (problem.q, problem.k, problem.v))
    return replace(problem, q=q, k=k, v=v, q_pos=q_pos, k_pos=k_pos)
