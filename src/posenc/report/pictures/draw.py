"""The ink: a picture as a PNG or an SVG. This module alone needs matplotlib."""

import io
import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posenc.records import write_atomically
from posenc.report.figure import BLACK, BLUE, GREEN, GREY, ORANGE, RC, RED
from posenc.report.ink import png_bytes
from posenc.report.pictures.facts import facts
from posenc.report.pictures.panels import Heat, Lines, Maps, Panel, Picture
from posenc.report.pictures.picture import picture

__all__ = ["check_file", "content", "drawn", "write"]

SUFFIXES = (".png", ".svg")
COLOURS = (BLUE, RED, GREEN, BLACK, ORANGE)
WIDTH, ROW, HEAD = 8.0, 3.1, 0.4  # inches
COMPACT = 12  # letters of a name in a legend of one line
NUM_SHADES = 33  # of a heat map: a third of the bytes of 256, and nobody sees it
SETTINGS: dict[Any, Any] = {**RC, "font.size": 9, "svg.hashsalt": "posenc", "svg.fonttype": "path"}


def write(name: str, path: Path) -> None:
    """Draw an encoding or a scaling method into a file, which is there whole or not at all."""
    write_atomically(path, content(picture(name), check_file(path)))


def check_file(path: Path) -> str:
    """The suffix of a file that can be written, or a ValueError."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a figure is a {' or '.join(SUFFIXES)} file, got {str(path)!r}")
    return suffix


def content(shown: Picture, suffix: str, *, dpi: int = 100) -> bytes:
    """The bytes of a file; the same picture gives the same bytes."""
    with mpl.rc_context(SETTINGS):
        if suffix == ".png":
            return png_bytes(drawn(shown), dpi=dpi, drawn_from=facts(shown))
        buffer = io.BytesIO()
        drawn(shown).savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def drawn(shown: Picture) -> Figure:
    """A row for each part of the scheme."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH, ROW * len(shown.rows) + HEAD), layout="constrained")
        FigureCanvasAgg(figure)
        parts = figure.subfigures(len(shown.rows), 2, squeeze=False, wspace=0.03)
        for row, panels in zip(parts, shown.rows, strict=True):
            for part, panel in zip(row, panels, strict=True):
                part.suptitle(panel.title, x=0.02, ha="left", size=9.5)
                _ink(part, panel)
        figure.suptitle(shown.title, x=0.01, ha="left", size=11, weight="bold")
        figure.text(0.995, 0.985, shown.note, ha="right", va="top", size=7.5, color=GREY)
    return figure


def _ink(part: SubFigure, panel: Panel) -> None:
    if isinstance(panel, Maps):
        _maps(part, panel)
    elif isinstance(panel, Heat):
        _heat(part, panel)
    else:
        _lines(part.subplots(), panel)


def _lines(axes: Axes, panel: Lines) -> None:
    x = panel.x.numpy()
    for level in panel.levels.values():
        axes.axhline(level, color=GREY, lw=0.8)
    style: dict[str, Any] = {"drawstyle": "steps-mid"} if panel.stepped else {}
    for line in panel.background:
        axes.plot(x, line.numpy(), color="#CCCCCC", lw=1.2, **style)
    if panel.band is not None:
        name, low, high = panel.band
        axes.fill_between(x, low.numpy(), high.numpy(), color=GREY, alpha=0.25, lw=0, label=name)
    for (name, line), colour in zip(panel.lines.items(), COLOURS, strict=False):
        axes.plot(x, line.numpy(), color=colour, lw=1.5, label=name, **style)
    for axis in panel.logarithmic:
        axes.set(**{f"{axis}scale": "log"})
    axes.margins(x=0)
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)
    if "x" not in panel.logarithmic:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _names(axes, panel)


def _names(axes: Axes, panel: Lines) -> None:
    """Of levels beside them, of lines in a row above."""
    for name, level in panel.levels.items():
        axes.annotate(
            name, (0.01, level), xycoords=("axes fraction", "data"), xytext=(0, 2),
            textcoords="offset points", size=7.5, color=GREY,
        )  # fmt: skip
    _, names = axes.get_legend_handles_labels()
    fits = max(map(len, names)) <= COMPACT
    axes.legend(
        frameon=False, fontsize=7.5, loc="lower left", bbox_to_anchor=(0, 0.98), borderpad=0.1,
        ncols=5 if fits else 2, handlelength=1.3, columnspacing=1.0, borderaxespad=0.1,
    )  # fmt: skip


def _heat(part: SubFigure, panel: Heat) -> None:
    axes = part.subplots()
    colours, limits = _scale([panel.values])
    rows, columns = panel.values.shape
    left, right, top, bottom = panel.extent or (0, columns - 1, 0, rows - 1)
    across, down = ((right - left) / (columns - 1) / 2, (bottom - top) / (rows - 1) / 2)
    image = axes.imshow(
        panel.values.numpy(), cmap=colours, **limits, aspect="auto", interpolation="nearest",
        extent=(left - across, right + across, bottom + down, top - down),
    )  # fmt: skip
    axes.set_xlabel(panel.xlabel)
    axes.set_ylabel(panel.ylabel)
    part.colorbar(image, ax=axes, pad=0.02, aspect=28)


def _maps(part: SubFigure, panel: Maps) -> None:
    count = len(panel.maps)
    columns = math.ceil(count / 2) if count > 1 else 1
    grid = part.subplots(math.ceil(count / columns), columns, squeeze=False)
    colours, limits = _scale(list(panel.maps.values()))
    image = None
    for axes, (name, values) in zip(grid.flat, panel.maps.items(), strict=False):
        image = axes.imshow(values.numpy(), cmap=colours, **limits, interpolation="nearest")
        axes.set_title(name, size=8)
        axes.set_xticks([])
        axes.set_yticks([])
        for side in axes.spines.values():
            side.set_visible(False)
        if panel.cell is not None:
            axes.plot(panel.cell[1], panel.cell[0], marker="x", color=BLACK, ms=5, mew=1.3)
    assert image is not None
    part.colorbar(image, ax=grid, pad=0.02, aspect=28)


def _scale(values: list[Tensor]) -> tuple[Colormap, dict[str, Any]]:
    """Colours around zero where values have both signs, else from the least to the most."""
    flat = torch.cat([value.flatten() for value in values])
    flat = flat[flat.isfinite()]
    low, high = float(flat.min()), float(flat.max())
    if low < -1e-9 < 1e-9 < high:
        largest = max(-low, high)
        name, low, high = "RdBu_r", -largest, largest
    else:
        name = "cividis"
    return mpl.colormaps[name].resampled(NUM_SHADES).with_extremes(bad="#EEEEEE"), {
        "vmin": low,
        "vmax": high,
    }
