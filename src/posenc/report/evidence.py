"""Published tables, and a record of this machine, as one kind of thing: rows over context lengths.

Tables differ in model, text and unit, so scores are compared inside a table only. What is taken out
of one is the excess: how much worse an option reads at a multiple of its trained length than the
best row of the same table at the trained length.
"""

import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from posenc.report.summary import row_points

__all__ = ["Cited", "Table", "evidence_file", "measured", "published", "verdict"]

HOLDS = 0.1  # nats (ppl + 10%) or shares of accuracy: the worst excess that still is reading
DEGRADES = 0.3  # beyond this excess a model fails
NEAR, FAR = 0.9, 2.2  # a context this many times the one asked for stands for it, and no further


@dataclass(frozen=True)
class Table:
    """Values of options by context. `train` is the trained length; "ppl", "percent" or "nats"."""

    id: str
    source: str
    grade: str
    task: str
    metric: str
    setting: str  # "scratch", "checkpoint" or "both"
    model: str
    train: int
    rows: dict[str, dict[int, float]]
    lower_bounds: frozenset[tuple[str, int]] = frozenset()
    stops: dict[str, int] = field(default_factory=dict)  # first context that was an error
    names: dict[str, str] = field(default_factory=dict)  # of options in a record, where they differ

    def pointer(self, option: str) -> str:
        """Where the row of an option stands."""
        if self.id == "record":
            return f"{self.source}: extrapolation.rows[{self.names.get(option, option)!r}]"
        return f"data/evidence.json: {self.id}"

    def cited(self, option: str, ratio: float) -> "Cited | None":
        """What this table says about an option at `ratio` times the trained length."""
        wanted = max(ratio, 1.0) * self.train
        if self.stops.get(option, math.inf) <= wanted:
            return Cited(self, option, self.stops[option], math.inf, "near")
        row = self.rows.get(option, {})
        reached = [context for context in sorted(row) if context >= NEAR * wanted]
        if ratio <= 1 and (not reached or reached[0] > self.train / NEAR):
            return None
        if not row:
            return None
        context = reached[0] if reached else max(row)
        excess = self._loss(row[context]) - self._best_when_trained()
        where = "short" if not reached else "near" if context <= FAR * wanted else "far"
        return Cited(self, option, context, excess, where)

    def reach(self, option: str) -> float:
        """The largest multiple of the trained length at which an option still holds."""
        best, row = self._best_when_trained(), self.rows.get(option, {})
        holding = [c for c, value in row.items() if self._loss(value) - best <= HOLDS]
        return max(holding, default=0) / self.train

    def value_text(self, option: str, context: int) -> str:
        """As printed: with its unit, and ">" for a lower bound."""
        if context not in self.rows.get(option, {}):
            return "an error"
        value = self.rows[option][context]
        sign = ">" if (option, context) in self.lower_bounds else ""
        return {"ppl": f"ppl {sign}{value:g}", "percent": f"{value:g}%"}.get(
            self.metric, f"{value:.2f} nats"
        )

    def _loss(self, value: float) -> float:
        return {"ppl": math.log, "percent": lambda v: 1 - v / 100}.get(self.metric, float)(value)

    def _best_when_trained(self) -> float:
        """The best row within the trained length; a perfect score where none was published."""
        within = [
            self._loss(value)
            for row in self.rows.values()
            for context, value in row.items()
            if NEAR * self.train <= context <= self.train / NEAR
        ]
        if within:
            return min(within)
        if self.metric == "percent":
            return 0.0
        shortest = min(min(row) for row in self.rows.values())
        return min(self._loss(row[shortest]) for row in self.rows.values() if shortest in row)


@dataclass(frozen=True)
class Cited:
    """One figure of one table, with what it means: `excess` in nats (or in shares of accuracy)."""

    table: Table
    option: str
    context: int
    excess: float
    where: Literal["short", "near", "far"]  # of what was asked

    @property
    def counts(self) -> bool:
        """Failure at a shorter context is failure further out; success further out is success."""
        proof = {"short": self.excess > DEGRADES, "near": True, "far": self.excess <= HOLDS}
        return proof[self.where]

    @property
    def verdict(self) -> str:
        return verdict(self.excess)

    def text(self) -> str:
        """One line: the figure, where it stands, and who says so."""
        table = self.table
        value = table.value_text(self.option, self.context)
        at = "" if table.train == 1 else f" at {self.context} ({self.context / table.train:.3g} L)"
        aside = {"short": ", which goes no further", "near": "", "far": ", its nearest"}[self.where]
        source = "" if table.id == "record" else f"; {table.source} [{table.grade}]"
        return f"{self.verdict}: {value}{at}; {table.model}{source}{aside}"


def verdict(excess: float) -> str:
    """What an excess means."""
    if math.isinf(excess):
        return "stops"
    return "holds" if excess <= HOLDS else "degrades" if excess <= DEGRADES else "fails"


def evidence_file() -> str:
    """Where the published tables lie, as installed."""
    return str(files("posenc").joinpath("data/evidence.json"))


@cache
def published() -> tuple[Table, ...]:
    """Every table of data/evidence.json."""
    text = files("posenc").joinpath("data/evidence.json").read_text(encoding="utf-8")
    return tuple(_table(entry) for entry in json.loads(text)["tables"])


def measured(record: dict[str, Any], where: str) -> Table | None:
    """The extrapolation part of a record, or None where it has none."""
    part = record.get("extrapolation")
    if part is None:
        return None
    rows, stops, names = {}, {}, {}
    for name, row in part["rows"].items():
        option = re.sub(r", \d+ steps$", ", tuned", name)
        names[option] = name
        rows[option] = {context: point.nats for context, point in row_points(row).items()}
        failed = [int(context) for context, score in row.items() if "error" in score]
        stops |= {option: min(failed)} if failed else {}
    seeds = len(part["seeds"])
    model = f"byte decoder trained here on {part['text']['name']}, {seeds} seed(s)"
    return Table(
        "record", where, "measured here", "language-model", "nats", "both", model,
        part["train_length"], rows, stops=stops, names=names,
    )  # fmt: skip


def _table(entry: dict[str, Any]) -> Table:
    train = entry["train"] or 1  # a table that is not about length: one column, "train"
    rows, bounds = {}, set()
    for option, row in entry["rows"].items():
        values = {1 if key == "train" else int(key): value for key, value in row.items()}
        bounds |= {(option, context) for context, v in values.items() if isinstance(v, str)}
        rows[option] = {c: float(str(value).lstrip(">")) for c, value in values.items()}
    text = {name: entry[name] for name in ("id", "source", "grade", "task", "metric")}
    return Table(
        **text, setting=entry["setting"], model=entry["model"],
        train=train, rows=rows, lower_bounds=frozenset(bounds),
    )  # fmt: skip
