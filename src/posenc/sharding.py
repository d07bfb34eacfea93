"""Tensor parallelism: the part of a scheme that a rank with some of the heads needs.

Whatever is indexed by head (slopes, bias tables, learned scales) must be read at the head's place in
the whole model. Slopes made anew for 4 heads of 8 are other slopes.
"""

import copy
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from posenc.contracts import TRAITS, LogitBias, RotaryTables, Scheme, Table
from posenc.positions import check_whole
from posenc.query_scale import LearnedLogScale

__all__ = ["HeadSlice", "QueryScaleSlice", "heads_of_rank"]


class HeadSlice(LogitBias):
    """`bias` for its heads `start` … `start + count − 1`, as a bias of `count` heads.

    >>> HeadSlice(Alibi(8), 4, 4)                     # the second of two ranks
    >>> attention(q, k, v, scheme=Scheme(bias=HeadSlice(T5Bias(12), start=6, count=6)))

    It holds the whole bias, so parameters keep their names under `bias.` and gradients reach the
    rows of these heads alone.
    """

    def __init__(self, bias: LogitBias, start: int, count: int) -> None:
        super().__init__(count)
        _check_slice(start, count, bias.num_heads)
        self.bias, self.start = bias, start
        for trait in TRAITS:
            setattr(self, trait, getattr(bias, trait))
        if bias.constant is not None:
            self.constant = bias.constant[start : start + count]

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.bias.value(head + self.start, q_pos, k_pos)

    def extra_repr(self) -> str:
        return f"heads {self.start} to {self.start + self.num_heads - 1} of {self.bias.num_heads}"


class QueryScaleSlice(nn.Module):
    """A learned query scale for its heads `start` … `start + count − 1`."""

    def __init__(self, query_scale: LearnedLogScale, start: int, count: int) -> None:
        super().__init__()
        _check_slice(start, count, query_scale.num_heads)
        self.query_scale, self.start, self.num_heads = query_scale, start, count

    def factors(self, q_pos: Tensor) -> Tensor:
        """`[Q]` or `[B, Q]` positions -> `[B|1, count, Q]`."""
        return self.query_scale.factors(q_pos)[:, self.start : self.start + self.num_heads]


def heads_of_rank(scheme: Scheme, num_heads: int, rank: int, num_ranks: int) -> Scheme:
    """The scheme of one of `num_ranks` ranks that share `num_heads` query heads equally.

    >>> local = heads_of_rank(Scheme(bias=Alibi(12)), num_heads=12, rank=1, num_ranks=3)
    >>> out = attention(q_local, k_local, v_local, scheme=local)  # [B, 4, T, D]

    What no head index enters (rotation, additive encodings, shared vectors) is the same on every
    rank. Relative vectors and rotations with heads of their own (`Shaw` per head, `TransformerXL`,
    `Deberta`, `MixedRope`) become views that read the rows of these heads: they hold the whole
    parameters, under the same names, and gradients reach those rows alone. Raises ValueError where
    the heads do not divide, where a part was made for another number of heads, and for a class with
    heads that has no such view (it has no `heads`).
    """
    check_whole(num_heads=num_heads, rank=rank, num_ranks=num_ranks)
    if min(num_heads, num_ranks) < 1 or num_heads % num_ranks or not 0 <= rank < num_ranks:
        raise ValueError(
            f"num_heads {num_heads} must divide over num_ranks {num_ranks}, with rank below it; "
            f"got rank {rank}"
        )
    for field in fields(scheme):
        of_part = _num_heads(getattr(scheme, field.name))
        if of_part not in (None, num_heads):
            raise ValueError(f"{field.name}= was made for {of_part} heads, not {num_heads}")
    count = num_heads // num_ranks
    cut = {
        field.name: _of_heads(field.name, getattr(scheme, field.name), rank * count, count)
        for field in fields(scheme)
    }
    return replace(scheme, **cut)


def _num_heads(part: Any) -> int | None:
    """How many heads a part was made for; None where none of it is indexed by head."""
    if isinstance(part, RotaryTables):
        return part.q.cos.shape[-3] if part.q.cos.ndim == 4 else None
    return getattr(part, "num_heads", None)


def _of_heads(field: str, part: Any, start: int, count: int) -> Any:
    if _num_heads(part) is None:
        return part
    if isinstance(part, LogitBias):
        return HeadSlice(part, start, count)
    if isinstance(part, LearnedLogScale):
        return QueryScaleSlice(part, start, count)
    if isinstance(part, RotaryTables):
        encoding = None if part.encoding is None else _view(field, part.encoding, start, count)
        q, k = (_rows(table, start, count) for table in (part.q, part.k))
        return replace(part, q=q, k=q if part.k is part.q else k, encoding=encoding)
    return _view(field, part, start, count)


def _view(field: str, part: Any, start: int, count: int) -> Any:
    """The same parameters, read for some heads alone."""
    if getattr(part, "heads", None) is None:
        raise ValueError(f"{field}= has heads of its own and cannot be cut: {part!r}")
    local, start = copy.copy(part), start + (part.heads.start or 0)
    local.heads, local.num_heads = slice(start, start + count), count
    return local


def _rows(table: Table, start: int, count: int) -> Table:
    cos, sin = (part.narrow(-3, start, count) for part in (table.cos, table.sin))
    return replace(table, cos=cos, sin=sin)


def _check_slice(start: int, count: int, num_heads: int) -> None:
    if start < 0 or count < 1 or start + count > num_heads:
        raise ValueError(
            f"heads {start} to {start + count - 1} were asked for of {num_heads} heads"
        )
