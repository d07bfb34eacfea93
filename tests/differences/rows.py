"""What the checks share: the decorator that names a row, and two ways to read numbers."""

from collections.abc import Callable, Iterable

import torch

import oracles
from posenc import Rope, Spectrum

Check = Callable[[], None]
CHECKS: dict[str, Check] = {}


def row(name: str) -> Callable[[Check], Check]:
    """The check of the row of this name."""

    def keep(check: Check) -> Check:
        assert name not in CHECKS
        CHECKS[name] = check
        return check

    return keep


def speeds(rope: Rope) -> list[float]:
    return rope.frequencies().inv_freq.tolist()


def flat(rows: Iterable[Iterable[float]]) -> list[float]:
    return [x for line in rows for x in line]


def spectrum(width: int, base: float) -> Spectrum:
    per_radian = [1 / speed for speed in oracles.frequencies(width, base)]
    return Spectrum(torch.tensor(per_radian, dtype=torch.float64), base, width)
