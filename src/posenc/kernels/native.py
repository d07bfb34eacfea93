"""Rotation on the CPU by the compiled kernel: one pass over memory, in place or not.

The kernel (rotary.cpp) is built with the package where there is a C++ compiler. Without it
`missing()` says so, and `rotate` takes the PyTorch path instead.
"""

import ctypes
import struct
from typing import Any

import torch
from torch import Tensor, get_num_threads, is_grad_enabled
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore
from torch.autograd import forward_ad

from posenc.contracts import RotaryTables, Table
from posenc.kernels.library import load
from posenc.positions.checks import is_bare, is_recorded

__all__ = [
    "fits",
    "is_plain",
    "missing",
    "rotate_native",
    "rotate_native_inplace",
    "rotate_together",
]

VERSION = 2  # of the calls below, as the library was built for them
DTYPES = (torch.float32, torch.bfloat16)


# The kernel's struct Call: pointers to x and out, shape, strides of x and of out in elements,
# is_bfloat16, then the table (_Facts: pointers, pairs, start, batch stride, adjacent), direction.
_pack = struct.Struct("2P 13q 2P 4q f4x").pack
_Facts = tuple[int, int, int, int, int, bool]


_overlaps = torch._C._overlaps  # pyright: ignore[reportAttributeAccessIssue]
_increment_version = torch._C._increment_version  # pyright: ignore[reportAttributeAccessIssue]

_KERNEL, _WHY_MISSING = load("_rotary.so", VERSION)
if _KERNEL is not None:
    _KERNEL.posenc_rotate.argtypes = (ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
    _KERNEL.posenc_rotate.restype = None


def missing() -> str | None:
    """Why the kernel cannot run here, or None where it can."""
    return _WHY_MISSING


def fits(x: Tensor, table: Table) -> bool:
    """Whether the kernel takes this tensor and this table."""
    return (
        is_plain(x)
        and is_plain(table.cos)
        and x.dtype in DTYPES
        and x.stride(-1) == 1
        and table.cos.dtype == torch.float32
        and table.cos.ndim == 3  # one table for all heads
        and not table.cos.requires_grad
        and _KERNEL is not None
    )


def is_plain(x: Tensor) -> bool:
    """Memory of this process, with no transform around it: no fake, dual or functorch tensor."""
    return (
        x.device.type == "cpu"
        and is_bare(x)
        and forward_ad._current_level < 0
        and not x.is_neg()
        and not is_recorded()
    )


def rotate_together(
    q: Tensor, k: Tensor, tables: RotaryTables, *, inplace: bool
) -> tuple[Tensor, Tensor] | None:
    """Both in one call of the kernel, or None where one of them does not plainly fit.

    A decoding step is so short that looking at its tensors costs more than turning them: every fact
    is read once, and whatever is unusual goes the long way, which also says what is wrong.
    """
    if _KERNEL is None or forward_ad._current_level >= 0 or is_recorded():
        return None
    needs_graph = is_grad_enabled()
    q_facts = _plain_facts(tables.q, needs_graph)
    k_facts = q_facts if tables.k is tables.q else _plain_facts(tables.k, needs_graph)
    if q_facts is None or k_facts is None:
        return None
    q_out, q_call = _plain_call(q, q_facts, inplace, needs_graph)
    k_out, k_call = _plain_call(k, k_facts, inplace, needs_graph)
    if q_out is None or k_out is None or (inplace and _overlaps(q, k)):
        return None
    _KERNEL.posenc_rotate(q_call + k_call, 2, get_num_threads())
    if inplace:  # autograd must know that saved values are gone
        _increment_version((q, k))
    return q_out, k_out


def _plain_facts(table: Table, needs_graph: bool) -> tuple[int, int, int, _Facts] | None:
    """Width of a head, rows and tokens of a table, and what the kernel must know of it; None unless
    all is as it wants it."""
    cos, sin = table.cos, table.sin
    is_plain = (
        type(cos) is Tensor
        and cos.is_cpu
        and not is_functorch_wrapped_tensor(cos)
        and cos.dtype is torch.float32
        and not (needs_graph and cos.requires_grad)
        and cos.is_contiguous()
        and sin.is_contiguous()
        and cos.dim() == 3
    )
    if not is_plain:
        return None
    rows, tokens, pairs = cos.shape
    batch = 0 if rows == 1 else tokens * pairs
    is_adjacent = table.pairing == "adjacent"
    facts = (cos.data_ptr(), sin.data_ptr(), pairs, table.start, batch, is_adjacent)
    return table.head_dim, rows, tokens, facts


def _plain_call(
    x: Tensor, of_table: tuple[int, int, int, _Facts], inplace: bool, needs_graph: bool
) -> tuple[Tensor | None, bytes]:
    """Where the result goes and the kernel's call; None unless all is as the kernel wants it."""
    dtype, shape, strides = x.dtype, x.shape, x.stride()
    head_dim, rows, tokens, facts = of_table
    fits = (
        type(x) is Tensor
        and x.is_cpu
        and (dtype is torch.float32 or dtype is torch.bfloat16)
        and not (needs_graph and x.requires_grad)
        and not is_functorch_wrapped_tensor(x)
        and len(shape) == 4
        and shape[3] == head_dim
        and shape[2] == tokens
        and (rows == 1 or rows == shape[0])
        and strides[3] == 1
        and (x.is_contiguous() or (_is_nested(shape, strides) if inplace else 0 not in strides))
        and not x.is_neg()
    )
    if not fits:
        return None, b""
    is_bfloat16 = dtype is torch.bfloat16
    if inplace:
        at = x.data_ptr()
        return x, _pack(at, at, *shape, *strides, *strides, is_bfloat16, *facts, 1.0)
    out = _empty_like(x)
    at, to = x.data_ptr(), out.data_ptr()
    return out, _pack(at, to, *shape, *strides, *out.stride(), is_bfloat16, *facts, 1.0)


def _is_nested(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """Whether heads and tokens lie one behind the other in rows of the batch, nothing twice."""
    rows, heads, tokens, channels = shape
    row, head, token, _ = strides
    if head >= token:
        inside, end = token >= channels and (heads == 1 or head >= token * tokens), head * heads
    else:
        inside, end = head >= channels and (tokens == 1 or token >= head * heads), token * tokens
    return inside and (rows == 1 or row >= end)


def rotate_native(x: Tensor, table: Table) -> Tensor:
    """A rotated copy of `x`, `[B, H, T, D]`, with its gradient."""
    cos, sin = table.cos.contiguous(), table.sin.contiguous()
    if torch.compiler.is_compiling() or (x.requires_grad and is_grad_enabled()):
        return _rotate_op(x, cos, sin, table.pairing == "adjacent", table.start, 1.0)
    out = _empty_like(x)
    _run(_packed(x, out, _facts(cos, sin, table.pairing == "adjacent", table.start)))
    return out


def _empty_like(x: Tensor) -> Tensor:
    """In the order of `x`, but for views whose rows overlap: the kernel writes a row of channels."""
    out = torch.empty_like(x)
    return out if out.stride(3) == 1 else torch.empty(x.shape, dtype=x.dtype)


def rotate_native_inplace(x: Tensor, table: Table) -> Tensor:
    """`x` itself, rotated where it lies."""
    cos, sin = table.cos.contiguous(), table.sin.contiguous()
    _run(_packed(x, x, _facts(cos, sin, table.pairing == "adjacent", table.start)))
    torch.autograd.graph.increment_version(x)  # autograd must know that saved values are gone
    return x


@torch.library.custom_op("posenc::rotate", mutates_args=())
def _rotate_op(
    x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool, start: int, direction: float
) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    _run(_packed(x, out, _facts(cos, sin, adjacent, start), direction))
    return out


@_rotate_op.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool, start: int, direction: float) -> Tensor:
    del cos, sin, adjacent, start, direction
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    _, cos, sin, ctx.adjacent, ctx.start, ctx.direction = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    cos, sin = ctx.saved_tensors
    turned = _rotate_op(grad, cos, sin, ctx.adjacent, ctx.start, -ctx.direction)
    return turned, None, None, None, None, None


_rotate_op.register_autograd(_backward, setup_context=_save)


def _facts(cos: Tensor, sin: Tensor, adjacent: bool, start: int) -> _Facts:
    """What the kernel reads of contiguous tables."""
    rows, tokens, pairs = cos.shape
    batch = 0 if rows == 1 else tokens * pairs
    return cos.data_ptr(), sin.data_ptr(), pairs, start, batch, adjacent


def _packed(x: Tensor, out: Tensor, facts: _Facts, direction: float = 1.0) -> bytes:
    strides = x.stride()
    return _pack(
        x.data_ptr(),
        out.data_ptr(),
        *x.shape,
        *strides,
        *(strides if out is x else out.stride()),
        x.dtype is torch.bfloat16,
        *facts,
        direction,
    )


def _run(call: bytes) -> None:
    assert _KERNEL is not None
    _KERNEL.posenc_rotate(call, 1, get_num_threads())
