"""The second contract drawn: how far each pair turns, and what is left of a score at a distance."""

import torch
from torch import Tensor

from posenc.contracts import RotaryEncoding, RotaryTables, axes_of
from posenc.report.pictures.panels import Heat, Lines, Maps, Panel, lively
from posenc.rotate import rotate

__all__ = ["draw_rotary", "scores_of_equal", "scores_of_unrelated"]

NUM_DRAWS = 128  # pairs of unrelated vectors
FARTHEST = 4  # distances, in trained lengths


def draw_rotary(
    variants: dict[str, RotaryEncoding], positions: Tensor, window: tuple[int, int]
) -> tuple[Panel, ...]:
    """cos of each pair of the first variant, and the scores of all of them by distance."""
    rotary = next(iter(variants.values()))
    if axes_of(rotary) > 1:
        return _over_an_image(rotary, positions, window)
    table = rotary.tables(positions, positions).q
    told = "Cos of each pair" + (" times its amplitude (queries)" if table.amplified else "")
    cos = table.cos.detach().double()[0].T
    distances = torch.arange(1, FARTHEST * len(positions))
    equal = {f"equal{name}": scores_of_equal(x, distances) for name, x in variants.items()}
    unrelated = scores_of_unrelated(rotary, distances)
    low, high = unrelated.quantile(0.1, 0), unrelated.quantile(0.9, 0)
    return (
        Heat(told, cos, "position", "pair (0 turns fastest)"),
        Lines(
            "Score of two unit vectors after rotation",
            distances,
            equal,
            "distance between query and key",
            "score",
            band=("unrelated, 80% of draws", low, high),
            levels={"": 0.0},
            logarithmic="x",
        ),
    )


def scores_of_equal(rotary: RotaryEncoding, distances: Tensor) -> Tensor:
    """`[N]`: q · k of a unit vector whose channels are equal, with itself, so far apart."""
    head_dim = _tables(rotary, distances).q.head_dim
    unit = torch.full((1, 1, head_dim), head_dim**-0.5)
    return _scores(rotary, unit, unit, distances)[0]


def scores_of_unrelated(rotary: RotaryEncoding, distances: Tensor) -> Tensor:
    """`[draws, N]`: q · k of random unit vectors, so far apart."""
    head_dim = _tables(rotary, distances).q.head_dim
    q, k = torch.nn.functional.normalize(torch.randn(2, NUM_DRAWS, 1, head_dim), dim=-1)
    return _scores(rotary, q, k, distances)


def _tables(rotary: RotaryEncoding, distances: Tensor) -> RotaryTables:
    return rotary.tables(distances, torch.zeros_like(distances[:1]))


def _scores(rotary: RotaryEncoding, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
    """Queries `[draws, 1, D]` at the distances, keys at 0."""
    tables = _tables(rotary, distances)
    with torch.no_grad():
        queries = q[None].expand(1, -1, len(distances), -1).contiguous()
        turned = rotate(queries, tables.q, impl="eager") * rotate(k[None], tables.k, impl="eager")
    return tables.softmax_scale * turned.double().sum(-1)[0]


def _over_an_image(
    rotary: RotaryEncoding, positions: Tensor, window: tuple[int, int]
) -> tuple[Panel, ...]:
    cell = (window[0] // 2, window[1] // 2)
    cos = rotary.tables(positions, positions).q.cos.detach().double()[0]
    maps = {f"pair {i}": cos[:, i].reshape(window) for i in lively(cos)}
    offsets = positions - positions[cell[0] * window[1] + cell[1]]
    score = scores_of_equal(rotary, offsets).reshape(window)
    return (
        Maps("Cos of some pairs over the cells of an image", maps),
        Maps("Score of equal vectors, the query in the marked cell", {"": score}, cell),
    )
