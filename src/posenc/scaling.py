"""Scaling methods: from a rope's trained spectrum to one that reaches further.

Each is a small frozen value, `scaling(spectrum) -> Frequencies`. A new method is a new class here;
kernels, attention and models never hear of it. `factor` is new length / original length.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from posenc.frequencies import Frequencies, Spectrum

__all__ = ["NTK", "Linear", "Scaling", "Yarn"]


@runtime_checkable
class Scaling(Protocol):
    """What `Rope(scaling=...)` takes."""

    def __call__(self, spectrum: Spectrum) -> Frequencies: ...


@dataclass(frozen=True)
class Linear:
    """Position interpolation: every angle divided by `factor` (Chen 2023, arXiv 2306.15595, eq. 4).

    >>> rope = Rope(64, base=10_000.0, scaling=Linear(factor=4.0))  # position 8 turns like 2
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor(self)

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        return Frequencies(spectrum.inv_freq / self.factor)


@dataclass(frozen=True)
class NTK:
    """NTK-aware: the base times factor**(d/(d-2)) (bloc97 2023; arXiv 2309.00071, §3.1).

    The fastest pair keeps its speed, the slowest is divided by exactly `factor`.

    >>> rope = Rope(64, base=10_000.0, scaling=NTK(factor=4.0))
    """

    factor: float

    def __post_init__(self) -> None:
        check_factor(self)

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        num_pairs = spectrum.inv_freq.numel()
        if num_pairs < 2:
            raise ValueError("NTK needs at least two pairs: d/(d-2) has no value at rotary_dim 2")
        ramp = torch.arange(num_pairs, device=spectrum.inv_freq.device) / (num_pairs - 1)
        stretch = self.factor ** ramp.to(spectrum.inv_freq.dtype)
        return Frequencies(spectrum.inv_freq / stretch)


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng 2023, arXiv 2309.00071, §3.2-3.4): interpolate slow pairs, keep fast ones.

    Pairs that turn more than `beta_fast` times over `original_length` keep their speed, those below
    `beta_slow` are divided by `factor`, with a linear ramp over the pair index in between.
    `truncate` rounds the ends of the ramp outwards to whole pairs, as the authors' code does.
    `attention_factor` multiplies cos and sin; by default 0.1 ln(factor) + 1.

    >>> rope = Rope(128, base=500_000.0, scaling=Yarn(factor=8.0, original_length=4096))
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_factor(self)
        if not (isinstance(self.original_length, int) and self.original_length > 0):
            raise ValueError(
                f"original_length must be a positive int, got {self.original_length!r}"
            )
        if not self.beta_fast > self.beta_slow > 0:
            raise ValueError(
                f"beta_fast > beta_slow > 0 is needed, got {self.beta_fast} and {self.beta_slow}"
            )
        if self.attention_factor is not None and not self.attention_factor > 0:
            raise ValueError(f"attention_factor must be positive, got {self.attention_factor}")

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        low, high = self.ramp_ends(spectrum)
        index = torch.arange(spectrum.inv_freq.numel(), device=spectrum.inv_freq.device)
        interpolated = ((index.to(spectrum.inv_freq.dtype) - low) / (high - low)).clamp(0, 1)
        inv_freq = spectrum.inv_freq / self.factor * interpolated + spectrum.inv_freq * (
            1 - interpolated
        )
        factor = self.attention_factor
        return Frequencies(
            inv_freq, 0.1 * math.log(self.factor) + 1.0 if factor is None else factor
        )

    def ramp_ends(self, spectrum: Spectrum) -> tuple[float, float]:
        """Pair indices where interpolation begins and is complete."""

        def pair_with(num_turns: float) -> float:
            per_radian = self.original_length / (num_turns * 2 * math.pi)
            return spectrum.rotary_dim * math.log(per_radian) / (2 * math.log(spectrum.base))

        low, high = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, spectrum.rotary_dim - 1)
        return low, high if high > low else low + 0.001  # the authors' guard against 0/0


def check_factor(scaling: "Linear | NTK | Yarn") -> None:
    """A factor stretches: 1 or more, finite; "4" and 0.25 are mistakes elsewhere."""
    factor = scaling.factor
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not is_number or not math.isfinite(factor) or factor < 1:
        raise ValueError(
            f"{type(scaling).__name__}: factor is new length / original length, a number of at "
            f"least 1, got {factor!r}"
        )
