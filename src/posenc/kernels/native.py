"""Rotation on the CPU by the compiled kernel: one pass over memory, in place or not.

The kernel (rotary.cpp) is built with the package where there is a C++ compiler. Without it
`missing()` says so, and `rotate` takes the PyTorch path instead.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.contracts import Table

__all__ = ["fits", "missing", "rotate_native", "rotate_native_inplace"]

LIBRARY = Path(__file__).with_name("_rotary.so")
DTYPES = (torch.float32, torch.bfloat16)


class _Call(ctypes.Structure):
    """The kernel's struct Call: pointers, shape, strides, how to pair."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out", "cos", "sin")),
        *((name, ctypes.c_int64) for name in ("batch", "heads", "tokens", "head_dim")),
        *((name, ctypes.c_int64) for name in ("start", "pairs")),
        *((name, ctypes.c_int64) for name in ("x_batch", "x_head", "x_token")),
        *((name, ctypes.c_int64) for name in ("out_batch", "out_head", "out_token")),
        *((name, ctypes.c_int64) for name in ("table_batch", "adjacent", "is_bfloat16")),
        ("direction", ctypes.c_float),
    )


def _load() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None
    library.posenc_rotate.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    library.posenc_rotate.restype = None
    return library


_KERNEL = _load()


def missing() -> str | None:
    """Why the kernel cannot run here, or None where it can."""
    if _KERNEL is not None:
        return None
    return f"the kernel was not built ({LIBRARY.name}): install posenc with a C++ compiler present"


def fits(x: Tensor, table: Table) -> bool:
    """Whether the kernel takes this tensor and this table."""
    return (
        _is_plain(x)
        and _is_plain(table.cos)
        and x.dtype in DTYPES
        and x.stride(-1) == 1
        and table.cos.dtype == torch.float32
        and table.cos.ndim == 3  # one table for all heads
        and not table.cos.requires_grad
        and _KERNEL is not None
    )


def _is_plain(x: Tensor) -> bool:
    """Memory of this process, with no transform around it: no fake, dual or functorch tensor."""
    return (
        x.device.type == "cpu"
        and type(x) in (Tensor, torch.nn.Parameter)
        and torch.autograd.forward_ad._current_level < 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore
    )


def rotate_native(x: Tensor, table: Table) -> Tensor:
    """A rotated copy of `x`, `[B, H, T, D]`, with its gradient."""
    cos, sin = table.cos.contiguous(), table.sin.contiguous()
    if torch.compiler.is_compiling() or (x.requires_grad and torch.is_grad_enabled()):
        return _rotate_op(x, cos, sin, table.pairing == "adjacent", table.start, 1.0)
    out = torch.empty_like(x, memory_format=torch.preserve_format)
    if out.stride(-1) != 1:
        out = torch.empty(x.shape, dtype=x.dtype)
    _run([(x, out)], cos, sin, adjacent=table.pairing == "adjacent", start=table.start)
    return out


def rotate_native_inplace(x: Tensor, table: Table) -> Tensor:
    """`x` itself, rotated where it lies."""
    cos, sin = table.cos.contiguous(), table.sin.contiguous()
    _run([(x, x)], cos, sin, adjacent=table.pairing == "adjacent", start=table.start)
    torch.autograd.graph.increment_version(x)  # autograd must know that saved values are gone
    return x


@torch.library.custom_op("posenc::rotate", mutates_args=())
def _rotate_op(
    x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool, start: int, direction: float
) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    _run([(x, out)], cos, sin, adjacent=adjacent, start=start, direction=direction)
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


def _run(
    pairs: list[tuple[Tensor, Tensor]],
    cos: Tensor,
    sin: Tensor,
    *,
    adjacent: bool,
    start: int,
    direction: float = 1.0,
) -> None:
    assert _KERNEL is not None
    table_batch = 0 if cos.shape[0] == 1 else cos.stride(0)
    calls = (_Call * len(pairs))(
        *(
            _Call(
                x.data_ptr(),
                out.data_ptr(),
                cos.data_ptr(),
                sin.data_ptr(),
                *x.shape,
                start,
                cos.shape[-1],
                *x.stride()[:3],
                *out.stride()[:3],
                table_batch,
                adjacent,
                x.dtype == torch.bfloat16,
                direction,
            )
            for x, out in pairs
        )
    )
    _KERNEL.posenc_rotate(ctypes.byref(calls), len(pairs), torch.get_num_threads())
