"""Axial rotary for images and videos: each coordinate turns its own pairs, from the full range of
speeds.

Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, section 3.2;
in use before in EVA-02 (Fang 2023, arXiv 2303.11331). The speeds start anew for each coordinate,
unlike M-RoPE's.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from posenc.contracts import Pairing, RotaryTables, Table, ordered_axes
from posenc.frequencies import Frequencies, check_base
from posenc.rotary.pair import tables_of
from posenc.rotary.rope import Rope
from posenc.rotary.shared import rows_with_axes, table_by_axis
from posenc.scaling import Scaling

__all__ = ["AxialRope"]


@dataclass(frozen=True)
class AxialRope:
    """Rotation of `head_dim` channels by two coordinates, (row, column), or three.

    >>> rope = AxialRope(64)                          # Qwen2-VL's encoder
    >>> tables = rope.tables(cells, cells)            # cells = grid(16, 24), [T, 2]
    >>> rope = AxialRope(64, base=100.0)              # DINOv3, at centred(h, w, extent=2 * pi)
    >>> rope = AxialRope(128, split=(44, 42, 42))     # frame, row, column

    `split` is the number of axes that share the head equally, as far as pairs go round (the rest
    passes through), or the channels of each. Coordinates come in the order of `grid`; a model that
    turns x before y has `axis_order=(1, 0)`.

    `order="blocks"` gives the first axis the first pairs; "alternating" gives pairs in turn.
    `spectrum="shared"` lets each axis start at 1 radian and slow down over its own channels;
    "dealt" deals the speeds of the whole head out in turn (Pixtral).

    Positions are integers or float32/float64 reals, `[T, A]` or `[B, T, A]`. `scaling` acts on each
    spectrum. `angle_dtype=torch.float32` reproduces the rounded angles of transformers.
    """

    head_dim: int
    base: float = 10_000.0
    split: int | tuple[int, ...] = 2
    pairing: Pairing = "half"
    order: Literal["blocks", "alternating"] = "blocks"
    axis_order: tuple[int, ...] = ()
    spectrum: Literal["shared", "dealt"] = "shared"
    scaling: Scaling | None = None
    angle_dtype: torch.dtype = torch.float64

    real_positions = True

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")
        check_base(self.base)
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be a scaling method, got {self.scaling!r}")
        object.__setattr__(self, "split", _channels(self.head_dim, self.split))
        object.__setattr__(self, "axis_order", ordered_axes(self.axis_order, self.num_axes))
        uneven = len(set(self.axis_dims)) > 1
        if uneven and (self.order == "alternating" or self.spectrum == "dealt"):
            raise ValueError(
                f"pairs and speeds are dealt out in turn to axes of equal width, got {self.split}"
            )

    @property
    def axis_dims(self) -> tuple[int, ...]:
        """Channels that turn with each axis."""
        assert isinstance(self.split, tuple)
        return self.split

    @property
    def num_axes(self) -> int:
        """Coordinates of one position."""
        return len(self.axis_dims)

    @property
    def rotary_dim(self) -> int:
        """The leading channels that turn."""
        return sum(self.axis_dims)

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        """Which coordinate turns each pair."""
        return tuple(axis for axis, _ in self._layout())

    def frequencies(self, device: torch.device | None = None) -> Frequencies:
        """Radians of each pair per unit of its own coordinate."""
        if self.spectrum == "dealt":
            whole = self._scaled(self.rotary_dim, device)
            turn = {axis: place for place, axis in enumerate(self.axis_order)}
            index = [self.num_axes * i + turn[axis] for axis, i in self._layout()]
            return replace(whole, inv_freq=whole.inv_freq[index])
        spectra = [self._scaled(width, device) for width in self.axis_dims]
        first = [sum(self.axis_dims[:axis]) // 2 for axis in range(self.num_axes)]
        index = [first[axis] + i for axis, i in self._layout()]
        speeds = torch.cat([spectrum.inv_freq for spectrum in spectra])
        return replace(spectra[0], inv_freq=speeds[index])

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table:
        """cos and sin at `[T, A]` or `[B, T, A]` positions, whole or real."""
        return table_by_axis(self, rows_with_axes(positions, self.num_axes, real=True), dtype)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        """Tables of queries and keys; made once where both positions are the same tensor."""
        return tables_of(self, q_pos, k_pos, dtype)

    def _layout(self) -> list[tuple[int, int]]:
        """(axis, place on that axis) of each pair, in the order of channels."""
        counts = [width // 2 for width in self.axis_dims]
        if self.order == "alternating":
            return [(axis, i) for i in range(counts[0]) for axis in self.axis_order]
        return [(axis, i) for axis in self.axis_order for i in range(counts[axis])]

    def _scaled(self, width: int, device: torch.device | None) -> Frequencies:
        """Those of a head of this width."""
        rope = Rope(width, self.base, scaling=self.scaling, angle_dtype=self.angle_dtype)
        return rope.frequencies(device)


_CHOICES = {
    "pairing": ("half", "adjacent"),
    "order": ("blocks", "alternating"),
    "spectrum": ("shared", "dealt"),
    "angle_dtype": (torch.float64, torch.float32),
}


def _channels(head_dim: int, split: int | tuple[int, ...]) -> tuple[int, ...]:
    """Channels of each axis, an even number, within the head."""
    if isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 2:
        raise ValueError(f"head_dim must be an int of at least 2, got {head_dim!r}")
    if isinstance(split, int):
        channels = (2 * (head_dim // (2 * max(split, 1))),) * split
    else:
        channels = tuple(split)
    in_pairs = channels and all(width >= 2 and width % 2 == 0 for width in channels)
    if not in_pairs or sum(channels) > head_dim:
        raise ValueError(
            "split must be a number of axes, or an even number of channels for each, together at "
            f"most head_dim = {head_dim}; got {split!r}"
        )
    return channels
