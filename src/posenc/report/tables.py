"""A record as tables on the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from posenc.report.advice import advice
from posenc.report.findings import findings
from posenc.report.summary import Point, row_points

__all__ = ["bytes_text", "print_record"]

SIZE = "Time: batch {batch_size}, length {length}, width {dim}, {num_heads} heads"
NARROW = 92  # columns; below, the range of ratios is left to the record
MARKS = {
    "shown": "",
    "holds": ": [green]holds[/]",
    "does not hold": ": [red]does not hold[/]",
    "cannot tell": ": cannot tell",
}
COST_LEGEND = (
    "× none: against attention without encoding, median of paired rounds (80% of them in the range)."
    "\nown: the add, the rotation, the bias or the relative vectors alone, forward."
    "\ntables: distinct position values that one forward reads."
    "\nextra: peak of allocations above no encoding."
)
EXTRAPOLATION_LEGEND = (
    "Nats per byte on the same last bytes of held-out windows, by context; lower is better."
    "\n± is the standard deviation over seeds."
)


def print_record(record: dict[str, Any], console: Console) -> None:
    """Every table that a record has, then what the figures show and what follows."""
    if "cost" in record:
        size = record["cost"]["settings"]["size"]
        _heading(SIZE.format(**size), console)
        console.print(_time_table(record["cost"], ranges=console.width >= NARROW))
        _heading("Memory, at the same size", console)
        console.print(_memory_table(record["cost"]))
        console.print(COST_LEGEND, style="dim")
    if "extrapolation" in record:
        _heading(_reach(record["extrapolation"]), console)
        console.print(_extrapolation_table(record["extrapolation"]))
        for line in (EXTRAPOLATION_LEGEND, *_notes(record["extrapolation"])):
            console.print(line, style="dim", highlight=False, markup=False)
    _heading("What the figures show", console)
    for finding in findings(record):
        console.print(f"• {escape(finding.text)}{MARKS[finding.verdict]}", highlight=False)
    _heading("What to choose, as far as this run decides it", console)
    for line in advice(record):
        console.print(f"• {escape(line)}", highlight=False)
    console.print("posenc choose answers for your lengths and your checkpoint.", style="dim")


def bytes_text(num_bytes: float) -> str:
    """Decimal units, three digits.

    >>> bytes_text(1_572_864)
    '1.57 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def _time_table(part: dict[str, Any], *, ranges: bool) -> Table:
    columns = ("forward\nms", "× none", "and back-\nward, ms", "× none", "own\nms")
    table = _table("encoding", columns)
    for name, row in part["rows"].items():
        table.add_row(name, *(["refused"] if "refused" in row else _time_cells(row, ranges)))
    return table


def _time_cells(row: dict[str, Any], ranges: bool) -> list[str]:
    cells = []
    for kind in ("forward", "training"):
        cells.append(f"{row[kind]['ms']['median']:.1f}")
        ratio = row[kind]["ratio"]
        spread = f" ({ratio['p10']:.2f}–{ratio['p90']:.2f})" if ranges else ""
        cells.append(f"{ratio['median']:.2f}{spread}")
    return [*cells, f"{row['own_ms']['median']:.2f}"]


def _memory_table(part: dict[str, Any]) -> Table:
    columns = ("parameters", "tables", "extra,\nforward", "extra, and\nbackward")
    table = _table("encoding", columns)
    for name, row in part["rows"].items():
        if "refused" not in row:
            extra = (row["memory"][kind]["extra_bytes"] for kind in ("forward", "training"))
            sizes = map(bytes_text, (row["table_bytes"], *extra))
            table.add_row(name, f"{row['num_parameters']:,}", *sizes)
    return table


def _extrapolation_table(part: dict[str, Any]) -> Table:
    length = part["train_length"]
    headers = [f"{context}\n{context / length:g} L" for context in part["contexts"]]
    table = _table("row", headers)
    for name, row in part["rows"].items():
        points = row_points(row)
        cells = [_nats_text(points.get(context)) for context in part["contexts"]]
        table.add_row(escape(name), *cells)
    return table


def _nats_text(point: Point | None) -> str:
    if point is None:
        return "stops"
    spread = "" if point.spread is None else f" ± {point.spread:.2f}"
    return f"{point.nats:.2f}{spread}"


def _notes(part: dict[str, Any]) -> list[str]:
    """What is to be known of rows, once for each remark."""
    by_note: dict[str, list[str]] = {}
    for name in part["rows"]:
        if note := part["titles"][name]["note"]:
            by_note.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}." for note, names in by_note.items()]


def _table(first: str, others: Iterable[str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for header in others:
        table.add_column(header, justify="right")
    return table


def _reach(part: dict[str, Any]) -> str:
    num_seeds = len(part["seeds"])
    seeds = f"{num_seeds} seed{'s' if num_seeds > 1 else ''}"
    text = part["text"]["name"]
    return f"Beyond the trained length, L = {part['train_length']}: {text}, {seeds}"


def _heading(text: str, console: Console) -> None:
    console.print(f"\n{text}", style="bold", highlight=False, markup=False)
