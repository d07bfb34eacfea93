"""A learned table of grid cells, resampled to another grid: what finer images need.

Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", arXiv 2010.11929, section 3.2; the kernel
differs between models, so it is named.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.additive.waves import check_dim

__all__ = ["Kernel", "resize_grid"]

Kernel = Literal["bicubic", "bilinear"]
Grid = tuple[int, int]


def resize_grid(
    table: Tensor,
    grid: Grid,
    *,
    old_grid: Grid | None = None,
    num_prefix: int = 0,
    kernel: Kernel = "bicubic",
    antialias: bool = False,
    align_corners: bool = False,
) -> Tensor:
    """`[num_prefix + h·w, dim]` vectors of (height, width) `old_grid` -> those of `grid`.

    >>> table = resize_grid(vit.pos_embed[0], (24, 32), num_prefix=1)     # from a square of 14 x 14
    >>> table = resize_grid(table, (14, 14), old_grid=(24, 32), num_prefix=1)

    The first `num_prefix` rows (class tokens) are kept. The target is a size, never a factor. A
    square old grid is found by its number of cells; any other must be named. `kernel` is "bicubic"
    (ViT, DINO, timm) or "bilinear" (Siglip, VideoPrism); `antialias` widens it when the grid shrinks
    (timm: True). On the same grid nothing changes, bit for bit. Sums are float64, rounded once.
    """
    if kernel not in ("bicubic", "bilinear"):
        raise ValueError(f"kernel must be 'bicubic' or 'bilinear', got {kernel!r}")
    if antialias and align_corners:
        raise ValueError("antialias=True needs align_corners=False: PyTorch has no kernel for both")
    if table.ndim != 2 or not table.is_floating_point():
        raise ValueError(f"a table is floating [rows, dim], got {table.dtype} {list(table.shape)}")
    height, width = _sides(grid, "grid")
    old = _old_grid(len(table) - num_prefix, old_grid, num_prefix)
    if (height, width) == old:
        return table.clone()
    prefix, cells = table[:num_prefix], table[num_prefix:]
    image = cells.T.reshape(1, -1, *old).to(torch.float64)
    made = F.interpolate(
        image, size=(height, width), mode=kernel, antialias=antialias, align_corners=align_corners
    )
    return torch.cat((prefix, made[0].flatten(1).T.to(table.dtype)))


def _old_grid(num_cells: int, old_grid: Grid | None, num_prefix: int) -> Grid:
    """The grid that the rows are, row-major."""
    if num_prefix < 0 or num_cells < 1:
        raise ValueError(
            f"num_prefix must leave at least one cell, got {num_prefix} of "
            f"{num_cells + num_prefix} rows"
        )
    side = round(num_cells**0.5)
    old = (side, side) if old_grid is None else _sides(old_grid, "old_grid")
    if old[0] * old[1] != num_cells:
        found = f"{num_cells} cells after {num_prefix} prefix rows"
        if old_grid is None:
            raise ValueError(f"{found} are no square: give old_grid=(height, width)")
        raise ValueError(f"old_grid {old} has {old[0] * old[1]} cells, but the table has {found}")
    return old


def _sides(grid: Grid, name: str) -> Grid:
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise ValueError(f"{name} must be (height, width), got {grid!r}")
    for side in grid:
        check_dim(f"a side of {name}", side)
    return grid[0], grid[1]
