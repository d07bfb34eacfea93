"""A benchmark record as a table on the terminal, as a page, and as a picture."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from posenc.bench.run import growth, points
from posenc.bench.work import OURS
from posenc.report.ink import digest, png_bytes

__all__ = ["page", "picture", "print_speed"]

COLOURS = {
    OURS: "#D55E00",
    "limit": "#000000",
    "no position": "#000000",
    "dense mask": "#56B4E9",
    "gathered vectors": "#56B4E9",
    "softmax": "#0072B2",
    "flex": "#009E73",
    "transformers": "#0072B2",
    "transformers-compiled": "#CC79A7",
    "rotary-embedding-torch": "#009E73",
    "x-transformers": "#C9B800",
}
HEAD = ("work", "tokens", "beside", "time, ms", "its time, ms", "ratio (80% of rounds)", "to reach")


def rows(cells: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row for each case, length and other side."""
    out = []
    for cell in cells:
        start = (cell["title"], f"{cell['length']:,}")
        if "refused" in cell:
            out.append((*start, "", "", "", f"not measured: {cell['refused']}", ""))
            continue
        mine = _ms(cell["ms"][OURS]["median"])
        targets = _targets(cell, "ms")
        for side, ratio in cell["ratio"].items():
            told = f"{_ratio(ratio['median'])} ({_ratio(ratio['p10'])} to {_ratio(ratio['p90'])})"
            wanted = _verdict(ratio["median"], targets.get(side))
            out.append((*start, side, mine, _ms(cell["ms"][side]["median"]), told, wanted))
        for side, why in cell["left_out"].items():
            out.append((*start, side, mine, "", f"left out: {why}", ""))
        if cell.get("baseline_ratio"):
            told = _ratio(cell["baseline_ratio"])
            out.append((*start, "the baseline version", mine, "", told, ""))
    return out


def memory_rows(cells: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Peak resident memory beyond the inputs, one row for each case and length."""
    out = []
    for cell in cells:
        peaks = cell.get("peak_bytes", {})
        mine, targets = peaks.get(OURS), _targets(cell, "peak_bytes")
        for side, num_bytes in peaks.items():
            told = "failed" if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"
            wanted, limit = "", cell.get("peak_limit")
            if side == OURS and limit and mine is not None:
                wanted = f"{limit / 1e6:,.0f} MB: {_reached(mine <= limit)}"
            elif side in targets and mine and num_bytes:
                share = mine / num_bytes
                wanted = f"{_ratio(share)} of it, {_verdict(share, targets[side])}"
            out.append((cell["title"], f"{cell['length']:,}", side, told, wanted))
    return out


def token_rows(cells: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Microseconds of one token at each length, where they should be the same."""
    out = []
    for name in dict.fromkeys(cell["row"] for cell in cells if cell.get("per_token")):
        mine = [cell for cell in cells if cell["row"] == name and "ms" in cell]
        each = [(n, 1e3 * ms / n) for n, ms in points(mine, "ms", OURS)]
        if len(each) > 1:
            told = ", ".join(f"{n:,}: {_ms(taken)}" for n, taken in each)
            spread = max(taken for _, taken in each) / min(taken for _, taken in each)
            wanted = _verdict(spread, mine[0]["per_token"])
            out.append((mine[0]["title"], told, f"{_ratio(spread)}, {wanted}"))
    return out


def growth_rows(cells: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Fitted exponents, for each case and side with three lengths or more."""
    out = []
    for name in dict.fromkeys(cell["row"] for cell in cells):
        mine = [cell for cell in cells if cell["row"] == name and "ms" in cell]
        for side in dict.fromkeys(side for cell in mine for side in cell["ms"]):
            time, memory = (growth(mine, name, what, side) for what in ("ms", "peak_bytes"))
            if time is not None:
                told = "" if memory is None else f"memory ~ T^{memory:.2f}"
                out.append((mine[0]["title"], side, f"time ~ T^{time:.2f}", told))
    return out


def print_speed(record: dict[str, Any], console: Console) -> None:
    """Every table of the record."""
    for head, body in _tables(record):
        _print(console, head, body)


def page(record: dict[str, Any]) -> str:
    """The tables in Markdown."""
    return "\n\n".join(_markdown(head, body) for head, body in _tables(record) if body)


def _tables(record: dict[str, Any]) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    cells = record["cells"]
    return [
        (HEAD, rows(cells)),
        (("work", "tokens", "side", "peak beyond inputs", "to reach"), memory_rows(cells)),
        (("work", "side", "time", "memory"), growth_rows(cells)),
        (("work", "microseconds a token, by length", "largest / smallest"), token_rows(cells)),
    ]


def picture(record: dict[str, Any], *, dpi: int = 100) -> bytes | None:
    """Time, and memory where it was measured, against length, log-log; None without lengths."""
    cells = [cell for cell in record["cells"] if "ms" in cell]
    names = [
        name
        for name in dict.fromkeys(cell["row"] for cell in cells)
        if sum(cell["row"] == name for cell in cells) > 2
    ]
    if not names:
        return None
    figure = Figure(figsize=(3.4 * len(names), 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(names), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        mine = [cell for cell in cells if cell["row"] == name]
        panels[0][column].set_title(mine[0]["title"], loc="left", size=10, weight="bold")
        _panel(panels[0][column], mine, "ms", "milliseconds")
        _panel(panels[1][column], mine, "peak_bytes", "peak bytes beyond the inputs")
    return png_bytes(figure, dpi=dpi, drawn_from=digest(record))


def _panel(axes: Axes, cells: list[dict[str, Any]], what: str, label: str) -> None:
    for side in dict.fromkeys(side for cell in cells for side in cell.get(what, {})):
        if found := points(cells, what, side):
            colour = COLOURS.get(side, "#777777")
            axes.plot(*zip(*found, strict=True), marker="o", ms=4, color=colour, label=side)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.set_xlabel("tokens")
    axes.grid(color="#DDDDDD", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)


def _targets(cell: dict[str, Any], what: str) -> dict[str, float]:
    """What is to be reached beside each side, of time or of memory."""
    found = (target for target in cell.get("targets", ()) if target.get("what", "ms") == what)
    return {target["beside"]: target["ratio"] for target in found}


def _verdict(ratio: float, wanted: float | None) -> str:
    return "" if wanted is None else f"{_ratio(wanted)}: {_reached(ratio <= wanted)}"


def _reached(yes: bool) -> str:
    return "reached" if yes else "not reached"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _print(console: Console, head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    if not body:
        return
    table = Table(*head, box=SIMPLE_HEAD)
    for row in body:
        table.add_row(*row)
    console.print(table)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
