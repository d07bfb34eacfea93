"""A scaling method drawn: wavelengths before and after, and what became of each pair's speed."""

import math

import torch
from torch import Tensor

from posenc.registry import SCALINGS, Method
from posenc.report.pictures.panels import Lines, Panel
from posenc.rotary import Rope
from posenc.scaling import LongRope, Scaling

__all__ = ["FACTOR", "TRAINED", "draw_lists", "draw_scaling", "speeds"]

HEAD_DIM, TRAINED, FACTOR = 128, 2048, 4.0


def speeds(scaling: Scaling | None) -> Tensor:
    """inv_freq `[pairs]` of a rope of 128 channels at four times the trained length of 2,048."""
    rope = Rope(HEAD_DIM, scaling=scaling).at_length(int(FACTOR * TRAINED))
    return rope.frequencies().inv_freq


def draw_scaling(method: Method) -> tuple[Panel, ...]:
    """Before and after by wavelength, and the ratio of speeds with the other methods behind it."""
    before, after = speeds(None), speeds(method.build(FACTOR, TRAINED))
    pairs = torch.arange(len(before))
    others = [other for name, other in SCALINGS.items() if name != method.name]
    lengths = {
        f"trained length {TRAINED:,}": float(TRAINED),
        f"{FACTOR:g} times that": FACTOR * TRAINED,
    }
    return (
        Lines(
            "Positions that one turn takes",
            pairs,
            {"trained": 2 * math.pi / before, method.name: _wavelength(after)},
            "pair (0 turns fastest)",
            "wavelength in positions",
            levels=lengths,
            logarithmic="y",
            stepped=True,
        ),
        Lines(
            "Speed after / speed before",
            pairs,
            {"trained": before / before, method.name: after / before},
            "pair (0 turns fastest)",
            "ratio (other methods in grey)",
            levels={f"divided by {FACTOR:g}": 1 / FACTOR},
            background=tuple(speeds(other.build(FACTOR, TRAINED)) / before for other in others),
            stepped=True,
        ),
    )


def draw_lists(rope: Rope, method: LongRope) -> tuple[Panel, ...]:
    """The pairs as trained, under the short list and under the long one."""
    before = Rope(rope.head_dim, rope.base).frequencies().inv_freq
    longest = int(method.factor * method.original_length)
    made = {
        "trained": before,
        "short list": rope.frequencies().inv_freq,
        "long list": rope.at_length(longest).frequencies().inv_freq,
    }
    pairs = torch.arange(len(before))
    lengths = {f"{n:,}": float(n) for n in (method.original_length, longest)}
    return (
        Lines(
            "Positions that one turn takes",
            pairs,
            {name: 2 * math.pi / speed for name, speed in made.items()},
            "pair (0 turns fastest)",
            "wavelength in positions",
            levels=lengths,
            logarithmic="y",
            stepped=True,
        ),
        Lines(
            "Speed after / speed before",
            pairs,
            {name: speed / before for name, speed in made.items()},
            "pair (0 turns fastest)",
            "ratio",
            levels={f"divided by {method.factor:g}": 1 / method.factor},
            logarithmic="y",
            stepped=True,
        ),
    )


def _wavelength(inv_freq: Tensor) -> Tensor:
    """2π / speed; NaN for pairs that stand still."""
    return torch.where(inv_freq > 0, 2 * math.pi / inv_freq, torch.nan)
