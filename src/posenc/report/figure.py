"""One picture of a record: what each row reads beyond its trained length, and what it costs.

Colours are Okabe and Ito's, which people with any colour vision can tell apart; encodings that came
after those eight have a mark of their own as well. Every line is named where it ends, so that nobody
has to match a legend. A record of many rows has two panels: encodings, and the ways to read one.
"""

import statistics
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc.report.ink import digest, png_bytes
from posenc.report.summary import Point, row_points

__all__ = ["BLACK", "BLUE", "GREEN", "GREY", "ORANGE", "RC", "RED", "draw", "png"]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PURPLE, GREY = "#C9B800", "#0072B2", "#D55E00", "#CC79A7", "#777777"
COLOURS = {  # of encodings; the ways to read one share its colour
    "none": GREY,
    "sinusoidal": ORANGE,
    "learned": PURPLE,
    "t5": SKY,
    "alibi": GREEN,
    "rope": RED,
    "rope+window": BLACK,
    "learned-scale-rope": "#5E3C99",
    "learned+rope": "#8A4A7A",
    "kerple": "#004D40",
    "sandwich": "#A6761D",
    "fire": "#99000D",
    "shaw": YELLOW,
    "transformer-xl": BLACK,
    "cope": "#E7298A",
}
MARKS = {
    "learned-scale-rope": "h",
    "kerple": "s",
    "sandwich": "D",
    "fire": "^",
    "shaw": "v",
    "transformer-xl": "P",
    "cope": "X",
}
DASHES: dict[str, Any] = {  # of the ways to read one
    "linear": (0, (1, 1.2)),
    "ntk": "--",
    "yarn": "-.",
    "window": ":",
    "gaps": (0, (7, 2)),
}
SPARE = (YELLOW, BLUE, BLACK)
MANY = 15  # lines in one panel
RC: dict[Any, Any] = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}


def png(record: dict[str, Any], *, dpi: int = 100) -> bytes:
    """The picture as the bytes of a PNG file."""
    return png_bytes(draw(record), dpi=dpi, drawn_from=digest(record))


def draw(record: dict[str, Any]) -> Figure:
    """A panel for each part that the record has."""
    import matplotlib as mpl  # noqa: PLC0415  only the settings, for the time of drawing

    parts = [part for part in ("extrapolation", "cost") if part in record]
    widths = {"extrapolation": 8.2, "cost": 5.8}
    groups = _groups(list(record.get("extrapolation", {}).get("rows", ())))
    columns = [list(groups) if part == "extrapolation" else [part] * len(groups) for part in parts]
    with mpl.rc_context(RC):
        size = (sum(widths[p] for p in parts) or 6, 6 if len(groups) == 1 else 11)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplot_mosaic(
            [list(row) for row in zip(*columns, strict=True)] or [["nothing"]],
            width_ratios=[widths[p] for p in parts] or None,
        )
        for title, names in groups.items() if "extrapolation" in record else ():
            _extrapolation(panels[title], record["extrapolation"], names, title)
        if "cost" in record:
            _cost(panels["cost"], record["cost"])
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.set(rect=(0, 0.03, 1, 0.97))  # pyright: ignore[reportCallIssue]  room for the origin
        figure.text(0.995, 0.004, _origin(record), ha="right", va="bottom", size=6.5, color=GREY)
    return figure


def _origin(record: dict[str, Any]) -> str:
    here = record["machine"]
    commit = f", commit {here['commit']}" if here.get("commit") else ""
    return f"posenc {record['posenc']}{commit}; torch {here['torch']}; {here['processor']}"


def _groups(names: list[str]) -> dict[str, list[str]]:
    """The rows of each panel by its title: all in one, or encodings apart from their readings."""
    if len(names) <= MANY:
        return {"": names}
    readings = [name for name in names if _is_reading(name)]
    bases = {name.split(", ")[0].rpartition("+")[0] or name.split(", ")[0] for name in readings}
    return {
        "Encodings": [name for name in names if name not in readings],
        "Ways to read one": [name for name in names if name in readings or name in bases],
    }


def _is_reading(name: str) -> bool:
    """Whether a row is another one read, or trained on, in another way."""
    plain, *tuned = name.split(", ")
    return bool(tuned) or plain.partition("+")[2] in DASHES


def _extrapolation(axes: Axes, part: dict[str, Any], names: list[str], title: str) -> None:
    length, contexts = part["train_length"], part["contexts"]
    rows = {name: row_points(part["rows"][name]) for name in names}
    rows = {name: points for name, points in rows.items() if points}
    for name, points in rows.items():
        _line(axes, name, points)
    axes.axvspan(min(contexts) * 0.9, length, color="#000000", alpha=0.05, lw=0)
    axes.axvline(length, color=GREY, lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(contexts) * 0.9, max(contexts) * 1.02)
    axes.xaxis.set_major_locator(FixedLocator(contexts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda c, _: f"{c:g}\n{c / length:g} L"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("context before the scored bytes")
    axes.set_ylabel("nats per byte (lower is better)")
    axes.grid(axis="y", color="#DDDDDD", lw=0.6)
    said = f"{title}: trained" if title else "Trained"
    axes.set_title(f"{said} at L = {length}, read further", loc="left", weight="bold")
    low, high = axes.get_ylim()
    axes.text(length, high, " trained length", va="top", ha="left", size=8, color=GREY)
    _end_labels(axes, rows, low, high)


def _style(name: str) -> tuple[str, Any]:
    """Colour of the encoding and dashes of the reading; a fine-tuned row is blue."""
    plain, *tuned = name.split(", ")
    base, _, reading = plain.partition("+")
    if plain in COLOURS:
        base = plain
    spare = SPARE[sum(map(ord, base)) % len(SPARE)]
    colour = BLUE if tuned else COLOURS.get(base, spare)
    return colour, DASHES.get(reading, "-")


def _line(axes: Axes, name: str, points: dict[int, Point]) -> None:
    colour, dashes = _style(name)
    contexts, nats = list(points), [point.nats for point in points.values()]
    mark = MARKS.get(name.partition("+")[0], "o")
    size = 3.2 if mark == "o" else 5.0
    axes.plot(contexts, nats, color=colour, ls=dashes, lw=1.8, marker=mark, ms=size, zorder=3)
    spreads = [point.spread for point in points.values()]
    if all(spread is not None for spread in spreads):
        low = [n - (s or 0.0) for n, s in zip(nats, spreads, strict=True)]
        high = [n + (s or 0.0) for n, s in zip(nats, spreads, strict=True)]
        axes.fill_between(contexts, low, high, color=colour, alpha=0.15, lw=0, zorder=2)


def _end_labels(axes: Axes, rows: dict[str, dict[int, Point]], low: float, high: float) -> None:
    """Names at the right edge, pushed apart, each tied to the end of its line; stops are marked."""
    farthest = max(max(points) for points in rows.values())
    ends = {name: points[max(points)].nats for name, points in rows.items()}
    ends = {name: nats for name, nats in ends.items() if farthest in rows[name]}
    gap = (high - low) / 26
    for name, height in _spread_out(ends, gap).items():
        colour, _ = _style(name)
        axes.annotate(
            f"{name}  {ends[name]:.2f}",
            xy=(farthest, ends[name]),
            xytext=(farthest * 1.16, height),
            color=colour,
            va="center",
            size=9,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.7,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )
    for name, points in rows.items():
        if farthest not in points:
            last = max(points)
            beside = [row[last].nats for row in rows.values() if last in row]
            _mark_stop(axes, name, points, below=points[last].nats < statistics.median(beside))


def _mark_stop(axes: Axes, name: str, points: dict[int, Point], *, below: bool) -> None:
    last = max(points)
    colour, _ = _style(name)
    axes.plot([last], [points[last].nats], marker="x", ms=9, mew=2, color=colour, zorder=4)
    axes.annotate(
        f"{name} stops",
        (last, points[last].nats),
        textcoords="offset points",
        xytext=(0, -15) if below else (-6, 7),
        ha="center" if below else "right",
        color=colour,
        size=9,
    )


def _spread_out(heights: dict[str, float], gap: float) -> dict[str, float]:
    """The same order, neighbours at least `gap` apart, moved as little as a few passes manage."""
    order = sorted(heights, key=lambda name: heights[name])
    placed = [heights[name] for name in order]
    for _ in range(200):
        for i in range(len(placed) - 1):
            short = gap - (placed[i + 1] - placed[i])
            if short > 1e-9:
                placed[i] -= short / 2
                placed[i + 1] += short / 2
    return dict(zip(order, placed, strict=True))


def _cost(axes: Axes, part: dict[str, Any]) -> None:
    rows = {name: row for name, row in part["rows"].items() if "refused" not in row}
    size, names = part["settings"]["size"], list(rows)
    for kind, label, colour, offset in (
        ("forward", "forward", BLUE, -0.14),
        ("training", "forward and backward", ORANGE, 0.14),
    ):
        ratios = [rows[name][kind]["ratio"] for name in names]
        middle = [ratio["median"] for ratio in ratios]
        below = [ratio["median"] - ratio["p10"] for ratio in ratios]
        above = [ratio["p90"] - ratio["median"] for ratio in ratios]
        heights = [index + offset for index in range(len(names))]
        axes.errorbar(
            middle, heights, xerr=[below, above], fmt="o", ms=5, color=colour, elinewidth=1.4,
            capsize=2, label=label,
        )  # fmt: skip
    axes.axvline(1, color=GREY, lw=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(axis="x", color="#DDDDDD", lw=0.6)
    axes.set_xlabel("time / time without encoding (median, 80% of rounds)")
    axes.legend(frameon=False, loc="upper right", fontsize=9)
    axes.set_title(
        f"Cost at batch {size['batch_size']}, length {size['length']}, width {size['dim']}",
        loc="left",
        weight="bold",
    )
