"""Position interpolation. Chen et al. 2023, arXiv 2306.15595, eq. 4."""

from dataclasses import dataclass

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.checks import check_factor

__all__ = ["Linear"]


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
