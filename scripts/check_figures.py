"""Whether each figure of the pages is what its command makes now.

    python scripts/check_figures.py                       every figure, in about a minute
    python scripts/check_figures.py --sample 6 --seed 0   all facts, the ink of a sample, as CI does
    python scripts/check_figures.py rope compare          some of them

A figure holds the facts that it was drawn from: words, and samples of numbers, or the digest of a
record. They must be those of now, up to rounding. Ink is compared pixel by pixel, and only with what
the same version of matplotlib drew: another one may place a letter elsewhere.

    runs/encodings.sh                                     draws those of docs/figures/encodings anew
"""

import argparse
import io
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from PIL import Image

from posenc.registry import ENCODINGS, RELATED, SCALINGS
from posenc.report import figure, speed
from posenc.report.ink import digest
from posenc.report.pictures import facts, picture
from posenc.report.pictures.draw import content

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "figures"
MAX_BYTES = 60_000
ROUNDING = 1e-3  # of numbers, in shares of the largest of their curve or map
VISIBLE, STRAY = 32, 5e-4  # levels of a colour; share of the pixels that may differ by more


@dataclass(frozen=True)
class Made:
    """How one figure is made: what it is drawn from, and the bytes of the whole."""

    file: Path
    drawn_from: Callable[[], Any]
    draw: Callable[[], bytes | None]


def figures() -> dict[str, Made]:
    """Every figure by name."""
    names = (*ENCODINGS, *SCALINGS, *RELATED)
    return {name: _of_page(name) for name in names} | {
        "compare": _of_record("compare", figure.png),
        "compare-full": _of_record("compare-full", figure.png),
        "bench": _of_record("bench", speed.picture),
    }


def _of_page(name: str) -> Made:
    return Made(
        FOLDER / "encodings" / f"{name}.png",
        lambda: facts(picture(name)),
        lambda: content(picture(name), ".png"),
    )


def _of_record(name: str, draw: Callable[[dict[str, Any]], bytes | None]) -> Made:
    record = json.loads((ROOT / "runs" / f"{name}.json").read_text("utf-8"))
    return Made(FOLDER / f"{name}.png", lambda: digest(record), lambda: draw(record))


def stale(made: Made, *, ink: bool) -> str | None:
    """Why the file is not what its command makes now, or None."""
    if not made.file.exists():
        return "is missing"
    packed = made.file.read_bytes()
    if len(packed) > MAX_BYTES:
        return f"has {len(packed):,} bytes, more than {MAX_BYTES:,}"
    found = Image.open(io.BytesIO(packed))
    told = found.info
    if "drawn from" not in told:
        return "does not say what it was drawn from"
    if not alike(json.loads(told["drawn from"]), json.loads(json.dumps(made.drawn_from()))):
        return "was drawn from other facts"
    if not ink or told.get("Software") != f"matplotlib {mpl.__version__}":
        return None
    again = made.draw()
    assert again is not None
    return difference(found, Image.open(io.BytesIO(again)))


def alike(one: Any, other: Any) -> bool:
    """Plain data, equal but for the rounding of lists of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if not isinstance(one, list) or not isinstance(other, list) or len(one) != len(other):
        return one == other
    numbers = [x for x in (*one, *other) if isinstance(x, float)]
    room = ROUNDING * max(map(abs, numbers), default=0.0)
    return all(_near(x, y, room) for x, y in zip(one, other, strict=True))


def _near(one: Any, other: Any, room: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, abs_tol=room)
    return alike(one, other)


def difference(one: Image.Image, other: Image.Image) -> str | None:
    """Where two images differ visibly, in words, or None."""
    if one.size != other.size:
        return f"is of {one.size} pixels, not of {other.size}"
    levels = [np.asarray(image.convert("RGB"), dtype=np.int16) for image in (one, other)]
    share = (np.abs(levels[0] - levels[1]).max(-1) > VISIBLE).mean()
    return f"differs from what is drawn now in {share:.2%} of its pixels" if share > STRAY else None


def main(arguments: list[str]) -> int:
    """Exit code: 0 if all is well, 1 with one line for each stale figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    every = figures()
    unknown = [name for name in asked.names if name not in every]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; there are {', '.join(every)}")
    names = asked.names or list(every)
    size = len(names) if asked.sample is None else min(asked.sample, len(names))
    inked = set(random.Random(asked.seed).sample(names, size))
    faults = {name: stale(every[name], ink=name in inked) for name in names}
    told = [f"{every[n].file.relative_to(ROOT)} {why}" for n, why in faults.items() if why]
    known = {made.file for made in every.values()}
    told += [f"{f.relative_to(ROOT)} is of nothing" for f in FOLDER.rglob("*.*") if f not in known]
    print("\n".join(told), file=sys.stderr, end="\n" if told else "")
    print(f"figures: {len(names)}, ink of {len(inked)}: {len(told) or 'no'} stale")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
