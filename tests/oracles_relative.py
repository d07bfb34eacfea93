"""Relative vectors in plain Python floats, one logit at a time; nothing of ours, no tensors.

As oracles.py: vectors are lists of one head's channels, matrices lists of rows.
"""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext

from oracles import Vector, dot

Matrix = Sequence[Vector]
TURN = 2 * Decimal("3.14159265358979323846264338327950288419716939937510")


# --- Transformer-XL: Dai 2019, arXiv 1901.02860, section 3.3 -------------------------------------


def turned_angle(distance: int, exponent: Decimal) -> float:
    """distance / 10000^exponent within one turn: an angle of 3,000 radians has lost 11 bits."""
    with localcontext() as context:
        context.prec = 50
        return float(distance / Decimal(10_000) ** exponent % TURN)


def distance_sinusoid(
    distance: int, dim: int, *, layout: str = "concatenated", denominator: str = "d"
) -> list[float]:
    """R_{i−j}: sin and cos of distance / 10000^(2n/d); Gemma divides by d − 2."""
    width = dim if denominator == "d" else dim - 2
    angle = [turned_angle(distance, Decimal(2 * n) / width) for n in range(dim // 2)]
    if layout == "alternating":
        return [f(a) for a in angle for f in (math.sin, math.cos)]
    return [math.sin(a) for a in angle] + [math.cos(a) for a in angle]


def transformer_xl(
    q: Vector, k: Vector, u: Vector, v: Vector, weight: Matrix, waves: Vector
) -> float:
    """The four terms: q·k + q·W R + u·k + v·W R."""
    projected = [dot(row, waves) for row in weight]
    return dot(q, k) + dot(q, projected) + dot(u, k) + dot(v, projected)


# --- DeBERTa: He 2020, arXiv 2006.03654, section 3.1; buckets of the released DeBERTa-v2 -----------


def deberta_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Near distances as they are; sign · (m + ⌈log_{(D−1)/m}(|δ|/m) · (m − 1)⌉) beyond m."""
    middle = num_buckets // 2
    size = abs(distance)
    if size <= middle:
        return distance
    share = math.log(size / middle) / math.log((max_distance - 1) / middle)
    # An edge is an exact power: float64 may land 1e-15 above it, no other distance comes so near.
    bucket = middle + math.ceil(share * (middle - 1) - 1e-9)
    return bucket if distance > 0 else -bucket


def deberta_row(distance: int, span: int, max_distance: int, has_buckets: bool) -> int:
    """Row of a table of 2·span: δ + span, held inside."""
    bucket = deberta_bucket(distance, span, max_distance) if has_buckets else distance
    return min(max(bucket + span, 0), 2 * span - 1)


def affine(weight: Matrix, bias: Vector, x: Vector) -> list[float]:
    return [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]


# --- CoPE: Golovneva 2024, arXiv 2405.18719, eq. 3 to 8 ------------------------------------------


def cope_position(
    i: int,
    j: int,
    at: Sequence[int],
    logit: Callable[[int, int], float],
    allowed: Callable[[int, int], bool],
    max_positions: int,
) -> float:
    """Eq. 3 and 4: the gates of the keys from j on, those that query i may see."""
    gates = [
        1 / (1 + math.exp(-logit(i, n))) for n in range(len(at)) if at[n] >= at[j] and allowed(i, n)
    ]
    return min(math.fsum(gates), max_positions - 1)


def cope_term(q: Vector, embeddings: Matrix, position: float) -> float:
    """Eq. 5 to 8: between the two neighbours of a position that is no integer."""
    low, high = math.floor(position), math.ceil(position)
    share = position - low
    return share * dot(q, embeddings[high]) + (1 - share) * dot(q, embeddings[low])


# --- Decomposed: Li 2021, arXiv 2112.01526, section 4.1, eq. 4; scaled as ViTDet and SAM do --------


def decomposed(
    q: Vector, k: Vector, offset: Vector, tables: Sequence[Matrix], sides: Sequence[int]
) -> float:
    """q·k / √d + q·R_row + q·R_column; row 0 of a table is the most negative offset."""
    total = dot(q, k) / math.sqrt(len(q))
    for step, table, side in zip(offset, tables, sides, strict=True):
        total += dot(q, table[int(step) + side - 1])
    return total


def linear_table(table: Matrix, size: int) -> list[list[float]]:
    """A table at another size: between the two old rows around (i + 1/2) · old / new − 1/2."""
    made = []
    for i in range(size):
        at = min(max((i + 0.5) * len(table) / size - 0.5, 0.0), len(table) - 1.0)
        below, share = math.floor(at), at - math.floor(at)
        above = min(below + 1, len(table) - 1)
        pairs = zip(table[below], table[above], strict=True)
        made.append([(1 - share) * a + share * b for a, b in pairs])
    return made


# --- Shaw's variants -----------------------------------------------------------------------------


def clipped_row(relative: int, past: int, future: int, outside: str) -> int | None:
    """Row of k − q in a table of past + 1 + future; None where nothing is added."""
    if outside == "zero" and not -past <= relative <= future:
        return None
    return min(max(relative, -past), future) + past
