"""The first contract drawn: the vectors of positions, and how alike two of them are."""

import torch
from torch import Tensor

from posenc.contracts import AdditiveEncoding, axes_of
from posenc.report.pictures.panels import Heat, Maps, Panel, lively

__all__ = ["draw_additive"]


def draw_additive(
    encoding: AdditiveEncoding, positions: Tensor, window: tuple[int, int]
) -> tuple[Panel, ...]:
    """Position by channel, and the dot product of each two positions as a share of one's own."""
    with torch.no_grad():
        vectors = encoding.encode(positions).double()
    alike = vectors @ vectors.T / vectors.square().sum(-1).mean()
    if axes_of(encoding) > 1:
        return _over_an_image(vectors, alike, window)
    return (
        Heat("The vector of each position", vectors.T, "position", "channel"),
        Heat("Dot product of two positions (with itself = 1)", alike, "position", "position"),
    )


def _over_an_image(vectors: Tensor, alike: Tensor, window: tuple[int, int]) -> tuple[Panel, ...]:
    """Some channels as images, and how alike one cell is to all others."""
    height, width = window
    maps = {f"channel {c}": vectors[:, c].reshape(window) for c in lively(vectors)}
    cell = (height // 2, width // 2)
    row = alike[cell[0] * width + cell[1]].reshape(window)
    return (
        Maps("Some channels over the cells of an image", maps),
        Maps("Dot product of the marked cell with all (with itself = 1)", {"": row}, cell),
    )
