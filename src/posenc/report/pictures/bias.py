"""The third contract drawn: what is added to logits, by distance, over a window, and as a matrix."""

import torch
from torch import Tensor

from posenc.contracts import LogitBias
from posenc.masks import Mask
from posenc.positions import grid
from posenc.report.pictures.panels import Heat, Lines, Maps, Panel

__all__ = ["draw_bias", "hidden"]

NUM_SHOWN = 64  # rows and columns of the matrix of a bias of distance
FARTHEST = 4  # positions of a bias that reads more than the distance, in trained lengths


def draw_bias(
    bias: LogitBias, positions: Tensor, mask: Mask | None, window: tuple[int, int]
) -> tuple[Panel, ...]:
    """Each head by distance (or each offset of a window, or some queries), and one head's matrix."""
    with torch.no_grad():
        if bias.num_axes > 1:
            return _offsets(bias, window), _matrix(bias, positions, mask, "cell")
        if bias.by_distance:
            return _heads(bias, len(positions)), _matrix(bias, positions[:NUM_SHOWN], mask)
        long = torch.arange(0, FARTHEST * len(positions), FARTHEST)
        return _queries(bias, len(positions)), _matrix(bias, long, mask)


def hidden(values: Tensor, mask: Mask | None, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """`[Q, K]` values with NaN where the mask hides the key."""
    if mask is None:
        return values
    return values.masked_fill(~mask.allowed(q_pos[None], k_pos[None])[0], torch.nan)


def _heads(bias: LogitBias, length: int) -> Panel:
    distances = torch.arange(length)
    values = bias.per_distance(distances, dtype=torch.float64, for_softmax=True)
    lines = {f"head {head}": row for head, row in enumerate(values)}
    return Lines("Added to a logit, by distance", distances, lines, "distance back", "bias")


def _queries(bias: LogitBias, length: int) -> Panel:
    """One head where the query's own position counts too: a line for each of four queries."""
    lines, longest = {}, FARTHEST * length
    distances = torch.arange(longest)
    for place in (longest - 1, 2 * length, length, length // 2):  # short lines on top
        row = bias.dense(torch.tensor([place]), torch.arange(place + 1), dtype=torch.float64)
        line = torch.full((longest,), torch.nan, dtype=torch.float64)
        line[: place + 1] = row[0, 0, 0].flip(-1)
        lines[f"query at {place}"] = line
    return Lines("Added to a logit of head 0", distances, lines, "distance back", "bias")


def _offsets(bias: LogitBias, window: tuple[int, int]) -> Panel:
    """All offsets between a query and the keys, a map for each head."""
    height, width = window
    query = torch.tensor([[height - 1, width - 1]])
    values = bias.dense(query, grid(2 * height - 1, 2 * width - 1), dtype=torch.float64)
    maps = {
        f"head {head}": row.reshape(2 * height - 1, 2 * width - 1)
        for head, row in enumerate(values[0, :, 0])
    }
    return Maps("Added to a logit, by offset of the key", maps, (height - 1, width - 1))


def _matrix(bias: LogitBias, positions: Tensor, mask: Mask | None, unit: str = "position") -> Panel:
    values = bias.dense(positions, positions, dtype=torch.float64, for_softmax=True)[0, 0]
    first, last = 0.0, float(len(positions) - 1)
    if unit == "position":
        first, last = float(positions[0]), float(positions[-1])
        values = hidden(values, mask, positions, positions)
    return Heat(
        "All pairs, head 0", values, f"{unit} of the key", f"{unit} of the query",
        (first, last, first, last),
    )  # fmt: skip
