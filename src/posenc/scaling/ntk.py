"""NTK-aware scaling, for a fixed length and for the current one.

bloc97 and emozilla 2023; Peng et al. 2023, arXiv 2309.00071, §3.1.
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from posenc.frequencies import Frequencies, Spectrum, geometric
from posenc.scaling.checks import check_factor, check_length, check_one_of

__all__ = ["NTK", "DynamicNTK"]


@dataclass(frozen=True)
class NTK:
    """NTK-aware: the base times factor**(d/(d-2)) (bloc97 2023; arXiv 2309.00071, §3.1).

    The fastest pair keeps its speed, the slowest is divided by exactly `factor`.

    >>> rope = Rope(64, base=10_000.0, scaling=NTK(factor=4.0))

    `rule="fixed"` divides pair i by factor**(2(i+1)/d), so that the fastest pair slows too (Su 2023,
    kexue.fm 9706); `rule="plain"` multiplies the base by the factor itself.
    """

    factor: float
    rule: Literal["bloc97", "fixed", "plain"] = "bloc97"

    def __post_init__(self) -> None:
        check_factor(self)
        check_one_of(self, "rule", ("bloc97", "fixed", "plain"))

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        d = spectrum.rotary_dim
        if self.rule == "bloc97":
            return Frequencies(_rebased(spectrum, self.factor ** _bloc97_exponent(d)))
        inv_freq = _rebased(spectrum, self.factor)
        return Frequencies(inv_freq if self.rule == "plain" else inv_freq / self.factor ** (2 / d))


@dataclass(frozen=True)
class DynamicNTK:
    """NTK-aware at the length in use: base · (s·n/L − (s−1))**(d/(d−2)) for n > L (emozilla 2023).

    >>> rope = Rope(128, scaling=DynamicNTK(factor=2.0, original_length=2048))
    >>> longer = rope.at_length(8192)                 # a new value; keys of `rope` need rerotate

    Up to `original_length` nothing changes. The length is the caller's word, never read off a batch,
    so that a short prompt after a long one is what it was before.
    """

    factor: float
    original_length: int
    length: int | None = None

    def __post_init__(self) -> None:
        check_factor(self)
        check_length(self)

    def at_length(self, length: int) -> "DynamicNTK":
        """The method for sequences of `length`; lengths within the trained one are all the same."""
        return replace(self, length=length if length > self.original_length else None)

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        length = max(self.length or 0, self.original_length)
        stretch = (self.factor * length / self.original_length) - (self.factor - 1)
        return Frequencies(_rebased(spectrum, stretch ** _bloc97_exponent(spectrum.rotary_dim)))


def _rebased(spectrum: Spectrum, stretch: float) -> Tensor:
    """The spectrum of a base `stretch` times larger."""
    num_pairs, like = spectrum.per_radian.numel(), spectrum.per_radian
    base = spectrum.base * stretch
    return 1.0 / geometric(
        num_pairs, spectrum.rotary_dim, base, dtype=like.dtype, device=like.device
    )


def _bloc97_exponent(rotary_dim: int) -> float:
    if rotary_dim < 4:
        raise ValueError(f"NTK needs at least two pairs: d/(d-2) has no value at d = {rotary_dim}")
    return rotary_dim / (rotary_dim - 2)
