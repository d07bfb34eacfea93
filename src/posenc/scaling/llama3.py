"""The scaling of Llama 3.1. Dubey et al. 2024, arXiv 2407.21783, and its released code."""

import math
from dataclasses import dataclass

import torch

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.checks import check_factor, check_length, is_number

__all__ = ["Llama3"]


@dataclass(frozen=True)
class Llama3:
    """Llama 3.1 (Dubey 2024, arXiv 2407.21783, released code): by wavelength, in three bands.

    Wavelengths below L/high_freq_factor stay, above L/low_freq_factor are stretched by `factor`, and
    the band between them moves smoothly from one to the other.

    >>> rope = Rope(128, base=500_000.0, scaling=Llama3(factor=8.0, original_length=8192))
    """

    factor: float
    original_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        check_factor(self)
        check_length(self)
        low, high = self.low_freq_factor, self.high_freq_factor
        if not (is_number(low) and is_number(high) and high >= low > 0):
            raise ValueError(
                "Llama3: high_freq_factor >= low_freq_factor > 0 is needed, "
                f"got {high!r} and {low!r}"
            )

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        inv_freq = spectrum.inv_freq
        wavelength = 2 * math.pi / inv_freq
        low, high = self.low_freq_factor, self.high_freq_factor
        slow = wavelength > self.original_length / low
        fast = wavelength < self.original_length / high
        band = high - low if high > low else 1.0  # one edge: the band between is empty
        smooth = (self.original_length / wavelength - low) / band
        between = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        scaled = torch.where(fast, inv_freq, between)
        return Frequencies(torch.where(slow, inv_freq / self.factor, scaled))
