"""What to choose, as far as one record decides it: a few lines, each with its figures."""

from typing import Any

from posenc.report.summary import Point, row_points

__all__ = ["advice"]


def advice(record: dict[str, Any]) -> list[str]:
    """For training from scratch, for a trained RoPE, and the price of each."""
    part = record.get("extrapolation")
    if part is None:
        return _cheapest(record)
    length = part["train_length"]
    points = {name: row_points(row) for name, row in part["rows"].items()}
    farthest = max((max(row) for row in points.values() if row), default=length)
    lines, named = [], []
    for context in dict.fromkeys((length, farthest)):
        here = {n: row[context] for n, row in points.items() if context in row and _trained(n)}
        if here:
            best = _best(here)
            named += best
            lines.append(f"From scratch, to read {_times(context, length)}: {_listed(best, here)}.")
    lines += _control(points, farthest)
    for context in sorted({2 * length, farthest}):
        lines += _reading(points, context, length)
    return lines + _prices(record, list(dict.fromkeys(named)))


def _trained(name: str) -> bool:
    """A row with a model of its own, and not a control: the rest are ways to read one."""
    return "window" not in name and "gaps" not in name and not _reads_rope(name)


def _reads_rope(name: str) -> bool:
    scaled = name.startswith("rope+") and name not in ("rope+window", "rope+gaps")
    return scaled or (name.startswith("rope") and name.endswith("steps"))


def _best(here: dict[str, Point]) -> list[str]:
    """The best row and all that the noise cannot tell from it."""
    ordered = sorted(here, key=lambda name: here[name].nats)
    first = here[ordered[0]]
    return [
        name
        for name in ordered
        if here[name].nats - first.nats <= 2 * (here[name].noise ** 2 + first.noise**2) ** 0.5
    ]


def _listed(names: list[str], here: dict[str, Point]) -> str:
    tied = " or ".join(f"{name} ({here[name].nats:.2f})" for name in names)
    rest = [name for name in sorted(here, key=lambda n: here[n].nats) if name not in names]
    return f"{tied}, before {rest[0]} ({here[rest[0]].nats:.2f})" if rest else tied


def _times(context: int, length: int) -> str:
    return f"{context} ({context / length:g} L)"


def _control(points: dict[str, dict[int, Point]], farthest: int) -> list[str]:
    """Whether anything uses what lies beyond the window of the control."""
    control = points.get("rope+window", {}).get(farthest)
    if control is None:
        return []
    ahead = [
        name
        for name, row in points.items()
        if farthest in row
        and control.nats - row[farthest].nats
        > 2 * (control.noise**2 + row[farthest].noise ** 2) ** 0.5
    ]
    who = ", ".join(ahead) if ahead else "no row"
    return [
        f"The control, a RoPE whose every layer sees only the last L bytes, reads {farthest} at "
        f"{control.nats:.2f}: {who} does better for seeing more."
    ]


def _reading(points: dict[str, dict[int, Point]], context: int, length: int) -> list[str]:
    here = {
        name: row[context]
        for name, row in points.items()
        if context in row and (name == "rope" or _reads_rope(name)) and not name.endswith("steps")
    }
    if len(here) < 2:
        return []
    return [f"A trained RoPE, to read {_times(context, length)}: {_listed(_best(here), here)}."]


def _prices(record: dict[str, Any], names: list[str]) -> list[str]:
    rows = record.get("cost", {}).get("rows", {})
    prices = [
        f"{name} × {rows[name]['training']['ratio']['median']:.2f}"
        for name in names
        if name in rows and "refused" not in rows[name]
    ]
    return [f"They cost, forward and backward against none: {', '.join(prices)}."] if prices else []


def _cheapest(record: dict[str, Any]) -> list[str]:
    rows = record.get("cost", {}).get("rows", {})
    ratios = {
        name: row["training"]["ratio"]["median"]
        for name, row in rows.items()
        if "refused" not in row and name != "none"
    }
    if not ratios:
        return []
    ordered = sorted(ratios.items(), key=lambda item: item[1])
    listed = ", ".join(f"{name} × {ratio:.2f}" for name, ratio in ordered)
    return [f"Cheapest first, forward and backward against none: {listed}."]
