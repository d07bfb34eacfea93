"""What a picture holds, as numbers: curves, one heat map, or a row of small maps."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Heat", "Lines", "Maps", "Panel", "Picture", "lively"]

NUM_MAPS = 6  # of channels or pairs over an image


@dataclass(frozen=True, eq=False)
class Lines:
    """Curves `[N]` over the same x `[N]`, by name; `band` is shaded, `levels` are horizontal."""

    title: str
    x: Tensor
    lines: dict[str, Tensor]
    xlabel: str
    ylabel: str
    band: tuple[str, Tensor, Tensor] | None = None  # its name, lower and upper edge
    levels: dict[str, float] = field(default_factory=dict)
    background: tuple[Tensor, ...] = ()  # other curves to compare with, grey and unnamed
    logarithmic: str = ""  # the axes that are: "x", "y" or "xy"
    stepped: bool = False  # one point for each pair, not a function of a real number


@dataclass(frozen=True, eq=False)
class Heat:
    """Values `[rows, columns]`, the first row on top; NaN is what a mask hides.

    A colour scale around zero where values have both signs. `extent` is the first and last
    coordinate of the columns and of the rows.
    """

    title: str
    values: Tensor
    xlabel: str
    ylabel: str
    extent: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, eq=False)
class Maps:
    """Small images `[h, w]` of one colour scale, by name; `cell` is marked in each."""

    title: str
    maps: dict[str, Tensor]
    cell: tuple[int, int] | None = None


Panel = Lines | Heat | Maps


@dataclass(frozen=True, eq=False)
class Picture:
    """A row of panels for each part of a scheme, a title and what they were drawn from."""

    title: str
    note: str
    rows: tuple[tuple[Panel, ...], ...]


def lively(columns: Tensor) -> list[int]:
    """Some columns of `[cells, columns]`, evenly chosen among those that vary over an image."""
    spread = columns.var(0)
    varies = (spread > spread.max() / 4).nonzero().flatten()
    chosen = torch.linspace(0, len(varies) - 1, min(NUM_MAPS, len(varies))).round().long()
    return varies[chosen].tolist()
