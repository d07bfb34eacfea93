"""Attention with a bias that depends on distance alone: a vector per head, never an `[H, Q, K]`.

On the CPU a compiled kernel reads the vector (kernels/attention.cpp). Elsewhere the fused kernel of
PyTorch does: flip a block of queries and row r, key j lies at distance c − r − j: the bias that it
needs is entry r + j of the reversed distance vector, a strided view with positive strides. The fused
kernel takes that view as its mask, so memory for positions is O(H·T). Causal and windowed masks are
functions of distance too and live in the same vector as −inf.
"""

import math
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from posenc.attention.problem import Problem
from posenc.masks import Causal, Window, is_causal, parts_of
from posenc.positions.checks import is_bare, is_recorded

__all__ = [
    "distance_attention",
    "distance_vector",
    "farthest_distances",
    "is_by_distance",
    "native_attention",
]

BLOCK = 256  # queries at a time; causal blocks skip the keys after their last query
LONG = 8192  # keys, from which larger blocks pay
FALLING = 512  # keys, beyond which it pays to ask which of them a falling bias makes invisible
FEW = 64  # queries; to ask costs a look at every key, which pays only where many queries share it
BACKWARD_ELEMENTS = 1 << 22  # weights written out at once for the gradient, 16 MB in float32


def is_by_distance(problem: Problem) -> bool:
    """Whether bias and mask are functions of distance, at positions that the host knows."""
    bias = problem.scheme.bias
    return (
        problem.contiguous
        and bias is not None
        and bias.by_distance
        and problem.scheme.relative is None
        and all(isinstance(part, Causal | Window) for part in parts_of(problem.mask))
        and not torch.compiler.is_compiling()
    )


def distance_attention(problem: Problem) -> Tensor:
    """Softmax attention `[B, H, Q, Dv]`; queries are the last Q of K contiguous keys."""
    vector = distance_vector(problem)
    if torch.is_grad_enabled() and vector.requires_grad:
        group = problem.q.shape[1] // problem.k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (problem.k, problem.v))
        return _WithBiasGradient.apply(problem.q, k, v, vector, problem)  # pyright: ignore
    if _use_native(problem, vector):
        return _native(problem, vector)
    skips = _may_skip(problem) and all(map(_is_real, (problem.q, problem.k, vector)))
    longer = (2 if skips else 4) if problem.k.shape[2] >= LONG else 1
    blocks = _blocks(problem.q.shape[2], longer * BLOCK)
    firsts: list[list[int]] | list[None] = [None] * len(blocks)
    if skips:
        farthest = farthest_distances(problem, vector, blocks)
        vector, firsts = _without(vector, farthest, problem), first_keys(problem, farthest, blocks)
    outs = [_attend(problem, vector, *block) for block in zip(blocks, firsts, strict=True)]
    return torch.cat(outs, dim=2)


def native_attention(problem: Problem) -> Tensor:
    """The same by the compiled kernel, or a ValueError that says why it cannot."""
    kernel = _kernel()
    if kernel.missing() is not None:
        raise ValueError(f"impl='native' cannot attend: {kernel.missing()}")
    if not is_by_distance(problem):
        raise ValueError(
            "impl='native' takes positions in storage order, a mask of causal and window parts, and "
            "biases that depend on distance alone, outside of compiled graphs"
        )
    vector = distance_vector(problem)
    wants_grad = torch.is_grad_enabled() and vector.requires_grad
    if wants_grad or not _use_native(problem, vector):
        shapes = ", ".join(f"{list(x.shape)}" for x in (problem.q, problem.k, problem.v))
        raise ValueError(
            f"impl='native' takes float32 CPU tensors without gradients or transforms, at least "
            f"{kernel.FEWEST_QUERIES} queries and as many keys, got {problem.q.dtype} {shapes} on "
            f"{problem.q.device} with a gradient wanted: {wants_grad or _wants_grad(problem)}"
        )
    return _native(problem, vector)


def _wants_grad(problem: Problem) -> bool:
    inputs = (problem.q, problem.k, problem.v)
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _use_native(problem: Problem, vector: Tensor) -> bool:
    kernel = _kernel()
    return (
        problem.native
        and kernel.fits(problem.q, problem.k, problem.v)
        and vector.dtype == torch.float32
        and is_bare(vector)
    )


def _native(problem: Problem, vector: Tensor) -> Tensor:
    mask, num_queries, num_keys = problem.mask, problem.q.shape[2], problem.k.shape[2]
    start, stop = (None, None) if mask is None else mask.visible(0, 0)
    return _kernel().attend(
        problem.q,
        problem.k,
        problem.v,
        vector,
        scale=problem.scale,
        nearest=1 - num_queries if stop is None else max(1 - stop, 1 - num_queries),
        farthest=num_keys - 1 if start is None else min(-start, num_keys - 1),
        falls=_falls(problem) and num_keys > FALLING,
    )


@cache
def _kernel() -> ModuleType:
    """The module of the compiled kernel, loaded at the first attention with a bias."""
    from posenc.kernels import attention  # noqa: PLC0415

    return attention


def first_keys(problem: Problem, farthest: Tensor, blocks: list[slice]) -> list[list[int]]:
    """For each block of queries and each head, the first key that must be read."""
    shift = problem.k.shape[2] - problem.q.shape[2]
    return [
        [_floor(block.start + shift - distance) for distance in farthest_of_block]
        for block, farthest_of_block in zip(blocks, farthest.T.tolist(), strict=True)
    ]


def _without(vector: Tensor, farthest: Tensor, problem: Problem) -> Tensor:
    """The vector with −inf beyond what any block must read.

    A weight of exp(−90) is a subnormal number, and products with those take many times longer.
    """
    entry = torch.arange(vector.shape[1], device=vector.device)
    nearest_left_out = problem.k.shape[2] - 1 - farthest.amax(1, keepdim=True)
    return vector.masked_fill(entry < nearest_left_out, float("-inf"))


def farthest_distances(problem: Problem, vector: Tensor, blocks: list[slice]) -> Tensor:
    """`[H, N]`, for each head and block of queries the largest distance that must be read.

    Let s be the softmax scale, b the bias over distances, and query i see the keys up to itself. The
    logit of key j is at most s|q_i|K + b(i-j), K being the largest norm of a key of the head; the
    key at the query itself has s q_i·k_i + b(0). All keys at distances from D on together therefore
    weigh, relative to that one key,

        at most  exp(s|q_i|K - s q_i·k_i - b(0)) · Σ_{d >= D} exp(b(d)),

    and D is the smallest distance at which this is below half a unit in the last place (2^-24 in
    float32), for every query of the block. What is left out is at most that share of the whole, so an
    output moves by at most a unit, 2^-23, of the largest value. A bias that does not fall (T5's)
    leaves out nothing; neither does a query or key that is not finite.
    """
    num_keys = problem.k.shape[2]
    margins = _margins(problem.q.detach(), problem.k.detach(), problem.scale, blocks)  # [H, N]
    bias = vector.detach()[:, : problem.k.shape[2]].double()  # distances K-1 down to 0
    tails = bias.logcumsumexp(-1)  # [H, K]: entry c sums the distances from K-1 down to K-1-c
    limit = math.log(torch.finfo(vector.dtype).eps / 2) - margins + bias[:, -1:]
    beyond = torch.searchsorted(tails, limit, right=True)  # entries that may be left out
    return num_keys - 1 - beyond


def _may_skip(problem: Problem) -> bool:
    """A causal, fixed bias over many keys, on the CPU: elsewhere the host would wait for norms."""
    is_many = problem.k.shape[2] > FALLING and problem.q.shape[2] >= FEW
    return _falls(problem) and is_many and problem.q.device.type == "cpu"


def _falls(problem: Problem) -> bool:
    bias = problem.scheme.bias
    return is_causal(problem.mask) and bias is not None and bias.falls


def _is_real(x: Tensor) -> bool:
    """Data of this process: under a transform, and in a graph, there are no numbers to look at."""
    return is_bare(x) and not is_recorded()


def _margins(q: Tensor, k: Tensor, scale: float, blocks: list[slice]) -> Tensor:
    """`max(s|q_i|K - s q_i·k_i)` over the queries of each block, `[H, N]`, with room for rounding."""
    q, k = q.float(), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
    at_query = k[:, :, k.shape[2] - q.shape[2] :]
    largest = k.norm(dim=-1).amax(-1, keepdim=True)
    margin = abs(scale) * q.norm(dim=-1) * largest - scale * (q * at_query).sum(-1)  # [B, H, Q]
    margin = margin.amax(0) * (1 + 1e-4) + 1e-3
    of_blocks = torch.stack([margin[:, block].amax(-1) for block in blocks], -1)
    return of_blocks.nan_to_num(nan=math.inf, posinf=math.inf).double()


def _floor(key: int) -> int:
    """Rounded down, so that heads often agree and share a call."""
    return max(0, key // BLOCK * BLOCK)


def _blocks(num_queries: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, num_queries)) for i in range(0, num_queries, size)]


def distance_vector(problem: Problem, *, masked: bool = True) -> Tensor:
    """Bias and mask of distances K − 1 down to −(Q − 1), `[H, K + Q − 1]`."""
    bias, num_queries, num_keys = problem.scheme.bias, problem.q.shape[2], problem.k.shape[2]
    assert bias is not None
    mask = problem.mask if masked else None
    unseen = num_queries - 1 if is_causal(mask) else 0  # distances below 0, that need no bias
    last = unseen - num_queries
    distances = torch.arange(num_keys - 1, last, -1, device=problem.q.device)
    dtype = torch.promote_types(problem.q.dtype, torch.float32)
    vector = bias.per_distance(distances, dtype=dtype, for_softmax=True)
    if mask is not None and not isinstance(mask, Causal):
        allowed = mask.allowed(distances[None], torch.zeros_like(distances[:1])[None])
        vector = vector.masked_fill(~allowed[:, :, 0], float("-inf"))
    return F.pad(vector, (0, unseen), value=float("-inf")) if unseen else vector.contiguous()


def _view(vector: Tensor, problem: Problem, queries: slice, keys: slice) -> Tensor:
    """`[1, H, n, m]` view of the vector for a flipped block of queries against a slice of keys."""
    offset = vector.storage_offset() + problem.q.shape[2] - queries.stop + keys.start
    shape = (1, vector.shape[0], queries.stop - queries.start, keys.stop - keys.start)
    return vector.as_strided(shape, (0, vector.shape[1], 1, 1), offset)


def _attend(
    problem: Problem, vector: Tensor, queries: slice, firsts: list[int] | None = None
) -> Tensor:
    """One block of queries, heads together where they read the same keys."""
    keys = problem.visible_keys(queries)
    firsts = [keys.start] * vector.shape[0] if firsts is None else firsts
    grouped = problem.q.shape[1] != problem.k.shape[1]
    if len(set(firsts)) == 1 or grouped:
        keys = slice(max(keys.start, min(firsts)), keys.stop)
        return _attend_heads(problem, vector, queries, keys, slice(0, vector.shape[0]))
    outs, start = [], 0
    for stop in range(1, len(firsts) + 1):
        if stop == len(firsts) or firsts[stop] != firsts[start]:
            read = slice(max(keys.start, firsts[start]), keys.stop)
            outs.append(_attend_heads(problem, vector, queries, read, slice(start, stop)))
            start = stop
    return torch.cat(outs, 1)


def _attend_heads(
    problem: Problem, vector: Tensor, queries: slice, keys: slice, heads: slice
) -> Tensor:
    every = heads.stop - heads.start == problem.q.shape[1]
    q = problem.q[:, heads, queries]
    k, v = (x[:, :, keys] if every else x[:, heads, keys] for x in (problem.k, problem.v))
    view = _view(vector, problem, queries, keys)[:, heads]
    narrow = q.dtype != vector.dtype and q.device.type != "cpu"
    if narrow:  # only the CPU kernel takes a float32 bias beside narrower queries
        q, k, v = q.to(vector.dtype), k.to(vector.dtype), v.to(vector.dtype)
    # a branch, not the comparison itself: in a trace that is a tensor
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    out = F.scaled_dot_product_attention(
        q.flip(2), k, v, attn_mask=view, scale=problem.scale, **grouped
    )
    return out.flip(2).to(problem.q.dtype)


class _WithBiasGradient(torch.autograd.Function):
    """The same, with the gradient of the vector; blocks are recomputed, so memory stays O(T)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, vector: Tensor, problem: Problem
    ) -> Tensor:
        if _use_native(problem, vector):
            out = _native(problem, vector)
        else:
            blocks = _blocks(q.shape[2], BLOCK)
            out = torch.cat([_attend(problem, vector, queries) for queries in blocks], dim=2)
        ctx.save_for_backward(q, k, v, vector, out)  # and nothing else is kept alive
        q, k, v = (x.new_empty(x.shape, device="meta") for x in (problem.q, problem.k, problem.v))
        ctx.problem = replace(problem, q=q, k=k, v=v)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, vector, out = ctx.saved_tensors
        problem, dtype = ctx.problem, vector.dtype
        grad = grad.to(dtype)
        grads = [torch.zeros_like(x, dtype=dtype) for x in (q, k, v, vector)]
        delta = (grad * out.to(dtype)).sum(-1, keepdim=True)
        per_query = q.shape[0] * q.shape[1] * k.shape[2]
        for queries in _blocks(q.shape[2], min(BLOCK, max(16, BACKWARD_ELEMENTS // per_query))):
            keys = problem.visible_keys(queries)
            flipped_q, flipped_grad, flipped_delta = (
                x[:, :, queries].to(dtype).flip(2) for x in (q, grad, delta)
            )
            flipped_q.mul_(problem.scale)
            k_block, v_block = k[:, :, keys].to(dtype), v[:, :, keys].to(dtype)
            logits = flipped_q @ k_block.transpose(-1, -2)
            weights = torch.softmax(logits.add_(_view(vector, problem, queries, keys)), -1)
            inner = flipped_grad @ v_block.transpose(-1, -2)
            inner.sub_(flipped_delta).mul_(weights)
            grads[0][:, :, queries] = (inner @ k_block).mul_(problem.scale).flip(2)
            grads[1][:, :, keys] += inner.transpose(-1, -2) @ flipped_q
            grads[2][:, :, keys] += weights.transpose(-1, -2) @ flipped_grad
            diagonals = _anti_diagonal_sums(inner.sum(0))
            start = q.shape[2] - queries.stop + keys.start
            grads[3][:, start : start + diagonals.shape[1]] += diagonals
        inputs = (q, k, v, vector)
        return *(g.to(x.dtype) for g, x in zip(grads, inputs, strict=True)), None


def _anti_diagonal_sums(block: Tensor) -> Tensor:
    """`[H, n, m]` -> `[H, n + m − 1]`, sums over r + j = c: padded rows read one entry short."""
    heads, n, m = block.shape
    padded = F.pad(block, (0, n)).reshape(heads, n * (n + m))
    return padded[:, : n * (n + m - 1)].reshape(heads, n, n + m - 1).sum(1)
