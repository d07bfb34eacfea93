"""Coordinates of cells: images, windows and videos, in storage order, as integers or reals.

Coordinates are always (row, column) or (frame, row, column). A model that counts from 1 takes
`grid(h, w) + 1`; one that turns x before y says so in its encoding (`AxialRope(axis_order=(1, 0))`),
so that one coordinate tensor fits all.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.positions.checks import check_range, check_whole, host_all

__all__ = ["centred", "from_pixel_mask", "grid", "unravel", "volume", "with_class_token"]


def grid(
    height: int, width: int, *, merge: int = 1, device: torch.device | str | None = None
) -> Tensor:
    """(row, column) of every cell in row-major order, `[height * width, 2]`.

    >>> grid(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]

    `merge=m` orders cells by m × m blocks, as encoders do whose patches are merged afterwards
    (Qwen2-VL): all cells of a block first, blocks and cells row-major.
    """
    check_whole(height=height, width=width, merge=merge)
    for name, side in (("height", height), ("width", width)):
        if side < 1 or merge < 1 or side % merge:
            raise ValueError(
                f"{name} must be a positive multiple of merge, got {name} {side}, merge {merge}"
            )
    rows, columns = (torch.arange(side, device=device) for side in (height, width))
    cells = torch.cartesian_prod(rows, columns)
    if merge == 1:
        return cells
    blocks = cells.reshape(height // merge, merge, width // merge, merge, 2)
    return blocks.transpose(1, 2).reshape(-1, 2)


def with_class_token(cells: Tensor) -> Tensor:
    """The cells behind a token that stands in no cell, at −1 on every axis: `[T + 1, axes]`.

    >>> with_class_token(grid(1, 2)).tolist()
    [[-1, -1], [0, 0], [0, 1]]

    `BeitBias` gives that place rows of its own.
    """
    return torch.cat((torch.full_like(cells[..., :1, :], -1), cells), dim=-2)


def volume(
    frames: int,
    height: int,
    width: int,
    *,
    merge: int = 1,
    device: torch.device | str | None = None,
) -> Tensor:
    """(frame, row, column) of every cell, frame by frame, `[frames * height * width, 3]`.

    >>> volume(2, 1, 2).tolist()
    [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    """
    check_whole(frames=frames)
    if frames < 1:
        raise ValueError(f"frames must be at least 1, got {frames}")
    cells = grid(height, width, merge=merge, device=device)
    frame = torch.arange(frames, device=device).repeat_interleave(len(cells))
    return torch.cat((frame[:, None], cells.repeat(frames, 1)), dim=-1)


def centred(
    height: int,
    width: int,
    *,
    frames: int | None = None,
    extent: float = 1.0,
    ends: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """Real (row, column) in `[-extent, extent]` of every cell, float64 `[height * width, 2]`.

    >>> centred(2, 1).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]

    With `frames` it is (frame, row, column) of every cell of a video, in the order of `volume`.

    A cell is where its centre is, 2(i + ½)/N − 1 on each axis, so that images of any size cover the
    same range (DINOv3: `extent=2 * math.pi`, base 100). `ends=True` puts the first and last cell on
    ∓extent instead (timm's "pixel" rotation: `extent=math.pi`).
    """
    if not 0 < extent < math.inf:
        raise ValueError(f"extent must be positive and finite, got {extent!r}")
    axes, sides = [], {"frames": frames, "height": height, "width": width}
    for name, side in sides.items():
        if side is None and name == "frames":
            continue
        check_whole(**{name: side})
        assert side is not None
        if side < 1 + ends:
            raise ValueError(f"{name} must be at least {1 + ends}, got {side}")
        index = torch.arange(side, dtype=torch.float64)
        place = 2 * index / (side - 1) if ends else (2 * index + 1) / side
        axes.append(extent * (place - 1))
    return torch.cartesian_prod(*axes).to(device)


def from_pixel_mask(
    mask: Tensor, *, extent: float | None = None, offset: float = 0.0, eps: float = 1e-6
) -> Tensor:
    """(row, column) of every cell of padded images, counted over real cells from 1, `[B, H·W, 2]`.

    >>> from_pixel_mask(torch.tensor([[[1, 1, 0]]])).tolist()
    [[[1, 1], [1, 2], [0, 2]]]

    `mask` `[B, H, W]` is 1 (or True) at real cells; rows count down their own column, columns along
    their own row. With `extent` the counts become reals, float64, `extent · (count + offset) / (last
    + eps)`: DETR has `extent=2 * math.pi`, Deformable DETR also `offset=-0.5`.
    """
    real = mask.to(torch.int64)
    if mask.ndim != 3 or mask.is_floating_point() or not host_all((real == 0) | (real == 1)):
        raise ValueError(
            f"a pixel mask holds 0 and 1 (or bools) for cells [B, H, W], got {mask.dtype} "
            f"{list(mask.shape)}"
        )
    counts = [real.cumsum(1), real.cumsum(2)]
    if extent is None:
        if offset:
            raise ValueError(f"offset {offset} shifts reals: give extent too")
        return torch.stack(counts, -1).flatten(1, 2)
    last = (counts[0][:, -1:], counts[1][:, :, -1:])
    reals = [
        extent * (count.double() + offset) / (end.double() + eps)
        for count, end in zip(counts, last, strict=True)
    ]
    return torch.stack(reals, -1).flatten(1, 2)


def unravel(positions: Tensor, sizes: Sequence[int]) -> Tensor:
    """Places in storage -> coordinates of a row-major grid, `[..., T]` -> `[..., T, A]`.

    >>> unravel(torch.tensor([0, 7]), (4, 6)).tolist()
    [[0, 0], [1, 1]]

    What Reformer's axial table reads: text folded into lines of `sizes[-1]` tokens.
    """
    sizes = tuple(sizes)
    if not sizes or any(size < 1 for size in sizes):
        raise ValueError(f"sizes must be positive, one for each axis, got {sizes}")
    cells = torch.Size(sizes).numel()
    check_range(positions, 0, cells - 1, name=f"positions in a grid of {sizes}")
    return torch.stack(torch.unravel_index(positions, sizes), -1)
