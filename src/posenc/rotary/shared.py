"""What the rotary forms share: tables that read several axes, and what may be wrapped."""

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from posenc.contracts import Pairing, Rotation, Table, rows, table_from_angles
from posenc.frequencies import Frequencies, host_for
from posenc.positions import check_positions
from posenc.rotary.rope import Rope

__all__ = ["OverRope", "check_rope", "rows_with_axes", "table_by_axis"]

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


class ByAxis(Rotation, Protocol):
    """A rotation whose pairs turn with different coordinates."""

    @property
    def axis_of_pair(self) -> tuple[int, ...]: ...


def table_by_axis(form: ByAxis, positions: Tensor, dtype: torch.dtype) -> Table:
    """cos and sin at `[B|1, T, A]` positions, pair i turning with coordinate axis_of_pair[i].

    A product per pair, never a sum with zeros: float32 angles stay bit-equal to other code's.
    """
    host = host_for(positions.device)
    frequencies = form.frequencies(host)
    axis = torch.tensor(form.axis_of_pair, device=host)
    angle = positions.to(host)[..., axis].to(frequencies.inv_freq.dtype) * frequencies.inv_freq
    return table_from_angles(angle, form, frequencies.attention_factor, dtype, positions.device)


def check_rope(rope: object, form: str) -> None:
    """Raise unless `rope` is a Rope: of another form, amplitudes or axes would be lost in silence."""
    if not isinstance(rope, Rope):
        raise TypeError(f"{form} changes a Rope: {form}(Rope(head_dim), ...), got {rope!r}")
