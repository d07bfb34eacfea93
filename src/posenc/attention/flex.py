"""Attention through FlexAttention: a bias by distance is looked up in a vector per head.

One fused kernel on a GPU, forward and backward, with the gradient of a learned bias. On a CPU it runs
unfused and forward only, for tests. Masks become block masks: blocks of queries and keys that hide
each other whole are not read. Under a causal mask a falling bias (ALiBi) leaves out, per head, the
blocks of keys that together weigh less than half a unit of float32; the bound is that of
`distance.farthest_distances`.

Dong et al. 2024, "Flex Attention: A Programming Model for Generating Optimized Attention Kernels",
arXiv 2412.05496.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from posenc.attention.distance import FEW, distance_vector, farthest_distances
from posenc.attention.problem import Problem
from posenc.attention.sdpa import positioned
from posenc.contracts import LogitBias, rows
from posenc.masks import Causal, SameSegment, Window, is_causal, parts_of

__all__ = ["flex_refusal", "flexible_attention"]

BLOCK = 128  # queries and keys of one block of a mask
SPAN = 1 << 22  # distances of one vector: 16 MB a head in float32
NARROWEST = 16  # channels of a head that the GPU's kernel takes
Mod = Callable[..., Tensor]


def flexible_attention(problem: Problem) -> Tensor:
    """Softmax attention `[B, H, Q, Dv]`; a ValueError says what FlexAttention cannot express."""
    problem = positioned(problem)
    refusal = flex_refusal(problem)
    if refusal is not None:
        raise ValueError(f"impl='flex' cannot do this: {refusal}; impl='auto' can")
    bias, mask = problem.scheme.bias, _block_mask(problem)
    score_mod = None if bias is None else _score_mod(problem, bias)
    grouped = problem.q.shape[1] != problem.k.shape[1]
    return _run(problem.q.device.type)(
        problem.q,
        problem.k,
        problem.v,
        score_mod=score_mod,
        block_mask=mask,
        scale=problem.scale,
        enable_gqa=grouped,
    )


def flex_refusal(problem: Problem) -> str | None:
    """Why FlexAttention cannot express this call, or None where it can."""
    scheme, q = problem.scheme, problem.q
    known = (Causal, Window, SameSegment)
    unknown = [part for part in parts_of(problem.mask) if not isinstance(part, known)]
    reasons = {
        f"{type(scheme.relative).__name__} adds vectors, not a bias": scheme.relative is not None,
        f"{type(scheme.bias).__name__} is no function of distance alone": (
            scheme.bias is not None and not scheme.bias.by_distance
        ),
        f"it knows causal, window and same_segment, not {unknown}": bool(unknown),
        "a compiled graph cannot read how far apart the given positions are": (
            scheme.bias is not None and not problem.contiguous and torch.compiler.is_compiling()
        ),
        "FlexAttention has no backward pass on a CPU: run under torch.no_grad()": (
            q.device.type == "cpu" and _needs_gradients(problem)
        ),
        f"on a GPU it takes float32 or narrower and heads of {NARROWEST} channels or more": (
            q.device.type != "cpu" and (q.dtype == torch.float64 or q.shape[3] < NARROWEST)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _needs_gradients(problem: Problem) -> bool:
    learned = [] if problem.scheme.bias is None else list(problem.scheme.bias.parameters())
    inputs = (problem.q, problem.k, problem.v, *learned)
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


@cache
def _run(device: str) -> Callable[..., Any]:
    return _unfused if device == "cpu" else torch.compile(flex_attention)


def _unfused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """In a compiled graph the compiler fuses it; else PyTorch warns that nothing does."""
    if torch.compiler.is_compiling():
        return flex_attention(q, k, v, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(q, k, v, **options)


def _score_mod(problem: Problem, bias: LogitBias) -> Mod:
    """Adds the entry of the vector that belongs to the distance, in float32 or wider."""
    dtype = torch.promote_types(problem.q.dtype, torch.float32)
    if problem.contiguous:
        vector = distance_vector(problem, masked=False).flip(-1)  # distances −(Q − 1) … K − 1
        last = torch.full((), problem.k.shape[2] - 1, device=problem.q.device)

        def by_place(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + vector[h, q - k + last]

        return by_place
    q_pos, k_pos = rows(problem.q_pos), rows(problem.k_pos)
    low, high = _span(q_pos, k_pos)
    distances = torch.arange(low, high + 1, device=q_pos.device)
    vector = bias.per_distance(distances, dtype=dtype, for_softmax=True).contiguous()
    q_place, k_place = q_pos - low, k_pos

    def by_position(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        place = _at(q_place, b, q) - _at(k_place, b, k)
        return score + vector[h, place]

    return by_position


def _span(q_pos: Tensor, k_pos: Tensor) -> tuple[int, int]:
    """The smallest and largest distance; on a GPU the host waits for them once."""
    ends = torch.stack((q_pos.min() - k_pos.max(), q_pos.max() - k_pos.min())).tolist()
    if ends[1] - ends[0] > SPAN:
        raise ValueError(
            f"impl='flex' cannot do this: distances from {ends[0]} to {ends[1]} are more than "
            f"{SPAN:,}; impl='auto' can"
        )
    return ends[0], ends[1]


def _at(of_rows: Tensor, b: Tensor, token: Tensor) -> Tensor:
    """The entry of `[1, T]`, the same for all, or of `[B, T]`."""
    return of_rows[0, token] if of_rows.shape[0] == 1 else of_rows[b, token]


def _block_mask(problem: Problem) -> BlockMask | None:
    parts = parts_of(problem.mask)
    if not parts:
        return None
    if problem.contiguous and all(isinstance(part, Causal | Window) for part in parts):
        return _by_distance(problem)
    batch, _, num_queries, _ = problem.q.shape
    of_rows = _rows_of_mask(problem)
    shared = all(x.shape[0] == 1 for x in of_rows)
    sizes = (1 if shared else batch, 1, num_queries, problem.k.shape[2])
    return create_block_mask(_mask_mod(problem), *sizes, device=problem.q.device)


def _rows_of_mask(problem: Problem) -> list[Tensor]:
    """All positions and segments that the mask looks at, by rows of the batch."""
    parts, found = parts_of(problem.mask), []
    for part in parts:
        if isinstance(part, SameSegment):
            found += [part.q_segments, part.k_segments]
    if not all(isinstance(part, SameSegment) for part in parts):
        found += [rows(problem.q_pos), rows(problem.k_pos)]
    return [rows(x) for x in found]


def _mask_mod(problem: Problem) -> Mod:
    """The mask, elementwise: `mask_mod(b, h, q, k)` over places in storage."""
    parts = parts_of(problem.mask)
    segments = [
        (rows(part.q_segments), rows(part.k_segments))
        for part in parts
        if isinstance(part, SameSegment)
    ]
    ordered = [part for part in parts if not isinstance(part, SameSegment)]
    q_pos, k_pos = (rows(x, problem.num_axes) for x in (problem.q_pos, problem.k_pos))

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (q >= 0) & (k >= 0)
        for of_queries, of_keys in segments:
            seen = seen & (_at(of_queries, b, q) == _at(of_keys, b, k))
        for part in ordered:
            seen = seen & _allowed(part, _at(q_pos, b, q), _at(k_pos, b, k))
        return seen

    return mod


def _allowed(part: object, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    if isinstance(part, Window):
        return (q_pos - k_pos).abs() < part.size
    assert isinstance(part, Causal)
    return k_pos <= q_pos


def _by_distance(problem: Problem) -> BlockMask:
    """From the distances at the corners of each block: no mask of single pairs is ever built."""
    num_queries, num_keys = problem.q.shape[2], problem.k.shape[2]
    shift, device = num_keys - num_queries, problem.q.device
    q_start = torch.arange(0, num_queries, BLOCK, device=device)[:, None]
    k_start = torch.arange(0, num_keys, BLOCK, device=device)
    q_stop, k_stop = q_start + BLOCK, k_start + BLOCK
    nearest = q_start + shift - (k_stop - 1)  # distances within a block: nearest … farthest
    farthest = q_stop - 1 + shift - k_start
    some, every = (
        torch.ones_like(nearest, dtype=torch.bool),
        (q_stop <= num_queries) & (k_stop <= num_keys),
    )
    for part in parts_of(problem.mask):
        if isinstance(part, Causal):
            some, every = some & (farthest >= 0), every & (nearest >= 0)
        elif isinstance(part, Window):
            size = part.size
            some = some & (nearest < size) & (farthest > -size)
            every = every & (farthest < size) & (nearest > -size)
    some, every = some[None], every[None]  # heads in front
    reach = _reach(problem)
    if reach is not None:
        some = some & (nearest <= reach[..., None])
    full = (some & every)[None]
    partial = (some & ~every)[None].expand_as(full)
    shift_at = torch.full((), shift, device=device)
    ordered = parts_of(problem.mask)

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (q >= 0) & (k >= 0)
        for part in ordered:
            seen = seen & _allowed(part, q + shift_at, k)
        return seen

    return BlockMask.from_kv_blocks(
        *_listed(partial),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=mod,
        seq_lengths=(num_queries, num_keys),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Number and indices of the key blocks of each block of queries, those in use first."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32).contiguous(), order.to(torch.int32).contiguous()


def _reach(problem: Problem) -> Tensor | None:
    """`[H, N]`, the largest distance that each block of queries must read, for a falling bias."""
    bias, num_queries = problem.scheme.bias, problem.q.shape[2]
    if bias is None or not (bias.falls and is_causal(problem.mask)) or num_queries < FEW:
        return None
    if any(p.requires_grad for p in bias.parameters()) or torch.compiler.is_compiling():
        return None
    blocks = [slice(i, min(i + BLOCK, num_queries)) for i in range(0, num_queries, BLOCK)]
    return farthest_distances(problem, distance_vector(problem), blocks)
