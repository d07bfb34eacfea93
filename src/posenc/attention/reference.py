"""The definition of attention under a scheme, in float64, meant to be read in one sitting."""

from dataclasses import replace

import torch
from torch import Tensor

from posenc.attention.problem import Problem, softmax
from posenc.rotate import rotate_qk

__all__ = ["reference_attention"]


def reference_attention(problem: Problem) -> Tensor:
    """Softmax attention `[B, H, Q, Dv]`: rotate, score, relative keys, bias, mask, weigh."""
    scheme, q_pos, k_pos, scale = problem.scheme, problem.q_pos, problem.k_pos, problem.scale
    q, k, v = problem.q.double(), problem.k.double(), problem.v.double()
    if scheme.rotary is not None:
        tables = scheme.rotary.tables(q_pos, k_pos, dtype=torch.float64)
        q, k = rotate_qk(q, k, tables, impl="reference")
        scale = scale * tables.softmax_scale
    if scheme.query_scale is not None:
        q = q * scheme.query_scale.factors(q_pos).to(q.dtype)[..., None]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    logits = q @ k.transpose(-1, -2) * scale
    meeting = replace(problem, scale=scale, first=None).meeting()  # looked up, pair by pair
    if scheme.relative is not None:
        terms = scheme.relative.key_logits(q, k, meeting)
        logits = logits + (terms * scale if scheme.relative.scaled else terms)
    if scheme.bias is not None:
        logits = logits + scheme.bias.dense(q_pos, k_pos, dtype=torch.float64)

    weights = softmax(logits, meeting.allowed)
    out = weights @ v
    if scheme.relative is not None:
        extra = scheme.relative.value_sum(weights, meeting)
        out = out if extra is None else out + extra
    return out.to(problem.q.dtype)
