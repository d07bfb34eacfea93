"""Learned positions of several coordinates, a table for each axis.

Carion et al. 2020 (DETR), arXiv 2005.12872, released code; Kitaev et al. 2020, "Reformer", arXiv
2001.04451, released code; Dehghani et al. 2023, "Patch n' Pack" (NaViT), arXiv 2307.06304, section
3.2 (added instead of concatenated).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.additive.waves import check_dim, coordinates
from posenc.contracts import add_encoding, ordered_axes
from posenc.positions import check_range

__all__ = ["AxialLearned"]


class AxialLearned(nn.Module):
    """A table of `sizes[a]` vectors for each axis, side by side or summed, `[B, T, dim]`.

    >>> detr = AxialLearned((50, 50), (128, 128), axis_order=(1, 0))      # [column, row]
    >>> x = detr(x, cells)                                               # grid(h, w), [T, 2]
    >>> reformer = AxialLearned((64, 128), (64, 192))                    # at unravel(at, (64, 128))
    >>> navit = AxialLearned((64, 64), 768, combine="added")

    `dims` is the width of each axis in the order of coordinates or, where tables are added, the one
    width of all. Channels follow `axis_order`. Coordinate 0 reads the parameter `table0`, and so on.
    A coordinate outside its table is a ValueError before anything is read.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        dims: int | Sequence[int],
        *,
        axis_order: tuple[int, ...] = (),
        combine: Literal["concatenated", "added"] = "concatenated",
    ) -> None:
        super().__init__()
        if combine not in ("concatenated", "added"):
            raise ValueError(f"combine must be 'concatenated' or 'added', got {combine!r}")
        sizes = tuple(sizes)
        if len(sizes) < 2:
            raise ValueError(f"sizes must give the positions of at least two axes, got {sizes}")
        widths = _widths(dims, len(sizes), combine)
        for name, value in (*(("a size", n) for n in sizes), *(("a width", n) for n in widths)):
            check_dim(name, value)
        self.axis_order = ordered_axes(axis_order, len(sizes))
        self.sizes, self.widths, self.combine = sizes, widths, combine
        self.num_axes, self.dim = len(sizes), widths[0] if combine == "added" else sum(widths)
        for axis, shape in enumerate(zip(sizes, widths, strict=True)):
            table = nn.Parameter(nn.init.normal_(torch.empty(shape), std=0.02))
            self.register_parameter(f"table{axis}", table)

    @property
    def tables(self) -> tuple[nn.Parameter, ...]:
        """The table of each coordinate."""
        return tuple(self.get_parameter(f"table{axis}") for axis in range(self.num_axes))

    def encode(self, positions: Tensor) -> Tensor:
        """`[T, A]` or `[B, T, A]` positions -> `[..., T, dim]`."""
        positions = coordinates(positions, self.num_axes)
        vectors, tables = [], self.tables
        for axis in self.axis_order:
            size, place = self.sizes[axis], positions[..., axis]
            name = f"coordinate {axis} of a table of {size}"
            check_range(place, 0, size - 1, name=name)
            vectors.append(F.embedding(place, tables[axis]))
        return (
            torch.cat(vectors, -1)
            if self.combine == "concatenated"
            else sum(vectors[1:], vectors[0])
        )

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)

    def extra_repr(self) -> str:
        dims = self.dim if self.combine == "added" else self.widths
        return f"{self.sizes}, {dims}, axis_order={self.axis_order}, combine={self.combine!r}"


def _widths(dims: int | Sequence[int], num_axes: int, combine: str) -> tuple[int, ...]:
    """The width of each table."""
    one = isinstance(dims, int)
    if one != (combine == "added"):
        wanted = "one width" if combine == "added" else f"{num_axes} widths"
        raise ValueError(f"tables that are {combine} have {wanted}, got {dims!r}")
    widths = (dims,) * num_axes if isinstance(dims, int) else tuple(dims)
    if len(widths) != num_axes:
        raise ValueError(f"dims must give a width for each of {num_axes} axes, got {dims!r}")
    return widths
