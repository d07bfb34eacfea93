"""Attention with a bias that depends on distance alone: a vector per head, never an `[H, Q, K]`.

Flip a block of queries and row r, key j lies at distance c − r − j: the bias that it needs is entry
r + j of the reversed distance vector, a strided view with positive strides. The fused kernel takes
that view as its mask, so memory for positions is O(H·T). Causal and windowed masks are functions of
distance too and live in the same vector as −inf.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from posenc.attention.problem import Problem
from posenc.masks import Causal, Window, parts_of

__all__ = ["distance_attention", "is_by_distance"]

BLOCK = 512  # queries at a time; causal blocks skip the keys after their last query
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
    vector = _distance_vector(problem)
    if torch.is_grad_enabled() and vector.requires_grad:
        group = problem.q.shape[1] // problem.k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (problem.k, problem.v))
        return _WithBiasGradient.apply(problem.q, k, v, vector, problem)  # pyright: ignore
    blocks = _blocks(problem.q.shape[2], BLOCK)
    return torch.cat([_attend(problem, vector, queries) for queries in blocks], dim=2)


def _blocks(num_queries: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, num_queries)) for i in range(0, num_queries, size)]


def _distance_vector(problem: Problem) -> Tensor:
    """Bias and mask of distances K − 1 down to −(Q − 1), `[H, K + Q − 1]`."""
    bias, num_queries, num_keys = problem.scheme.bias, problem.q.shape[2], problem.k.shape[2]
    assert bias is not None
    distances = torch.arange(num_keys - 1, -num_queries, -1, device=problem.q.device)
    dtype = torch.promote_types(problem.q.dtype, torch.float32)
    vector = bias.per_distance(distances, dtype=dtype)
    if problem.mask is None:
        return vector.contiguous()
    allowed = problem.mask.allowed(distances[None], torch.zeros_like(distances[:1])[None])
    return vector.masked_fill(~allowed[:, :, 0], float("-inf")).contiguous()


def _view(vector: Tensor, problem: Problem, queries: slice, keys: slice) -> Tensor:
    """`[1, H, n, m]` view of the vector for a flipped block of queries against a slice of keys."""
    offset = problem.q.shape[2] - queries.stop + keys.start
    shape = (1, vector.shape[0], queries.stop - queries.start, keys.stop - keys.start)
    return vector.as_strided(shape, (0, vector.shape[1], 1, 1), offset)


def _attend(problem: Problem, vector: Tensor, queries: slice) -> Tensor:
    keys = problem.visible_keys(queries)
    q, k, v = problem.q[:, :, queries], problem.k[:, :, keys], problem.v[:, :, keys]
    view = _view(vector, problem, queries, keys)
    narrow = q.dtype != vector.dtype and q.device.type != "cpu"
    if narrow:  # only the CPU kernel takes a float32 bias beside narrower queries
        q, k, v = q.to(vector.dtype), k.to(vector.dtype), v.to(vector.dtype)
    out = F.scaled_dot_product_attention(
        q.flip(2),
        k,
        v,
        attn_mask=view,
        scale=problem.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.flip(2).to(problem.q.dtype)


class _WithBiasGradient(torch.autograd.Function):
    """The same, with the gradient of the vector; blocks are recomputed, so memory stays O(T)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, vector: Tensor, problem: Problem
    ) -> Tensor:
        # the problem without its tensors' history: what is saved is saved by autograd
        blocks = _blocks(q.shape[2], BLOCK)
        out = torch.cat([_attend(problem, vector, queries) for queries in blocks], dim=2)
        ctx.save_for_backward(q, k, v, vector, out)
        ctx.problem = problem
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
