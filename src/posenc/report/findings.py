"""What a record shows, in sentences that are computed from its figures and from nothing else."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from posenc.report.summary import Point, row_points

__all__ = ["Finding", "findings"]

Verdict = Literal["holds", "does not hold", "cannot tell", "shown"]
FLAT = 0.05  # nats: a row that gains or loses less than this beyond its trained length is flat

# claims of papers and tutorials about what lies beyond the trained length: (better, worse)
BEYOND = (
    ("rope+yarn", "rope"),
    ("rope+ntk", "rope"),
    ("rope+linear", "rope"),
    ("rope+yarn", "rope+ntk"),
    ("rope+yarn", "rope+linear"),
    ("rope+window", "rope"),
    ("alibi", "rope"),
    ("t5", "rope"),
    ("rope", "sinusoidal"),
    ("alibi", "rope+window"),
    ("kerple", "alibi"),
    ("sandwich", "alibi"),
    ("fire", "kerple"),
    ("transformer-xl", "shaw"),
    ("cope", "rope"),
)


@dataclass(frozen=True)
class Finding:
    """A sentence, and whether the figures bear it out ("shown" where nothing was claimed)."""

    part: Literal["cost", "extrapolation"]
    text: str
    verdict: Verdict = "shown"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def findings(record: dict[str, Any]) -> list[Finding]:
    """Everything that can be said about the parts that a record has."""
    found = []
    if "cost" in record:
        found += _cost(record["cost"]["rows"])
    if "extrapolation" in record:
        found += _extrapolation(record["extrapolation"])
    return found


def _cost(rows: dict[str, Any]) -> list[Finding]:
    measured = {name: row for name, row in rows.items() if "refused" not in row}
    found = [
        Finding("cost", f"{name} was not measured: {row['refused']}")
        for name, row in rows.items()
        if "refused" in row
    ]
    if "none" in measured:
        found.append(_noise_of_times(measured["none"]))
    work, table = "the encoding's own work", "table memory"
    return [
        *found,
        _chain(measured, work, _own, "{:.2f} ms", ("learned", "sinusoidal", "rope")),
        _chain(measured, table, _table, "{:.0f} kB", ("sinusoidal", "rope", "learned")),
    ]


def _noise_of_times(row: dict[str, Any]) -> Finding:
    """No encoding, timed against itself: what this machine can tell apart at all."""
    ratios = [row[kind]["ratio"] for kind in ("forward", "training")]
    worst = max(abs(ratio[q] - 1) for ratio in ratios for q in ("p10", "p90"))
    return Finding(
        "cost",
        f"noise: no encoding against itself differs by up to {100 * worst:.0f}%: smaller differences "
        "mean nothing",
    )


def _own(row: dict[str, Any]) -> float:
    return row["own_ms"]["median"]


def _table(row: dict[str, Any]) -> float:
    return row["table_bytes"] / 1e3


def _chain(
    rows: dict[str, Any], what: str, value: Any, unit: str, names: tuple[str, ...]
) -> Finding:
    """Whether a published order, smallest first, is the order here."""
    claim = f"{what}: {' < '.join(names)}"
    if not set(names) <= set(rows):
        return Finding("cost", claim, "cannot tell")
    values = [value(rows[name]) for name in names]
    figures = ", ".join(unit.format(v) for v in values)
    rises = all(a < b for a, b in pairwise(values))
    return Finding("cost", f"{claim} ({figures})", "holds" if rises else "does not hold")


def _extrapolation(part: dict[str, Any]) -> list[Finding]:
    length = part["train_length"]
    points = {name: row_points(row) for name, row in part["rows"].items()}
    found = _shapes(points, length) + _stops(part["rows"], length)
    farthest = max((max(row) for row in points.values() if row), default=0)
    there = {name: row[farthest] for name, row in points.items() if farthest in row}
    if len(there) > 1:
        found.append(Finding("extrapolation", f"at {farthest}: {_ranking(there)}"))
    return found + [
        _compared(there, better, worse, farthest)
        for better, worse in BEYOND
        if better in there and worse in there
    ]


def _shapes(points: dict[str, dict[int, Point]], length: int) -> list[Finding]:
    """Which rows stay flat from the trained length to their farthest context, and which do not."""
    change = {
        name: row[max(row)].nats - row[length].nats
        for name, row in points.items()
        if length in row and max(row) > length
    }
    flat = {name: gain for name, gain in change.items() if abs(gain) <= FLAT}
    worse = {name: gain for name, gain in change.items() if gain > FLAT}
    better = {name: gain for name, gain in change.items() if gain < -FLAT}
    said = (
        (f"flat beyond {length} (within {FLAT} nats)", flat),
        (f"worse beyond {length}", worse),
        (f"better beyond {length}", better),
    )
    return [
        Finding("extrapolation", f"{title}: {_listed(group)}") for title, group in said if group
    ]


def _listed(change: dict[str, float]) -> str:
    ordered = sorted(change.items(), key=lambda item: item[1])
    return ", ".join(f"{name} ({gain:+.2f})" for name, gain in ordered)


def _stops(rows: dict[str, Any], length: int) -> list[Finding]:
    stopped = {
        name: min(int(c) for c, score in row.items() if "error" in score)
        for name, row in rows.items()
        if any("error" in score for score in row.values())
    }
    return [
        Finding("extrapolation", f"{name} stops at {length}: {rows[name][str(context)]['error']}")
        for name, context in stopped.items()
    ]


def _ranking(there: dict[str, Point]) -> str:
    """Best first; ≈ where neighbours differ by less than twice their noise."""
    ordered = sorted(there.items(), key=lambda item: item[1].nats)
    text = f"{ordered[0][0]} {ordered[0][1].nats:.2f}"
    for (_, before), (name, point) in pairwise(ordered):
        sign = "<" if point.nats - before.nats > _noise(before, point) else "≈"
        text += f" {sign} {name} {point.nats:.2f}"
    return text


def _compared(there: dict[str, Point], better: str, worse: str, context: int) -> Finding:
    one, other = there[better], there[worse]
    margin = other.nats - one.nats
    if abs(margin) <= _noise(one, other):
        verdict: Verdict = "cannot tell"
    else:
        verdict = "holds" if margin > 0 else "does not hold"
    text = f"{better} reads {context} bytes better than {worse} ({one.nats:.2f}, {other.nats:.2f})"
    return Finding("extrapolation", text, verdict)


def _noise(one: Point, other: Point) -> float:
    return 2 * (one.noise**2 + other.noise**2) ** 0.5
