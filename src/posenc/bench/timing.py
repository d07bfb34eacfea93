"""Timing that survives a shared machine: rounds interleaved with a baseline, medians, quantiles.

Two programs timed one after the other differ by whatever else the machine did meanwhile. Here every
round runs both, in alternating order, and the ratio is taken inside the round.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

__all__ = ["Paired", "Quantiles", "interleaved", "paired", "quantiles", "timed"]

Call = Callable[[], object]
SHORT = 5e-3  # seconds; what is shorter is repeated
LONG = 1.0  # seconds; what is longer needs no second warm-up


@dataclass(frozen=True)
class Quantiles:
    """The middle of some samples and the range that holds 80% of them."""

    median: float
    p10: float
    p90: float
    num_samples: int

    def as_dict(self, *, scale: float = 1.0) -> dict[str, float]:
        """For a record; `scale=1e3` turns seconds into milliseconds."""
        values = {"median": self.median, "p10": self.p10, "p90": self.p90}
        return {name: value * scale for name, value in values.items()} | {"n": self.num_samples}


@dataclass(frozen=True)
class Paired:
    """Seconds of a baseline and of a candidate, and the candidate's ratio round by round."""

    baseline: Quantiles
    candidate: Quantiles
    ratio: Quantiles


def quantiles(samples: Sequence[float]) -> Quantiles:
    """Median, 10% and 90%.

    >>> quantiles([1.0, 2.0, 3.0]).median
    2.0
    """
    p10, median, p90 = (float(q) for q in np.quantile(samples, (0.1, 0.5, 0.9)))
    return Quantiles(median, p10, p90, len(samples))


def paired(
    baseline: Call, candidate: Call, *, seconds: float, min_rounds: int = 4, max_rounds: int = 50
) -> Paired:
    """Rounds of (baseline, candidate) for about `seconds`; both must have run once before.

    An even number of rounds gives each side the first turn equally often.
    """
    first: list[float] = []
    second: list[float] = []
    with _no_collector():
        for index in _rounds(seconds, min_rounds, max_rounds):
            if index % 2:  # whoever runs second finds the caches of whoever ran first
                second.append(_once(candidate))
                first.append(_once(baseline))
            else:
                first.append(_once(baseline))
                second.append(_once(candidate))
    ratios = [mine / its for its, mine in zip(first, second, strict=True)]
    return Paired(quantiles(first), quantiles(second), quantiles(ratios))


def interleaved(
    calls: Mapping[str, Call],
    *,
    seconds: float,
    min_rounds: int = 4,
    max_rounds: int = 50,
    finish: Call | None = None,
) -> dict[str, list[float]]:
    """Seconds of each call in rounds that run them all, each round beginning with another one.

    A call of microseconds is repeated inside its turn, so that the clock is read rarely. `finish`
    ends a turn, where calls return before their work is done: it waits for the device.
    """
    turns = {name: _turn(call, finish) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    with _no_collector():
        for index in _rounds(seconds, min_rounds, max_rounds):
            first = index % len(names)
            for name in names[first:] + names[:first]:
                call, repeats = turns[name]
                samples[name].append(_once(call) / repeats)
    return samples


def _turn(call: Call, finish: Call | None) -> tuple[Call, int]:
    """The call, as often as it takes to last a few milliseconds; it has run before it is timed."""

    def many(repeats: int) -> None:
        for _ in range(repeats):
            call()
        if finish is not None:
            finish()

    taken = _once(partial(many, 1))
    if taken > LONG:  # a warm-up changes nothing, and another would take as long
        return partial(many, 1), 1
    repeats = max(1, min(1000, round(SHORT / max(_once(partial(many, 1)), 1e-7))))
    return partial(many, repeats), repeats


def timed(call: Call, *, seconds: float, min_rounds: int = 5, max_rounds: int = 200) -> Quantiles:
    """Rounds of one call for about `seconds`, after one that is not counted."""
    call()
    with _no_collector():
        samples = [_once(call) for _ in _rounds(seconds, min_rounds, max_rounds)]
    return quantiles(samples)


def _once(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _rounds(seconds: float, min_rounds: int, max_rounds: int) -> Iterator[int]:
    deadline = time.perf_counter() + seconds
    for index in range(max_rounds):
        if index >= min_rounds and time.perf_counter() >= deadline:
            return
        yield index


@contextmanager
def _no_collector() -> Iterator[None]:
    """A garbage collection in the middle of a round would be charged to one side."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
