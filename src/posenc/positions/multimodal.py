"""(time, row, column) positions of text, images and videos in one row, for M-RoPE.

Wang et al. 2024, "Qwen2-VL", arXiv 2409.12191, section 2.1: text has the same coordinate on every
axis; an image or video has its grid, shifted to begin after everything before it. Bai et al. 2025,
"Qwen2.5-VL", arXiv 2502.13923, section 2.1.2: time counts seconds, not frames.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from posenc.positions.checks import check_whole
from posenc.positions.grids import volume
from posenc.positions.tokens import on_axes, sequence

__all__ = ["Image", "Text", "Video", "multimodal"]


@dataclass(frozen=True)
class Text:
    """A run of text tokens; audio tokens count the same way."""

    num_tokens: int

    def __post_init__(self) -> None:
        _check(self, "num_tokens")


@dataclass(frozen=True)
class Image:
    """An image of `height` × `width` tokens: patches after the merger, not before."""

    height: int
    width: int

    def __post_init__(self) -> None:
        _check(self, "height", "width")


@dataclass(frozen=True)
class Video:
    """`frames` × `height` × `width` tokens; with `seconds_per_frame`, time is measured in seconds.

    A frame here is a step of the encoder, which may merge several of the film's (in Qwen2.5-VL
    two: at 4 frames a second `seconds_per_frame` is 0.5).
    """

    frames: int
    height: int
    width: int
    seconds_per_frame: float | None = None

    def __post_init__(self) -> None:
        _check(self, "frames", "height", "width")
        _check_rate("seconds_per_frame", self.seconds_per_frame)


def multimodal(
    parts: Sequence[Text | Image | Video],
    *,
    tokens_per_second: float | None = None,
    advance: Literal["largest", "grid"] = "largest",
    start: int = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """(time, row, column) of every token of `parts`, int64 `[T, 3]`.

    >>> multimodal([Text(1), Image(1, 2), Text(1)]).tolist()
    [[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]]

    Decoding goes on at `following(positions, 1, num_axes=3)`. A video with `seconds_per_frame` needs
    `tokens_per_second` (2 in Qwen2.5-VL, 25 in Qwen2.5-Omni): frame i is at the whole part of
    i · seconds · tokens, the fraction being dropped after the product. Still images have no time to
    stretch. Models that write timestamps as text (Qwen3-VL) give each frame as an `Image`.

    What follows a grid begins one after its largest coordinate, as in the papers; with
    `advance="grid"` after its height or width alone, whatever its time (transformers 5).
    """
    if advance not in ("largest", "grid"):
        raise ValueError(f"advance must be 'largest' or 'grid', got {advance!r}")
    _check_rate("tokens_per_second", tokens_per_second)
    check_whole(start=start)
    pieces, at = [], start
    for part in parts:
        piece = at + _coordinates(part, tokens_per_second)
        pieces.append(piece)
        sides = piece[:, 1:] if advance == "grid" and not isinstance(part, Text) else piece
        at = int(sides.max()) + 1
    if not pieces:
        raise ValueError("parts must hold at least one Text, Image or Video")
    return torch.cat(pieces).to(device)


def _coordinates(part: Text | Image | Video, tokens_per_second: float | None) -> Tensor:
    if isinstance(part, Text):
        return on_axes(sequence(part.num_tokens), 3)
    if isinstance(part, Image):
        return volume(1, part.height, part.width)
    if not isinstance(part, Video):
        raise TypeError(f"parts must be Text, Image or Video, got {part!r}")
    if (part.seconds_per_frame is None) != (tokens_per_second is None):
        raise ValueError(
            f"time in seconds needs both seconds_per_frame and tokens_per_second, got {part} and "
            f"tokens_per_second={tokens_per_second}"
        )
    cells = volume(part.frames, part.height, part.width)
    if part.seconds_per_frame is not None and tokens_per_second is not None:
        step = part.seconds_per_frame * tokens_per_second
        # to a millionth first: 49 frames of 1/49 s are 1 s, though the floats give 0.999…
        times = torch.tensor([int(round(i * step, 6)) for i in range(part.frames)])
        cells[:, 0] = times[cells[:, 0]]
    return cells


def _check_rate(name: str, rate: Any) -> None:
    """None, or a positive finite number."""
    is_real = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_real and 0 < rate < math.inf):
        raise ValueError(f"{name} must be positive, got {rate!r}")


def _check(part: Text | Image | Video, *names: str) -> None:
    for name in names:
        count = getattr(part, name)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{type(part).__name__}: {name} must be a positive int, got {count!r}")
