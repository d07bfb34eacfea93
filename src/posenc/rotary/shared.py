"""What the rotary forms share: angles that read several axes, and what may be wrapped."""

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from posenc.contracts import Pairing, rows
from posenc.frequencies import Frequencies
from posenc.positions import check_positions
from posenc.rotary.rope import Rope

__all__ = ["OverRope", "angles_by_axis", "check_rope", "rows_with_axes"]

Form = TypeVar("Form", bound="OverRope")


@dataclass(frozen=True)
class OverRope:
    """A form that changes a `Rope` and keeps its head, its pairs, their speeds and its scaling."""

    rope: Rope

    def __post_init__(self) -> None:
        check_rope(self.rope, type(self).__name__)

    @property
    def head_dim(self) -> int:
        return self.rope.head_dim

    @property
    def pairing(self) -> Pairing:
        return self.rope.pairing

    @property
    def start(self) -> int:
        """The first channel that turns."""
        return self.rope.start

    def frequencies(self, device: torch.device | None = None) -> Frequencies:
        """Those of `rope`."""
        return self.rope.frequencies(device)

    def at_length(self: Form, length: int) -> Form:
        """The value for sequences of `length`; the same one unless the scaling depends on it."""
        return replace(self, rope=self.rope.at_length(length))


def rows_with_axes(positions: Tensor, num_axes: int, *, real: bool = False) -> Tensor:
    """Checked positions `[T, A]` or `[B, T, A]` as `[B|1, T, A]`."""
    num_tokens = positions.shape[-2] if positions.ndim > 1 else positions.numel()
    checked = check_positions(positions, num_tokens=num_tokens, num_axes=num_axes, real=real)
    return rows(checked, num_axes)


def angles_by_axis(positions: Tensor, axis_of_pair: tuple[int, ...], inv_freq: Tensor) -> Tensor:
    """`[..., T, A]` positions -> `[..., T, pairs]`, pair i turning with coordinate axis_of_pair[i].

    A product per pair, never a sum with zeros: float32 angles stay bit-equal to other code's.
    """
    axis = torch.tensor(axis_of_pair, device=positions.device)
    return positions[..., axis].to(inv_freq.dtype) * inv_freq


def check_rope(rope: object, form: str) -> None:
    """Raise unless `rope` is a Rope: of another form, amplitudes or axes would be lost in silence."""
    if not isinstance(rope, Rope):
        raise TypeError(f"{form} changes a Rope: {form}(Rope(head_dim), ...), got {rope!r}")
