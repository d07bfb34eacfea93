"""The fourth contract drawn: what random queries and keys get added to their logits."""

import torch
from torch import Tensor

from posenc.contracts import Block, RelativeKeyValue
from posenc.masks import Mask
from posenc.positions import grid
from posenc.report.pictures.bias import hidden
from posenc.report.pictures.panels import Heat, Lines, Maps, Panel

__all__ = ["draw_relative", "logits_of_random"]

NUM_SHOWN = 64  # rows and columns of the matrix
NUM_QUERIES = 3  # that have a line or a map each
NUM_DRAWS = 32  # that are averaged


def draw_relative(
    relative: RelativeKeyValue,
    num_heads: int,
    positions: Tensor,
    mask: Mask | None,
    window: tuple[int, int],
) -> tuple[Panel, ...]:
    """Some queries by distance (or over a window), and the logits of one draw as a matrix."""
    with torch.no_grad():
        shown = positions if relative.num_axes > 1 else positions[:NUM_SHOWN]
        values = logits_of_random(relative, num_heads, shown, shown, mask, 1)[0, 0]
        if relative.num_axes > 1:
            matrix = Heat("All pairs, one draw", values, "cell of the key", "cell of the query")
            return _offsets(relative, num_heads, window), matrix
        matrix = Heat(
            "Added to the logits, one draw", hidden(values, mask, shown, shown),
            "position of the key", "position of the query",
        )  # fmt: skip
        return _distances(relative, num_heads, len(positions), mask), matrix


def logits_of_random(
    relative: RelativeKeyValue,
    num_heads: int,
    q_pos: Tensor,
    k_pos: Tensor,
    mask: Mask | None,
    num_draws: int,
) -> Tensor:
    """`[draws, H, Q, K]`: what standard normal q and k get, the softmax scale included."""
    return _scaled(relative, *_problem(relative, num_heads, q_pos, k_pos, mask, num_draws))


def _scaled(relative: RelativeKeyValue, q: Tensor, k: Tensor, block: Block) -> Tensor:
    logits = relative.key_logits(q, k, block).double()
    return logits * block.scale if relative.scaled else logits


def _problem(
    relative: RelativeKeyValue,
    num_heads: int,
    q_pos: Tensor,
    k_pos: Tensor,
    mask: Mask | None,
    num_draws: int,
) -> tuple[Tensor, Tensor, Block]:
    head_dim = relative.head_dim
    allowed = None if mask is None else mask.allowed(q_pos[None], k_pos[None])[:, None]
    scale = getattr(relative, "scale", head_dim**-0.5)
    q, k = (torch.randn(num_draws, num_heads, len(at), head_dim) for at in (q_pos, k_pos))
    return q, k, Block(q_pos, k_pos, allowed, scale)


def _distances(relative: RelativeKeyValue, num_heads: int, length: int, mask: Mask | None) -> Panel:
    """A query in the last place (in the middle where it sees both ways), keys all around it."""
    place = length // 2 if mask is None else length - 1
    query, keys = torch.tensor([place]), torch.arange(length)
    q, k, block = _problem(relative, num_heads, query, keys, mask, NUM_DRAWS)
    counted = getattr(relative, "positions", None)
    if counted is None:
        rows, told = _scaled(relative, q, k, block)[:, 0, 0], "logit"
        title = "Added to a logit, by distance"
    else:
        rows, told = counted(q, k, block).double()[:, 0, 0], "position"
        title = "The position that a key is given"
    distances = (place - keys).flip(-1)
    rows = rows.flip(-1)
    lines = {f"query {i}": rows[i] for i in range(NUM_QUERIES)}
    lines[f"mean of {NUM_DRAWS}"] = rows.mean(0)
    where = "tokens back" if place == length - 1 else "tokens back (before 0: ahead)"
    return Lines(title, distances, lines, where, told)


def _offsets(relative: RelativeKeyValue, num_heads: int, window: tuple[int, int]) -> Panel:
    """A map over all offsets for each of some queries."""
    height, width = window
    query = torch.tensor([[height - 1, width - 1]])
    cells = grid(2 * height - 1, 2 * width - 1)
    values = logits_of_random(relative, num_heads, query, cells, None, NUM_QUERIES + 1)[:, 0, 0]
    shape = (2 * height - 1, 2 * width - 1)
    maps = {f"query {i}": row.reshape(shape) for i, row in enumerate(values)}
    return Maps("Added to a logit, by offset of the key", maps, (height - 1, width - 1))
