"""Attention through PyTorch's scaled_dot_product_attention, in blocks of queries where it must.

A scheme without bias and a causal mask in storage order is the fused kernel itself. Masks and biases
are built for one block of queries at a time, over the keys that the block can see.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention.distance import distance_attention, is_by_distance, native_attention
from posenc.attention.order import by_document, documents, in_order
from posenc.attention.problem import Problem, softmax
from posenc.masks import Causal
from posenc.rotate import rotate_qk

__all__ = ["by_kernel", "positioned", "sdpa_attention"]

BLOCK_ELEMENTS = 1 << 24  # of a mask or bias built at once: 64 MB in float32
VECTOR_ELEMENTS = 1 << 20  # where several maps of one block stay in the CPU's cache


def sdpa_attention(problem: Problem) -> Tensor:
    """Softmax attention `[B, H, Q, Dv]` in the dtype of the queries."""
    return _attended(in_order(positioned(problem).prepared()))


def by_kernel(problem: Problem) -> Tensor:
    """The same by the compiled kernel alone; a ValueError where it does not fit."""
    return native_attention(in_order(positioned(problem)))


def _attended(problem: Problem) -> Tensor:
    found = documents(problem)
    if found is not None:
        return by_document(problem, found, _attended)
    if problem.q.shape[2] == 1 and problem.contiguous and isinstance(problem.mask, Causal):
        problem = replace(problem, mask=None)  # the last token sees every key
    scheme, mask = problem.scheme, problem.mask
    if scheme.bias is None and scheme.relative is None and _is_plain(problem):
        return _sdpa(problem, None, is_causal=mask is not None)
    if is_by_distance(problem):
        return distance_attention(problem)
    num_queries = problem.q.shape[2]
    if torch.compiler.is_exporting():  # a number of blocks would bound the lengths of the graph
        return _attend(problem)
    size = _block_size(problem)
    if size >= num_queries:  # no loop, so that a compiled graph serves every length up to here
        return _attend(_block(problem, slice(0, num_queries)))
    starts = range(0, num_queries, size)
    blocks = [slice(start, min(start + size, num_queries)) for start in starts]
    return torch.cat([_attend(_block(problem, queries)) for queries in blocks], dim=2)


def positioned(problem: Problem) -> Problem:
    """With all that a scheme does to queries and keys done: rotation, temperature."""
    return _tempered(_rotated(problem))


def _rotated(problem: Problem) -> Problem:
    scheme = problem.scheme
    if scheme.rotary is None:
        return problem
    tables = scheme.rotary.tables(problem.q_pos, problem.k_pos, dtype=_wide(problem.q.dtype))
    q, k = rotate_qk(problem.q, problem.k, tables)
    return replace(problem, q=q, k=k, scale=problem.scale * tables.softmax_scale)


def _tempered(problem: Problem) -> Problem:
    """Log-length scaling multiplies queries; in float32 or wider, rounded once."""
    query_scale = problem.scheme.query_scale
    if query_scale is None:
        return problem
    factors = query_scale.factors(problem.q_pos)[..., None]
    q = problem.q.to(_wide(problem.q.dtype)) * factors.to(_wide(problem.q.dtype))
    return replace(problem, q=q.to(problem.q.dtype))


def _is_plain(problem: Problem) -> bool:
    """Whether the kernel's own causal flag, or no mask at all, says the same as our mask."""
    if problem.mask is None:
        return True
    in_order = problem.contiguous and problem.q.shape[2] == problem.k.shape[2]
    return in_order and isinstance(problem.mask, Causal)


def _block_size(problem: Problem) -> int:
    batch, num_heads, num_queries, _ = problem.q.shape
    per_query = problem.k.shape[2] * (batch if problem.mask is not None else 1)
    if problem.scheme.bias is not None or problem.scheme.relative is not None:
        per_query = problem.k.shape[2] * batch * num_heads
    elements = BLOCK_ELEMENTS
    if problem.scheme.relative is not None:
        elements = min(elements, VECTOR_ELEMENTS)
    size = max(16, elements // per_query)
    return size if problem.mask is None or size < num_queries else min(size, max(num_queries, 16))


def _block(problem: Problem, queries: slice) -> Problem:
    return problem.block(queries, problem.visible_keys(queries))


def _attend(block: Problem) -> Tensor:
    if block.scheme.relative is not None:
        return _with_vectors(block)
    allowed = block.allowed()
    if block.scheme.bias is None:
        if allowed is None:
            return _sdpa(block, None)
        blind = ~allowed.any(-1, keepdim=True)
        return _sdpa(block, allowed | blind).masked_fill(blind, 0.0)
    bias = block.scheme.bias.dense(
        block.q_pos, block.k_pos, dtype=_wide(block.q.dtype), for_softmax=True
    )
    return _biased(block, bias, allowed)


def _biased(block: Problem, bias: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return _sdpa(block, bias)
    blind = ~allowed.any(-1, keepdim=True)
    masked = bias.masked_fill(~(allowed | blind), float("-inf"))
    return _sdpa(block, masked).masked_fill(blind, 0.0)


def _with_vectors(block: Problem) -> Tensor:
    """Vectors on keys are a bias that depends on the queries; those on values need the weights,
    which the fused kernel does not give."""
    scheme, dtype = block.scheme, _wide(block.q.dtype)
    relative = scheme.relative
    assert relative is not None
    group = block.q.shape[1] // block.k.shape[1]
    q, k, v = block.q.to(dtype), block.k.to(dtype), block.v.to(dtype)
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    products = q @ k.mT if relative.reads_products else None
    meeting = replace(block.meeting(), products=products)
    logits = relative.key_logits(q, k, meeting)
    if relative.scaled:
        logits = logits * block.scale
    if relative.adds_values:
        logits = (q * block.scale) @ k.transpose(-1, -2) + logits
    if scheme.bias is not None:
        logits = logits + scheme.bias.dense(block.q_pos, block.k_pos, dtype=dtype, for_softmax=True)
    if products is not None:
        logits = products * block.scale + logits
    elif not relative.adds_values:
        return _biased(replace(block, q=q, k=k, v=v), logits, meeting.allowed).to(block.q.dtype)
    weights = softmax(logits, meeting.allowed)
    out = weights @ v
    extra = relative.value_sum(weights, meeting) if relative.adds_values else None
    return (out if extra is None else out + extra).to(block.q.dtype)


def _sdpa(problem: Problem, attn_mask: Tensor | None, *, is_causal: bool = False) -> Tensor:
    q, k, v = problem.q, problem.k, problem.v
    is_wider = (
        attn_mask is not None and attn_mask.is_floating_point() and attn_mask.dtype != q.dtype
    )
    if attn_mask is not None and is_wider and q.device.type != "cpu":
        # a float32 bias beside bfloat16 queries: rounded, it would move logits by whole units, and
        # only the CPU kernel takes the pair
        return _sdpa_in(torch.float32, problem, attn_mask)
    # a branch, not the comparison itself: under dynamic shapes that is no bool
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=problem.scale,
        **grouped,
    )


def _sdpa_in(dtype: torch.dtype, problem: Problem, attn_mask: Tensor) -> Tensor:
    wide = replace(problem, q=problem.q.to(dtype), k=problem.k.to(dtype), v=problem.v.to(dtype))
    return _sdpa(wide, attn_mask).to(problem.q.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
