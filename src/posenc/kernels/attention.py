"""Attention on the CPU by the compiled kernel, under a bias that depends on distance alone.

The kernel (attention.cpp) is built with the package where there is a C++ compiler. It reads biases
from one row per head, `[H, K + Q − 1]`, and needs no memory that grows with the square of anything.
"""

import ctypes
import struct

import torch
from torch import Tensor

from posenc.kernels.library import load
from posenc.kernels.native import is_plain

__all__ = ["FEWEST_QUERIES", "attend", "fits", "missing"]

VERSION = 1  # of the call below, as the library was built for it
FEWEST_QUERIES = 64  # a tile of the kernel
WIDEST = 512  # bits of a vector

# The kernel's struct Call: pointers to q, k, v, out and bias; batch, heads, key heads, queries, keys
# and channels; the strides of q, k, v and out in elements; that of a head's bias; nearest and
# farthest distance; falls; scale.
_CALL = struct.Struct("5P 7q 12q q 2q q f4x")

_KERNEL, _WHY_MISSING = load("_attention.so", VERSION)
if _KERNEL is not None:
    _KERNEL.posenc_attend.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
    _KERNEL.posenc_attend.restype = None


def missing() -> str | None:
    """Why the kernel cannot run here, or None where it can."""
    return _WHY_MISSING


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel takes these tensors; it has no gradient."""
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    return (
        _KERNEL is not None
        and not needs_grad
        and FEWEST_QUERIES <= q.shape[2] <= k.shape[2]
        and all(is_plain(x) and x.dtype == torch.float32 for x in (q, k, v))
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    *,
    scale: float,
    nearest: int,
    farthest: int,
    falls: bool,
    widest: int = WIDEST,
) -> Tensor:
    """`[B, H, Q, D]` × `[B, H', K, D]` × `[B, H', K, Dv]` -> `[B, H, Q, Dv]`, all float32.

    `bias` `[H, K + Q − 1]` holds the distances from K − 1 down to −(Q − 1), with −inf where a mask
    hides them; `nearest` and `farthest` are the least and the largest that it does not hide.
    `falls` leaves out far keys that weigh nothing together, under a causal mask. `widest` bounds the
    width of the processor's vectors, in bits.
    """
    assert _KERNEL is not None
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    bias = bias if bias.stride(-1) == 1 else bias.contiguous()
    batch, num_heads, num_queries, dim = q.shape
    key_heads, num_keys, value_dim = v.shape[1:]
    # tokens outermost, as the projection that follows wants them
    out = q.new_empty(batch, num_queries, num_heads, value_dim).transpose(1, 2)
    call = _CALL.pack(
        *(x.data_ptr() for x in (q, k, v, out, bias)),
        *(batch, num_heads, key_heads, num_queries, num_keys, dim, value_dim),
        *(stride for x in (q, k, v, out) for stride in x.stride()[:3]),
        *(bias.stride(0), nearest, farthest, falls, scale),
    )
    _KERNEL.posenc_attend(call, torch.get_num_threads(), widest)
    return out
