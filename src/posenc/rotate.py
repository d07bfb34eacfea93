"""Applying rotary tables to queries and keys, `[B, H, T, D]`, where D is the width of one head."""

from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Literal, get_args

import torch
from torch import Tensor

from posenc.contracts import RotaryTables, Table
from posenc.positions.checks import assert_on_device, is_bare

__all__ = ["RotateImpl", "check_amplitude", "rotate", "rotate_qk"]

RotateImpl = Literal["auto", "native", "triton", "eager", "reference"]
HALF_AMPLITUDE = 1024  # float16 ends at 2**16, its normal numbers at 2**-14
BLOCK_BYTES = 1 << 18  # of one block's rotated channels: its temporaries stay in cache


def rotate(x: Tensor, table: Table, *, impl: RotateImpl = "auto") -> Tensor:
    """Rotate one tensor by one table (RoFormer, arXiv 2104.09864, eq. 34).

    >>> tables = Rope(64).tables(positions, positions)
    >>> q = rotate(q, tables.q)                       # [B, H, T, 64] -> the same shape and dtype

    Arithmetic is float32 or wider, under autocast too, and the result has the dtype of `x`.
    `impl="reference"` computes in float64, "native" is the compiled CPU kernel, "triton" the GPU's,
    "eager" PyTorch's operations; "auto" is the kernel of the device where it fits. Raises ValueError
    where shapes do not fit.
    """
    _check(x, table, "x")
    if impl == "reference":
        return _rotated(x, table, torch.float64)
    if _use_triton(x, table, impl):
        return _triton().rotate_triton(x, table)
    if _use_native(x, table, impl):
        return _native().rotate_native(x, table)
    return _eager(x, table, None)


def rotate_qk(
    q: Tensor,
    k: Tensor,
    tables: RotaryTables,
    *,
    inplace: bool = False,
    impl: RotateImpl = "auto",
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys; keys may have fewer heads (grouped queries).

    >>> tables = Rope(64).tables(positions, positions)
    >>> q, k = rotate_qk(q, k, tables)

    `inplace=True` overwrites q and k, and refuses where autograd still needs them.
    """
    if impl == "auto" and not torch.compiler.is_compiling():
        turned = _native().rotate_together(q, k, tables, inplace=inplace)
        if turned is not None:
            return turned
    if not inplace:
        if not _both_use_triton(q, k, tables, impl):
            return rotate(q, tables.q, impl=impl), rotate(k, tables.k, impl=impl)
        _check(q, tables.q, "q")
        _check(k, tables.k, "k")
        return _triton().rotate_triton_qk(q, k, tables, inplace=False)
    _check_inplace(q, k, tables)
    if _both_use_triton(q, k, tables, impl):
        return _triton().rotate_triton_qk(q, k, tables, inplace=True)
    for x, table in ((q, tables.q), (k, tables.k)):
        if impl == "reference":
            x.copy_(_rotated(x, table, torch.float64))
        elif _use_triton(x, table, impl):
            _triton().rotate_triton(x, table, inplace=True)
        elif _use_native(x, table, impl):
            _native().rotate_native_inplace(x, table)
        else:
            _eager(x, table, x)
    return q, k


def _check_inplace(q: Tensor, k: Tensor, tables: RotaryTables) -> None:
    """Raise where overwriting would lose what is still needed, or turn a value twice."""
    # a compiler compares no pointers, but a tensor given twice it sees
    if (q is k and q.numel()) or (_has_memory(q, k) and _overlap().overlap(q, k)):
        raise ValueError("q and k share their memory: in place, it would turn twice")
    for name, x, table in (("q", q, tables.q), ("k", k, tables.k)):
        if torch.is_grad_enabled() and (x.requires_grad or table.cos.requires_grad):
            raise ValueError(
                f"{name} or its table requires grad: rotate out of place, or under no_grad"
            )
        if any(n > 1 and s == 0 for n, s in zip(x.shape, x.stride(), strict=True)):
            raise ValueError(f"{name} is an expanded view: in place, one row would turn twice")
        if _has_memory(x) and _overlap().overlaps_itself(x):
            raise ValueError(
                f"{name} {list(x.shape)} with strides {list(x.stride())} names places of memory "
                "twice: in place, they would turn twice"
            )
        _check(x, table, name)


def _has_memory(*tensors: Tensor) -> bool:
    """Whether there are addresses to compare."""
    return not torch.compiler.is_compiling() and all(
        x.device.type != "meta" and is_bare(x) for x in tensors
    )


@cache
def _overlap() -> ModuleType:
    """Loaded at the first rotation in place."""
    from posenc.kernels import overlap  # noqa: PLC0415

    return overlap


@cache
def _native() -> ModuleType:
    """The module of the compiled kernel, loaded at the first rotation."""
    from posenc.kernels import native  # noqa: PLC0415

    return native


@cache
def _triton() -> ModuleType:
    """The module of the GPU kernel; it loads Triton when it first asks for the kernel."""
    from posenc.kernels import triton_rotary  # noqa: PLC0415

    return triton_rotary


def _both_use_triton(q: Tensor, k: Tensor, tables: RotaryTables, impl: RotateImpl) -> bool:
    """Whether one launch serves both: one device, dtype and batch, and the kernel takes both."""
    alike = q.device == k.device and q.dtype == k.dtype and q.ndim == k.ndim == 4
    return (
        alike
        and q.shape[0] == k.shape[0]
        and _use_triton(q, tables.q, impl)
        and _use_triton(k, tables.k, impl)
    )


def _use_triton(x: Tensor, table: Table, impl: RotateImpl) -> bool:
    if impl == "triton":
        if _triton().fits(x, table):
            return True
        reason = _triton().missing(x.device) or (
            "it takes float32, bfloat16 and float16 with unit stride, heads of at most "
            f"{_triton().LARGEST_HEAD} channels, and fixed float32 tables shared by all heads"
        )
        raise ValueError(
            f"impl='triton' cannot rotate {x.dtype} {list(x.shape)} on {x.device}: {reason}"
        )
    # a compiler fuses the operations of the eager path with what stands around them
    is_asked = impl == "auto" and x.is_cuda and not torch.compiler.is_compiling()
    return is_asked and _triton().fits(x, table)


def _use_native(x: Tensor, table: Table, impl: RotateImpl) -> bool:
    if impl not in ("auto", "native", "eager"):
        choices = ", ".join(repr(name) for name in get_args(RotateImpl))
        raise ValueError(f"impl must be one of {choices}, got {impl!r}")
    if impl == "eager" or (impl == "auto" and torch.compiler.is_compiling()):
        return False  # a compiler fuses the operations of the eager path by itself
    fits = _native().fits(x, table)
    if impl == "native" and not fits:
        reason = _native().missing() or (
            "it takes float32 and bfloat16 CPU tensors whose channels lie side by side, outside of "
            "transforms, and float32 tables that all heads share and that do not learn; this table "
            f"is {table.cos.dtype} {list(table.cos.shape)}"
        )
        told = f"{x.dtype} {list(x.shape)} with strides {list(x.stride())} on {x.device}"
        raise ValueError(f"impl='native' cannot rotate {told}: {reason}")
    return fits


def _eager(x: Tensor, table: Table, out: Tensor | None) -> Tensor:
    """PyTorch's operations: in one piece under autograd or a compiler, else block by block."""
    dtype = torch.promote_types(x.dtype, table.cos.dtype)
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or table.cos.requires_grad)
    if needs_grad or torch.compiler.is_compiling():
        turned = _rotated(x, table, dtype)
        return turned if out is None else out.copy_(turned)
    out = torch.empty_like(x) if out is None else out
    num_tokens = x.shape[2]
    size = max(1, BLOCK_BYTES * num_tokens // max(1, x.numel() * dtype.itemsize))
    for start in range(0, num_tokens, size):
        block = slice(start, start + size)
        part = replace(table, cos=table.cos[..., block, :], sin=table.sin[..., block, :])
        out[:, :, block] = _rotated(x[:, :, block], part, dtype)
    return out


def _rotated(x: Tensor, table: Table, dtype: torch.dtype) -> Tensor:
    cos, sin = (_over_heads(part).to(dtype) for part in (table.cos, table.sin))
    stop = table.start + table.rotary_dim
    before, turned, after = x[..., : table.start], x[..., table.start : stop], x[..., stop:]
    turned = turned.to(dtype)
    if table.pairing == "half":
        a, b = turned.chunk(2, dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
    a, b = a * cos - b * sin, b * cos + a * sin
    pairs = (
        torch.cat((a, b), -1) if table.pairing == "half" else torch.stack((a, b), -1).flatten(-2)
    )
    return torch.cat((before, pairs.to(x.dtype), after), -1)


def _over_heads(part: Tensor) -> Tensor:
    """`[B|1, T, pairs]`, the same for all heads, or `[B|1, H, T, pairs]` as it is."""
    return part if part.ndim == 4 else part[:, None]


def _check(x: Tensor, table: Table, name: str) -> None:
    num_tokens = table.cos.shape[-2]
    if x.ndim != 4 or x.shape[-1] != table.head_dim or not x.is_floating_point():
        raise ValueError(
            f"{name} must be floating [B, H, T, D] with D = {table.head_dim} channels of one head, "
            f"got {x.dtype} {list(x.shape)}: split the heads and transpose before rotating"
        )
    if x.device != table.cos.device:
        raise ValueError(f"{name} lies on {x.device}, its table on {table.cos.device}")
    if table.cos.ndim == 4 and table.cos.shape[1] not in (1, x.shape[1]):
        raise ValueError(
            f"{name} has {x.shape[1]} heads, but the table holds one for each of "
            f"{table.cos.shape[1]}"
        )
    if x.shape[2] != num_tokens:
        raise ValueError(
            f"{name} has {x.shape[2]} tokens in dimension 2 ([B, H, T, D], got {list(x.shape)}), "
            f"but the table holds {num_tokens} positions"
        )
    if table.cos.shape[0] not in (1, x.shape[0]):
        raise ValueError(
            f"{name} has batch {x.shape[0]}, but positions were given for {table.cos.shape[0]} rows"
        )
    if table.amplified and x.dtype == torch.float16:
        check_amplitude(table, name)


def check_amplitude(table: Table, name: str) -> None:
    """Raise where float16 could not hold what the table makes of `name`."""
    if table.cos.device.type == "meta":
        return
    amplitude = (table.cos.square() + table.sin.square()).sqrt()
    fits = (amplitude <= HALF_AMPLITUDE) & (amplitude >= 1 / HALF_AMPLITUDE)
    message = f"float16 has room for amplitudes between 1/{HALF_AMPLITUDE} and {HALF_AMPLITUDE}"
    if table.cos.device.type != "cpu" or torch.compiler.is_compiling():
        assert_on_device(fits.all(), message)
    elif not fits.all():
        given = amplitude[~fits].flatten()[0]
        raise ValueError(
            f"{message}, but the table of {name} multiplies by {given:.3g}: rotate in bfloat16 or "
            "float32, or take an origin nearer to the tokens or a larger scale_base"
        )
