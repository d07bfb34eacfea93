"""p-RoPE. Barbero et al. 2024, "Round and Round We Go!", arXiv 2410.06205; Gemma 4."""

from dataclasses import dataclass

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.checks import check_factor, is_number

__all__ = ["Proportional"]


@dataclass(frozen=True)
class Proportional:
    """p-RoPE (Barbero 2024, arXiv 2410.06205; Gemma 4): only the fastest `fraction` of pairs turn.

    The pairs stay where they are, (i, i + d/2) of the whole head, and the slow ones stand still:
    not the same as a smaller rotary_dim, which pairs other channels.

    >>> rope = Rope(8, scaling=Proportional(0.25))
    >>> rope.frequencies().inv_freq.tolist()
    [1.0, 0.0, 0.0, 0.0]
    """

    fraction: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_factor(self)
        if not is_number(self.fraction) or not 0 <= self.fraction <= 1:
            raise ValueError(f"Proportional: fraction must be in [0, 1], got {self.fraction!r}")

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        num_turning = int(self.fraction * spectrum.rotary_dim // 2)
        inv_freq = spectrum.inv_freq.clone()
        inv_freq[num_turning:] = 0.0
        return Frequencies(inv_freq / self.factor)
