"""How many coordinates a position has, and rows of positions."""

from collections.abc import Sequence

from torch import Tensor

__all__ = ["axes_of", "ordered_axes", "rows"]


def rows(positions: Tensor, num_axes: int = 1) -> Tensor:
    """`[T]` or `[B, T]` (with axes behind) -> with a batch dimension, of 1 where shared."""
    return positions if positions.ndim == (2 if num_axes == 1 else 3) else positions[None]


def axes_of(part: object) -> int:
    """Coordinates of one position that a part reads; 1 where it does not say."""
    axes = getattr(part, "num_axes", 1)
    return axes if isinstance(axes, int) else 1


def ordered_axes(axis_order: Sequence[int], num_axes: int) -> tuple[int, ...]:
    """The coordinates in the order of channels: their own where none is given."""
    axes = tuple(range(num_axes))
    ordered = tuple(axis_order) or axes
    if tuple(sorted(ordered)) != axes:
        raise ValueError(f"axis_order must order the axes {axes}, got {ordered}")
    return ordered
