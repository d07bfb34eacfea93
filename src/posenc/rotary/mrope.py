"""Multimodal rotary (M-RoPE): the pairs of one rotation turn with different coordinates.

Wang et al. 2024, "Qwen2-VL", arXiv 2409.12191, section 2.1: a token has (time, row, column)
coordinates, equal to each other in text, and each coordinate has a section of the pairs.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posenc.contracts import RotaryTables, Table
from posenc.rotary.pair import tables_of
from posenc.rotary.shared import OverRope, rows_with_axes, table_by_axis

__all__ = ["MRope", "Order"]

Order = Literal["contiguous", "interleaved", "alternating"]


@dataclass(frozen=True)
class MRope(OverRope):
    """`rope` with a coordinate for each pair: `sections[a]` of its pairs turn with coordinate a.

    >>> mrope = MRope(Rope(128, base=1_000_000.0), sections=(16, 24, 24))          # Qwen2-VL
    >>> positions = multimodal([Text(4), Image(16, 24), Text(9)])                  # [T, 3]
    >>> tables = mrope.tables(positions, positions)

    Every pair keeps the speed that it has in `rope`, scaled or not, so where the coordinates agree
    (text) this is `rope` itself. `order` says which pairs form the sections:

    - "contiguous": the first 16 turn with time, the next 24 with rows … (Qwen2-VL, GLM-4V);
    - "interleaved": time, row, column, time, … and time alone for the rest (Qwen3-VL, NeoMME);
    - "alternating": row, column, row, … and then time (ERNIE 4.5 VL);
    - or the coordinate of each pair, a tuple as long as there are pairs.

    Positions are integers `[T, A]` or `[B, T, A]`. Raises ValueError where the sections do not
    account for every pair in this order.
    """

    sections: tuple[int, ...]
    order: Order | tuple[int, ...] = "contiguous"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "sections", tuple(self.sections))
        if not isinstance(self.order, str):
            object.__setattr__(self, "order", tuple(self.order))
        elif self.order not in ("contiguous", "interleaved", "alternating"):
            raise ValueError(
                "order must be 'contiguous', 'interleaved', 'alternating' or the coordinate of each "
                f"pair, got {self.order!r}"
            )
        num_pairs = self.frequencies().inv_freq.numel()
        if len(self.sections) < 2 or min(self.sections) < 0 or sum(self.sections) != num_pairs:
            raise ValueError(
                f"sections must add up to the {num_pairs} pairs of {self.rope}, two coordinates or "
                f"more, got {self.sections} = {sum(self.sections)}"
            )
        counts = tuple(self.axis_of_pair.count(axis) for axis in range(self.num_axes))
        if counts != self.sections or len(self.axis_of_pair) != num_pairs:
            raise ValueError(
                f"order {self.order!r} gives the coordinates {counts} of the {num_pairs} pairs, "
                f"not sections {self.sections}"
            )

    @property
    def num_axes(self) -> int:
        """Coordinates of one position."""
        return len(self.sections)

    @property
    def axis_of_pair(self) -> tuple[int, ...]:
        """Which coordinate turns each pair."""
        if not isinstance(self.order, str):
            return self.order
        return _ORDERS[self.order](self.sections)

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table:
        """cos and sin at `[T, A]` or `[B, T, A]` positions."""
        return table_by_axis(self, rows_with_axes(positions, self.num_axes), dtype)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        """Tables of queries and keys; made once where both positions are the same tensor."""
        return tables_of(self, q_pos, k_pos, dtype)


def _contiguous(sections: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis, count in enumerate(sections) for _ in range(count))


def _interleaved(sections: tuple[int, ...]) -> tuple[int, ...]:
    num_axes = len(sections)
    turns = [(pair % num_axes, pair // num_axes) for pair in range(sum(sections))]
    return tuple(axis if place < sections[axis] else 0 for axis, place in turns)


def _alternating(sections: tuple[int, ...]) -> tuple[int, ...]:
    num_spatial = len(sections) - 1
    spatial = range(sum(sections[1:]))
    return tuple(1 + pair % num_spatial for pair in spatial) + (0,) * sections[0]


_ORDERS = {
    "contiguous": _contiguous,
    "interleaved": _interleaved,
    "alternating": _alternating,
}
