"""Rotation on a GPU by one Triton kernel: queries and keys in a single launch, in place or not.

Triton comes with PyTorch's builds for GPUs and is loaded at the first rotation there. Where it is
not, or cannot run, `missing` says why, and `rotate` takes the PyTorch path instead. The kernel itself
is in triton_kernel.py; under TRITON_INTERPRET=1 it runs on CPU tensors, slowly, for tests.
"""

import importlib.util
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from posenc.contracts import RotaryTables, Table

__all__ = ["Tiles", "fits", "missing", "rotate_triton", "rotate_triton_qk", "tiles_for"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_HEAD = 512
CAPABILITY = (8, 0)  # bfloat16 in hardware
BUSY = 1 << 12  # rows of tokens from which a program may take several heads and the GPU stays full


@dataclass(frozen=True)
class Tiles:
    """What one program works on. The bytes that are moved are the same for all."""

    pairs: int = 1024  # of one head at a time, over all its tokens
    heads: int = 8  # that share what was read of the table
    num_warps: int = 4


def missing(device: torch.device | None = None) -> str | None:
    """Why the kernel cannot run (on this device), or None where it can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if _is_interpreted() and (device is None or device.type == "cpu"):
        return None
    if not torch.cuda.is_available():
        return "there is no CUDA device, and TRITON_INTERPRET=1 was not set before it was loaded"
    if device is not None and device.type != "cuda":
        return f"it takes CUDA tensors, these lie on {device}"
    return _too_old(device and device.index)


def fits(x: Tensor, table: Table) -> bool:
    """Whether the kernel takes this tensor and this table."""
    return (
        x.dtype in DTYPES
        and x.shape[-1] <= LARGEST_HEAD
        and x.stride(-1) == 1
        and _is_plain(x)
        and _is_plain(table.cos)
        and table.cos.dtype == torch.float32
        and table.cos.ndim == 3  # one table for all heads
        and table.rotary_dim > 0
        and not table.cos.requires_grad
        and (torch.compiler.is_compiling() or missing(x.device) is None)  # else told at the launch
    )


def rotate_triton(x: Tensor, table: Table, *, inplace: bool = False) -> Tensor:
    """`x`, `[B, H, T, D]`, rotated: a copy with its gradient, or `x` itself."""
    nothing = x.new_empty((x.shape[0], 0, x.shape[2], x.shape[3]))
    return rotate_triton_qk(x, nothing, RotaryTables(table, table), inplace=inplace)[0]


def rotate_triton_qk(
    q: Tensor, k: Tensor, tables: RotaryTables, *, inplace: bool
) -> tuple[Tensor, Tensor]:
    """Both in one launch; two where their tables are not alike (other pairing, channels or pairs)."""
    if _form(tables.q) != _form(tables.k):
        return (
            rotate_triton(q, tables.q, inplace=inplace),
            rotate_triton(k, tables.k, inplace=inplace),
        )
    parts = [part.contiguous() for t in (tables.q, tables.k) for part in (t.cos, t.sin)]
    form = (tables.q.pairing == "adjacent", tables.q.start)
    is_traced = torch.compiler.is_compiling() or _is_watched(q)
    if inplace and is_traced:
        _inplace_op(q, k, *parts, *form)
    elif inplace:
        _launch((q, k), (q, k), parts, *form)
        torch.autograd.graph.increment_version((q, k))  # saved values are gone
    elif is_traced or (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)):
        return _op(q, k, *parts, *form, 1.0)
    else:
        outs = _empty_like(q), _empty_like(k)
        _launch((q, k), outs, parts, *form)
        return outs
    return q, k


def tiles_for(num_rows: int) -> Tiles:
    """Few rows (batch times tokens) leave the GPU empty, so each head gets a program of its own."""
    return Tiles() if num_rows >= BUSY else Tiles(heads=1)


def _form(table: Table) -> tuple[object, ...]:
    return table.pairing, table.start, table.rotary_dim, table.head_dim


def _is_plain(x: Tensor) -> bool:
    """A tensor of PyTorch's own, with no transform around it."""
    if torch.compiler.is_compiling():
        return True  # what is traced is asked when it runs
    kinds = (Tensor, torch.nn.Parameter, FakeTensor)
    outside = forward_ad._current_level < 0 and not is_functorch_wrapped_tensor(x)
    return outside and type(x) in kinds


def _is_watched(x: Tensor) -> bool:
    """Whether a tracer, or a tensor without data, must see an operator and no pointer."""
    return type(x) is FakeTensor or torch._C._len_torch_dispatch_stack() > 0


def _empty_like(x: Tensor) -> Tensor:
    """In the order of `x`, but for views whose rows overlap: the kernel writes a row of channels."""
    out = torch.empty_like(x)
    return out if out.stride(3) == 1 else torch.empty(x.shape, dtype=x.dtype, device=x.device)


@cache
def _too_old(index: int | None) -> str | None:
    capability = torch.cuda.get_device_capability(index)
    if capability >= CAPABILITY:
        return None
    told = ".".join(map(str, capability))
    return f"it needs compute capability {'.'.join(map(str, CAPABILITY))}, this GPU has {told}"


@cache
def _kernel() -> Any:
    from posenc.kernels.triton_kernel import rotate_kernel  # noqa: PLC0415

    return rotate_kernel


def _is_interpreted() -> bool:
    return type(_kernel()).__name__ == "InterpretedFunction"


@torch.library.custom_op("posenc::rotate_qk", mutates_args=())
def _op(
    q: Tensor,
    k: Tensor,
    q_cos: Tensor,
    q_sin: Tensor,
    k_cos: Tensor,
    k_sin: Tensor,
    adjacent: bool,
    start: int,
    direction: float,
) -> tuple[Tensor, Tensor]:
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    outs = _contiguous(q), _contiguous(k)
    _launch((q, k), outs, [q_cos, q_sin, k_cos, k_sin], adjacent, start, direction)
    return outs


@_op.register_fake
def _(q: Tensor, k: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    del rest
    return _contiguous(q), _contiguous(k)


def _contiguous(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    del output
    *tables, ctx.adjacent, ctx.start, ctx.direction = inputs[2:]
    ctx.save_for_backward(*tables)


def _backward(ctx: Any, q_grad: Tensor, k_grad: Tensor) -> tuple[Tensor | None, ...]:
    form = ctx.adjacent, ctx.start, -ctx.direction
    return *_op(q_grad, k_grad, *ctx.saved_tensors, *form), *[None] * 7


_op.register_autograd(_backward, setup_context=_save)


@torch.library.custom_op("posenc::rotate_qk_", mutates_args=("q", "k"))
def _inplace_op(
    q: Tensor,
    k: Tensor,
    q_cos: Tensor,
    q_sin: Tensor,
    k_cos: Tensor,
    k_sin: Tensor,
    adjacent: bool,
    start: int,
) -> None:
    _launch((q, k), (q, k), [q_cos, q_sin, k_cos, k_sin], adjacent, start)


@_inplace_op.register_fake
def _(*inputs: object) -> None:
    del inputs


def _launch(
    xs: tuple[Tensor, Tensor],
    outs: tuple[Tensor, Tensor],
    tables: list[Tensor],
    adjacent: bool,
    start: int,
    direction: float = 1.0,
    tiles: Tiles | None = None,
) -> None:
    pairs, head_dim = tables[0].shape[-1], xs[0].shape[-1]
    tiles = tiles or tiles_for(xs[0].shape[0] * max(x.shape[2] for x in xs))
    block_pairs = _power_of_two(pairs)
    block_tokens = max(1, tiles.pairs // block_pairs)
    longest = max(x.shape[2] for x in xs)
    block_tokens = min(block_tokens, _power_of_two(longest))
    counts = [_num_tiles(x, block_tokens, tiles.heads) for x in xs]
    if sum(counts) == 0:
        return
    rest = 0 if xs[0] is outs[0] else head_dim - 2 * pairs
    with _on(xs[0].device):
        _kernel()[(sum(counts),)](
            *(xs[0], outs[0], tables[0], tables[1], xs[1], outs[1], tables[2], tables[3]),
            counts[0],
            *_places(xs[0], outs[0], tables[0]),
            *_places(xs[1], outs[1], tables[2]),
            direction,
            START=start,
            PAIRS=pairs,
            REST=rest,
            ADJACENT=adjacent,
            GROUP=tiles.heads,
            BLOCK_TOKENS=block_tokens,
            BLOCK_PAIRS=block_pairs,
            BLOCK_REST=_power_of_two(rest),
            num_warps=tiles.num_warps,
        )


def _num_tiles(x: Tensor, block_tokens: int, heads: int) -> int:
    batch, num_heads, num_tokens, _ = x.shape
    return batch * -(-num_heads // heads) * -(-num_tokens // block_tokens)


def _places(x: Tensor, out: Tensor, cos: Tensor) -> tuple[int, ...]:
    """Heads, tokens, strides of `x` and of `out`, and the table's batch stride."""
    table_batch = 0 if cos.shape[0] == 1 else cos.stride(0)
    return x.shape[1], x.shape[2], *x.stride()[:3], *out.stride()[:3], table_batch


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whatever the tensors say."""
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    return torch.cuda.device(device) if elsewhere else nullcontext()
