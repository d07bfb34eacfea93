"""Coordinates of cells: images, windows and videos, in storage order, as integers or reals.

Coordinates are always (row, column) or (frame, row, column). A model that counts from 1 takes
`grid(h, w) + 1`; one that turns x before y says so in its encoding (`AxialRope(axis_order=(1, 0))`),
so that one coordinate tensor fits all.
"""

import torch
from torch import Tensor

__all__ = ["centred", "grid", "volume"]


def grid(
    height: int, width: int, *, merge: int = 1, device: torch.device | str | None = None
) -> Tensor:
    """(row, column) of every cell in row-major order, `[height * width, 2]`.

    >>> grid(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]

    `merge=m` orders cells by m × m blocks, as encoders do whose patches are merged afterwards
    (Qwen2-VL): all cells of a block first, blocks and cells row-major.
    """
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
    if frames < 1:
        raise ValueError(f"frames must be at least 1, got {frames}")
    cells = grid(height, width, merge=merge, device=device)
    frame = torch.arange(frames, device=device).repeat_interleave(len(cells))
    return torch.cat((frame[:, None], cells.repeat(frames, 1)), dim=-1)


def centred(
    height: int,
    width: int,
    *,
    extent: float = 1.0,
    ends: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """Real (row, column) in `[-extent, extent]` of every cell, float64 `[height * width, 2]`.

    >>> centred(2, 1).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]

    A cell is where its centre is, 2(i + ½)/N − 1 on each axis, so that images of any size cover the
    same range (DINOv3: `extent=2 * math.pi`, base 100). `ends=True` puts the first and last cell on
    ∓extent instead (timm's "pixel" rotation: `extent=math.pi`).
    """
    axes = []
    for name, side in (("height", height), ("width", width)):
        if side < 1 + ends:
            raise ValueError(f"{name} must be at least {1 + ends}, got {side}")
        index = torch.arange(side, dtype=torch.float64)
        place = 2 * index / (side - 1) if ends else (2 * index + 1) / side
        axes.append(extent * (place - 1))
    return torch.cartesian_prod(*axes).to(device)
