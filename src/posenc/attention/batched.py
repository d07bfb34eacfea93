"""Linear attention without a loop over the length: one graph, traced or compiled, serves all lengths.

Every chunk is written out at once, `[B, H, n, C, C]`, and the states of the chunks before it (where
attention looks both ways, of those after it too) are summed by doubling. Memory is still O(T), with a
larger constant than the loop's, and nothing is asked of the host.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.features import Features, ratio, segments_of
from posenc.attention.problem import Problem
from posenc.contracts import rows
from posenc.masks import Causal, SameSegment, Window, parts_of

__all__ = ["all_chunks", "all_windows", "as_one"]

CHUNK = 64  # where pairs of tokens and states of 64 × 64 channels take the same room
DOUBLINGS = 16  # of the number of chunks summed: 4 million tokens
Cut = Callable[[Tensor], Tensor]


def as_one(features: Features, problem: Problem) -> Tensor:
    """Every query against every key, written out: a step of decoding."""
    allowed = problem.allowed()
    assert allowed is not None
    return ratio(*features.within(allowed))


def all_windows(features: Features, problem: Problem, reach: int, *, causally: bool) -> Tensor:
    """Chunks no shorter than the window, against themselves and the chunks beside them."""
    num_tokens = problem.k.shape[2]
    size: Any = torch.sym_max(CHUNK, torch.sym_min(reach, num_tokens))

    def fold(x: Tensor) -> Tensor:
        return _folded(x, size)

    def beside(x: Tensor) -> Tensor:
        folded = fold(x)
        after = [] if causally else [_moved(folded, -1)]
        return torch.cat([_moved(folded, 1), folded, *after], -2)

    k, turned_k, v = (beside(x) for x in (features.k, features.turned_k, features.v))
    folded = Features(fold(features.q), k, fold(features.turned_q), turned_k, v)
    return _unfolded(*folded.within(_allowed(problem, fold, beside)), num_tokens)


def all_chunks(features: Features, problem: Problem, *, causally: bool) -> Tensor:
    """Pairs inside a chunk written out, all keys of the same segment outside it in a state."""

    def fold(x: Tensor) -> Tensor:
        return _folded(x, CHUNK)

    segments = _of_tokens(segments_of(problem), fold)  # [B|1, n, C]
    has_segments = any(isinstance(part, SameSegment) for part in parts_of(problem.mask))
    chunks = features.each(fold)
    numerator, total = chunks.within(_allowed(problem, fold, fold))
    before = _before(chunks, segments, has_segments)
    numerator, total = numerator + before[0], total + before[1]
    if not causally:
        mirrored = chunks.each(lambda x: x.flip(2, 3))
        after = _before(mirrored, segments.flip(1, 2), has_segments)
        numerator, total = numerator + after[0].flip(2, 3), total + after[1].flip(2, 3)
    return _unfolded(numerator, total, problem.k.shape[2])


def _before(chunks: Features, segments: Tensor, has_segments: bool) -> tuple[Tensor, Tensor]:
    """Numerator and normaliser over the keys of earlier chunks."""
    if not has_segments:
        return chunks.through(*(_moved(x.cumsum(2), 1) for x in chunks.state()))
    last = segments[..., -1]
    own = torch.cat(chunks.keeping(segments == last[..., None]).state(), -1)
    before = _moved(_summed(own, last), 1)
    goes_on = (segments == F.pad(last, (1, 0))[:, :-1, None])[:, None, ..., None]
    numerator, total = chunks.through(before[..., :-1], before[..., -1:])
    return numerator * goes_on, total * goes_on


def _summed(own: Tensor, last: Tensor) -> Tensor:
    """`[B, H, n, …]` states, each with those before it that end in the same segment `[B|1, n]`.

    A sum over 1, 2, 4, … chunks is two sums over half as many; the number of steps is fixed.
    """
    if own.shape[2] > 1 << DOUBLINGS:
        raise ValueError(f"a graph sums segments over {CHUNK << DOUBLINGS:,} tokens at most")
    place = torch.arange(own.shape[2], device=own.device)
    for step in range(DOUBLINGS):
        before = place - (1 << step)
        index = before.clamp(min=0)
        goes_on = (before >= 0) & (last[:, index] == last)
        own = own + own.index_select(2, index) * goes_on[:, None, :, None, None]
    return own


def _moved(chunks: Tensor, by: int) -> Tensor:
    """`[..., n, C, D]`: chunk c gets what chunk c − `by` (1 or −1) held, an end gets zeros."""
    return F.pad(chunks, (0, 0, 0, 0, by, -by))


def _allowed(problem: Problem, of_queries: Cut, of_keys: Cut) -> Tensor:
    """`[B|1, 1, n, C, K]`, which queries of a chunk see which of its keys."""
    seen = torch.ones((), dtype=torch.bool, device=problem.q.device)
    for part in parts_of(problem.mask):
        is_segment = isinstance(part, SameSegment)
        sides = (part.q_segments, part.k_segments) if is_segment else (problem.q_pos, problem.k_pos)
        q = _of_tokens(rows(sides[0]), of_queries)[..., :, None]
        k = _of_tokens(rows(sides[1]), of_keys)[..., None, :]
        if is_segment:
            seen = seen & (q == k)
        elif isinstance(part, Window):
            seen = seen & ((q - k).abs() < part.size)
        else:
            assert isinstance(part, Causal)
            seen = seen & (k <= q)
    return seen[:, None]


def _of_tokens(x: Tensor, cut: Cut) -> Tensor:
    """`[B|1, T]` cut as features are."""
    return cut(x[..., None])[..., 0]


def _folded(x: Tensor, size: int) -> Tensor:
    """`[..., T, D]` -> `[..., n, size, D]`, filled up with zeros, which add nothing.

    At least two chunks: a compiler makes a graph of its own for a dimension of 1.
    """
    return F.pad(x, (0, 0, 0, size + -x.shape[-2] % size)).unflatten(-2, (-1, size))


def _unfolded(numerator: Tensor, total: Tensor, num_tokens: int) -> Tensor:
    return ratio(numerator, total).flatten(2, 3)[:, :, :num_tokens]
