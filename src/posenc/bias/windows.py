"""What the biases of image windows share: the row of an offset, and a table for another window."""

from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional as F

from posenc.positions import check_range

__all__ = ["Kernel", "offset_rows", "resized_table"]

Window = tuple[int, int]
Kernel = Literal["bicubic", "bilinear"]


def offset_rows(offset: Tensor, window: Window) -> Tensor:
    """`[..., 2]` (row, column) offsets -> rows of a table `[(2h−1)(2w−1), H]`, or an error."""
    height, width = window
    rows, columns = offset[..., 0], offset[..., 1]
    name = f"offsets in a window of {height} × {width}"
    check_range(rows, 1 - height, height - 1, name=f"row {name}")
    check_range(columns, 1 - width, width - 1, name=f"column {name}")
    return (rows + height - 1) * (2 * width - 1) + columns + width - 1


def resized_table(table: Tensor, old: Window, new: Window, kernel: Kernel = "bicubic") -> Tensor:
    """`[(2h−1)(2w−1), H]` of one window -> of another, interpolated over the grid of offsets.

    As the released code of Swin does for another window: half-pixel centres, so that the offset
    (0, 0) keeps its value, and an exact size, never a factor of it. transformers' BEiT resizes at
    every call, with kernel "bilinear".
    """
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel must be 'bicubic' or 'bilinear', got {kernel!r}")
    (height, width), (new_height, new_width) = ([2 * side - 1 for side in x] for x in (old, new))
    grid = table.detach().double().T.reshape(1, -1, height, width)
    size = (new_height, new_width)
    made = F.interpolate(grid, size=size, mode=kernel, align_corners=False)
    return made.reshape(table.shape[1], -1).T.to(table.dtype)
