"""What a picture shows, as a little plain data: its words, and samples of its numbers."""

import math
from typing import Any

import torch
from torch import Tensor

from posenc.report.pictures.panels import Heat, Lines, Maps, Panel, Picture

__all__ = ["facts"]

NUM_SAMPLES = 9  # of each curve or map


def facts(shown: Picture) -> dict[str, Any]:
    """Title, note and panels; numbers to five digits, None where a mask hides them.

    >>> from posenc.report.pictures import picture
    >>> facts(picture("alibi"))["panels"][0]["title"]
    'Added to a logit, by distance'
    """
    panels = [_panel(panel) for row in shown.rows for panel in row]
    return {"title": shown.title, "note": shown.note, "panels": panels}


def _panel(panel: Panel) -> dict[str, Any]:
    if isinstance(panel, Heat):
        words = [panel.xlabel, panel.ylabel, list(panel.extent or ())]
        series = {"": panel.values}
    elif isinstance(panel, Maps):
        words, series = [list(panel.cell or ())], panel.maps
    else:
        words = [panel.xlabel, panel.ylabel, panel.levels, panel.logarithmic, panel.stepped]
        series = {"x": panel.x, **panel.lines, **_behind(panel)}
    numbers = {name: _numbers(values) for name, values in series.items()}
    return {"title": panel.title, "words": words, "numbers": numbers}


def _behind(panel: Lines) -> dict[str, Tensor]:
    """What is shaded or grey behind the curves."""
    shaded = {} if panel.band is None else {panel.band[0]: torch.stack(panel.band[1:])}
    return shaded | {f"grey {i}": line for i, line in enumerate(panel.background)}


def _numbers(values: Tensor) -> list[int | float | None]:
    """How many there are, their mean and spread, and some of them, evenly chosen."""
    flat = values.double().flatten()
    seen = flat[flat.isfinite()]
    chosen = flat[torch.linspace(0, len(flat) - 1, NUM_SAMPLES).round().long()]
    told = [seen.mean().item(), seen.std().item(), *chosen.tolist()]
    return [len(flat), *(float(f"{x:.5g}") if math.isfinite(x) else None for x in told)]
