"""Checks at the boundary: dtype, shape and range of positions, with what was given in the error."""

from numbers import Integral

import torch
from torch import Tensor

__all__ = [
    "assert_on_device",
    "can_look",
    "check_ints",
    "check_positions",
    "check_range",
    "check_whole",
    "check_window",
    "host_all",
    "is_bare",
    "is_recorded",
    "query_key_positions",
]

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
REAL_DTYPES = (torch.float32, torch.float64)
PROXY = torch._C._TorchDispatchModeKey.PROXY  # pyright: ignore[reportAttributeAccessIssue]
_dispatch_mode = torch._C._get_dispatch_mode  # pyright: ignore[reportAttributeAccessIssue]
_tracing_state = torch._C._get_tracing_state  # pyright: ignore[reportAttributeAccessIssue]


def check_positions(
    positions: Tensor,
    *,
    num_tokens: int | None = None,
    name: str = "positions",
    num_axes: int = 1,
    real: bool = False,
) -> Tensor:
    """The positions as int64 (or, where `real` values are meant, unchanged), or a ValueError.

    `num_tokens` is None where nothing else says how many there are.
    Low-precision floats are always refused: bfloat16 keeps 385 of the first 512 integers.
    """
    if not isinstance(positions, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(positions).__name__}: {positions!r}")
    is_real = real and positions.dtype in REAL_DTYPES
    if positions.dtype not in INTEGER_DTYPES and not is_real:
        wanted = "integers, float32 or float64" if real else "integers (int64)"
        raise ValueError(f"{name} must be {wanted}, got dtype {positions.dtype}")
    shape = tuple(positions.shape)
    axes = () if num_axes == 1 else (num_axes,)
    tokens = shape[: len(shape) - len(axes)]
    fits = shape[len(tokens) :] == axes and len(tokens) in (1, 2)
    if not fits or num_tokens not in (None, tokens[-1]):
        tail = "".join(f", {n}" for n in axes)
        number = "" if num_tokens is None else f" with T = {num_tokens} tokens"
        raise ValueError(
            f"{name} must have shape [T{tail}] or [B, T{tail}]{number}, got {list(shape)}"
        )
    return positions if is_real else positions.to(torch.int64)


def check_ints(**values: object) -> None:
    """Raise unless each is an int; None and bools, floats and arrays are none."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} must be an int, got {value!r}")


def check_whole(**values: object) -> None:
    """The same for counts and indices, where numpy's and a graph's whole numbers will do."""
    for name, value in values.items():
        is_whole = isinstance(value, int | torch.SymInt | Integral)
        if isinstance(value, bool) or not is_whole:
            raise ValueError(f"{name} must be an int, got {value!r}")


def check_window(window: int | tuple[int, int], name: str = "window") -> tuple[int, int]:
    """(height, width), from a number for a square or from a pair."""
    sides = tuple(window) if isinstance(window, tuple | list) else (window, window)
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not whole or min(sides) < 1:
        raise ValueError(f"{name} must be (height, width) of at least 1, got {window!r}")
    return sides


def check_range(positions: Tensor, low: int, high: int, *, name: str) -> None:
    """Raise unless `low <= position <= high` everywhere, before anything is looked up.

    On the CPU the error names the first offending position. Elsewhere, and in a compiled graph,
    reading the value would stall the device, so the check is a device-side assertion.
    """
    message = f"{name} must lie in [{low}, {high}]"
    if positions.device.type == "meta":
        return
    outside = (positions < low) | (positions > high)
    if positions.device.type != "cpu" or torch.compiler.is_compiling():
        assert_on_device(~outside.any(), message)
    elif outside.any():
        raise ValueError(f"{message}, got position {int(positions[outside].flatten()[0])}")


def assert_on_device(condition: Tensor, message: str) -> None:
    """Stop the device where the condition fails, without waiting for it here."""
    torch._assert_async(condition, message)  # pyright: ignore[reportPrivateImportUsage]


def query_key_positions(
    num_queries: int,
    num_keys: int,
    q_pos: Tensor | None,
    k_pos: Tensor | None,
    *,
    num_axes: int = 1,
    real: bool = False,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Checked positions of queries and keys; queries default to the END of the keys.

    >>> query_key_positions(1, 4, None, None)
    (tensor([3]), tensor([0, 1, 2, 3]))
    """
    if k_pos is None:
        if q_pos is not None:
            raise ValueError("q_pos was given without k_pos: give both, or k_pos alone")
        if num_axes > 1:
            raise ValueError(
                f"this encoding needs positions with {num_axes} axes, [..., T, {num_axes}]; "
                "give k_pos (posenc.positions.grid makes them for a window)"
            )
        k_pos = torch.arange(num_keys, device=device)
    axes = {"num_axes": num_axes, "real": real}
    k_pos = check_positions(k_pos, num_tokens=num_keys, name="k_pos", **axes)
    if q_pos is None:
        if num_queries > num_keys:
            raise ValueError(f"{num_queries} queries but {num_keys} keys: give q_pos and k_pos")
        if num_queries == num_keys:
            return k_pos, k_pos  # one tensor: tables are made once
        token_dim = -1 if num_axes == 1 else -2
        q_pos = k_pos.narrow(token_dim, num_keys - num_queries, num_queries)
    return check_positions(q_pos, num_tokens=num_queries, name="q_pos", **axes), k_pos


def host_all(condition: Tensor) -> bool:
    """Whether the condition holds, for tensors whose values the host can read for free."""
    if condition.device.type != "cpu" or torch.compiler.is_compiling():
        return True
    return bool(condition.all())


def is_bare(x: Tensor) -> bool:
    """A tensor with nothing around it: no fake one, no subclass, no transform."""
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore
    return type(x) in (Tensor, torch.nn.Parameter) and not is_wrapped(x)


def can_look(*tensors: Tensor) -> bool:
    """Values that the host reads for free: no device, no tracer, no transform around them."""
    return not (torch.compiler.is_compiling() or is_recorded()) and all(
        x.device.type == "cpu" and is_bare(x) for x in tensors
    )


def is_recorded() -> bool:
    """Whether operations are written into a graph: what is done beside them would be lost."""
    return _dispatch_mode(PROXY) is not None or _tracing_state() is not None
