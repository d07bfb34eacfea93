"""One piece of work, and who does it: this library, peers, and the limit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

__all__ = ["OURS", "Case", "Side", "Target", "UnavailableError", "Work", "disagreement"]

OURS = "posenc"
Tensors = tuple[Tensor, ...]
Side = Callable[..., Tensors]  # the inputs -> the outputs


class UnavailableError(Exception):
    """A peer that is not installed here, or that cannot do this work."""


@dataclass(frozen=True, eq=False)
class Work:
    """Inputs, and every side that works on them.

    `right` is the float64 answer. Sides in `bounds` do other work on purpose (the limit of memory,
    attention without position), so that their answers are not compared. `tolerance` is elementwise.
    """

    inputs: Tensors
    sides: dict[str, Side]
    right: Side
    tolerance: float
    bounds: frozenset[str] = frozenset()
    peer_tolerance: float | None = None  # of peers, whose arithmetic rounds more often
    absent: Mapping[str, str] = field(default_factory=dict)  # peers asked for, and why they are not


@dataclass(frozen=True)
class Target:
    """Time or peak memory of this library over that of another side, at most `ratio`."""

    beside: str
    ratio: float
    lengths: tuple[int, ...] | None = None  # None: at every length
    what: Literal["ms", "peak_bytes"] = "ms"


@dataclass(frozen=True)
class Case:
    """A row of the benchmark: `make(length, against)` builds its work at one length."""

    name: str
    title: str
    lengths: tuple[int, ...]
    make: Callable[[int, frozenset[str]], Work]
    targets: tuple[Target, ...] = ()
    gate_length: int = 65  # odd, and longer than one block of anything
    memory: bool = False  # whether peak memory is measured, in fresh processes
    peak_limits: Mapping[int, float] = field(default_factory=dict)  # bytes, at some lengths
    per_token: float | None = None  # the largest time of a token over the smallest, over lengths


def disagreement(work: Work) -> dict[str, str]:
    """Sides whose answer is not the right one, with the size of the difference; peers that fail."""
    right = [x.double() for x in work.right(*(x.double() for x in _copies(work)))]
    wrong = {}
    for name, side in work.sides.items():
        if name in work.bounds:
            continue
        limit = work.tolerance
        if name != OURS and work.peer_tolerance is not None:
            limit = work.peer_tolerance
        try:
            mine = side(*_copies(work))
        except Exception as error:
            if name == OURS:
                raise
            wrong[name] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        apart = [(a.double() - b).abs().max() for a, b in zip(mine, right, strict=True)]
        worst = float(torch.stack(apart).max())
        if not worst <= limit:  # NaN is no agreement
            wrong[name] = f"differs from the float64 reference by {worst:.1e}, allowed {limit:.0e}"
    return wrong


def _copies(work: Work) -> list[Tensor]:
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in work.inputs]
