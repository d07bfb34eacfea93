"""A figure as a PNG of few colours that says what it was drawn from.

What it was drawn from lies in the file as JSON, so that `scripts/check_figures.py` can tell a stale
figure from one that another version of matplotlib drew.
"""

import hashlib
import io
import json
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["digest", "png_bytes"]

NUM_COLOURS = 192  # a palette: a third of the bytes of true colour, and nobody sees it


def png_bytes(figure: Figure, *, dpi: int, drawn_from: Any) -> bytes:
    """The bytes of a PNG; the same figure gives the same bytes. `drawn_from` is plain data."""
    from PIL import Image, PngImagePlugin  # noqa: PLC0415  comes with matplotlib

    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=dpi)
    image = Image.open(raw).convert("RGB")
    few = image.quantize(NUM_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    told = PngImagePlugin.PngInfo()
    told.add_text("Software", f"matplotlib {mpl.__version__}")
    told.add_text("drawn from", json.dumps(drawn_from), zip=True)
    packed = io.BytesIO()
    few.save(packed, "PNG", optimize=True, pnginfo=told, dpi=(dpi, dpi))
    return packed.getvalue()


def digest(record: dict[str, Any]) -> str:
    """A record in 64 letters: whatever changes in it changes them."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
