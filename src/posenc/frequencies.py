"""Frequencies and angles: the one place where precision is decided.

Frequencies and angles are float64; cosines and sines are rounded once, to the dtype of the table.
Angles never take the dtype of activations: in bfloat16 the position 257 is 256.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Frequencies",
    "Spectrum",
    "angles",
    "check_base",
    "full_precision",
    "geometric",
    "host_for",
    "widest",
]


LARGEST = sys.float_info.max  # an int may be larger


def _same(one: Any, other: Any) -> Any:
    """Field by field, tensors by their values: what `==` means for a value that holds a tensor."""
    if type(one) is not type(other):
        return NotImplemented
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(
        (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)
        if isinstance(a, Tensor)
        else a == b
        for a, b in pairs
    )


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Unscaled rotation speeds, what a scaling method starts from."""

    per_radian: Tensor  # [rotary_dim / 2], positions per radian: base ** (2i / rotary_dim)
    base: float
    rotary_dim: int

    __eq__ = _same
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def inv_freq(self) -> Tensor:
        """Radians per position."""
        return 1.0 / self.per_radian


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Radians per position for each pair, `[pairs]`, and two amplitudes.

    `attention_factor` multiplies cos and sin, so the logits by its square. `softmax_scale`
    multiplies the softmax scale and touches neither table.
    """

    inv_freq: Tensor
    attention_factor: float = 1.0
    softmax_scale: float = 1.0

    __eq__ = _same
    __hash__ = None  # pyright: ignore[reportAssignmentType]


def geometric(
    num_pairs: int,
    denominator: int,
    base: float,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> Tensor:
    """Positions per radian, `base ** (2i / denominator)` for i = 0 … num_pairs - 1."""
    exponents = torch.arange(0, 2 * num_pairs, 2, dtype=torch.int64, device=device).to(dtype)
    return base ** (exponents / denominator)


def angles(positions: Tensor, inv_freq: Tensor) -> Tensor:
    """`[..., T]` positions × `[pairs]` frequencies -> `[..., T, pairs]` in the frequencies' dtype.

    Integers are exact in float64 up to 2**53. A real position keeps its gradient.
    """
    return positions.to(inv_freq.dtype)[..., None] * inv_freq


def host_for(device: torch.device) -> torch.device:
    """Where float64 angles for this device are made: Apple's MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def widest(device: torch.device) -> torch.dtype:
    """The dtype of a fixed bias on this device: float64 where there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A block whose matrix products stay in float32 or wider, under autocast too."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def check_base(base: float) -> None:
    """Raise unless the base is a positive finite number."""
    is_real = isinstance(base, int | float) and not isinstance(base, bool)
    if not is_real or not 0 < base <= LARGEST:
        raise ValueError(f"base must be a positive finite number, got {base!r}")
