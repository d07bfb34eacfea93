"""From finished training runs to rows: means over seeds, their spread, and what stopped."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Point", "row_points", "summarise"]


@dataclass(frozen=True)
class Point:
    """Nats at one context: the mean over seeds, and how far to trust it."""

    nats: float
    spread: float | None  # standard deviation over seeds; None for one seed
    sem: float  # of the scored windows, the same for every row
    num_seeds: int

    @property
    def noise(self) -> float:
        """Standard error of the mean: of seeds where there are several, of windows otherwise."""
        if self.spread is None:
            return self.sem
        return max(self.spread / math.sqrt(self.num_seeds), self.sem)


def summarise(results: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """`{read: {context: {"nats", "spread", "sem", "num_seeds"} or {"error"}}}` over all seeds."""
    gathered: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result in results:
        for read, scores in result["reads"].items():
            for context, score in scores.items():
                gathered.setdefault(read, {}).setdefault(context, []).append(score)
    return {
        read: {context: _over_seeds(scores) for context, scores in by_context.items()}
        for read, by_context in gathered.items()
    }


def row_points(row: dict[str, dict[str, Any]]) -> dict[int, Point]:
    """The measured contexts of one summarised row, ascending; errors are left out."""
    points = {
        int(context): Point(score["nats"], score["spread"], score["sem"], score["num_seeds"])
        for context, score in row.items()
        if "error" not in score
    }
    return dict(sorted(points.items()))


def _over_seeds(scores: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [score["error"] for score in scores if "error" in score]
    if failed:
        return {"error": failed[0]}
    if not all(math.isfinite(score["nats"]) for score in scores):
        return {"error": "a model diverged: its loss is no number"}
    nats = [score["nats"] for score in scores]
    return {
        "nats": statistics.fmean(nats),
        "spread": statistics.stdev(nats) if len(nats) > 1 else None,
        "sem": statistics.fmean(score["sem"] for score in scores),
        "num_seeds": len(nats),
    }
