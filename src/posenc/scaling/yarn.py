"""YaRN and its frequencies alone. Peng et al. 2023, arXiv 2309.00071, §3.2-3.4."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.checks import (
    check_factor,
    check_flag,
    check_length,
    check_positive,
    is_number,
)

__all__ = ["NTKByParts", "Yarn", "ramp_ends"]


@dataclass(frozen=True)
class NTKByParts:
    """YaRN's frequencies without its attention factor (Peng 2023, arXiv 2309.00071, §3.2).

    >>> rope = Rope(128, scaling=NTKByParts(factor=8.0, original_length=4096))
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_ramp(self)

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        return Frequencies(_by_parts(self, spectrum))


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng 2023, arXiv 2309.00071, §3.2-3.4): interpolate slow pairs, keep fast ones.

    Pairs that turn more than `beta_fast` times over `original_length` keep their speed, those below
    `beta_slow` are divided by `factor`, with a linear ramp over the pair index in between.
    `truncate` rounds the ends of the ramp outwards to whole pairs, as the authors' code does.

    >>> rope = Rope(128, base=500_000.0, scaling=Yarn(factor=8.0, original_length=4096))

    `attention_factor` is the final multiplier of cos and sin. Left out it is 0.1·ln(factor) + 1, or,
    with both `mscale` and `mscale_all_dim` non-zero, (0.1·mscale·ln(factor) + 1) over the same with
    `mscale_all_dim`. With `scale_softmax` (DeepSeek) the softmax scale is multiplied by the square
    of that last term: it reaches the channels that do not turn as well.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    scale_softmax: bool = False

    def __post_init__(self) -> None:
        _check_ramp(self)
        check_flag(self, "scale_softmax")
        check_positive(self, "attention_factor")
        for name in ("mscale", "mscale_all_dim"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise ValueError(f"Yarn: {name} must be 0 or more, got {value!r}")

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        all_dim = self._amplitude(self.mscale_all_dim or 0.0)
        softmax_scale = all_dim**2 if self.scale_softmax else 1.0
        if self.attention_factor is not None:
            factor = self.attention_factor
        elif self.mscale and self.mscale_all_dim:
            factor = self._amplitude(self.mscale) / all_dim
        else:
            factor = self._amplitude(1.0)
        return Frequencies(_by_parts(self, spectrum), factor, softmax_scale)

    def _amplitude(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0


def ramp_ends(scaling: NTKByParts | Yarn, spectrum: Spectrum) -> tuple[float, float]:
    """Pair indices where interpolation begins and where it is complete (YaRN §3.2)."""
    if spectrum.base <= 1:
        raise ValueError(f"{type(scaling).__name__} needs a base above 1, got {spectrum.base}")

    def pair_with(num_turns: float) -> float:
        per_radian = scaling.original_length / (num_turns * 2 * math.pi)
        return spectrum.rotary_dim * math.log(per_radian) / (2 * math.log(spectrum.base))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spectrum.rotary_dim - 1)
    return low, high if high > low else low + 0.001  # the authors' guard against 0/0


def _by_parts(scaling: NTKByParts | Yarn, spectrum: Spectrum) -> Tensor:
    low, high = ramp_ends(scaling, spectrum)
    index = torch.arange(spectrum.per_radian.numel(), device=spectrum.per_radian.device)
    kept = 1 - ((index.to(spectrum.per_radian.dtype) - low) / (high - low)).clamp(0, 1)
    interpolated = 1.0 / (scaling.factor * spectrum.per_radian)
    return interpolated * (1 - kept) + spectrum.inv_freq * kept


def _check_ramp(scaling: NTKByParts | Yarn) -> None:
    check_factor(scaling)
    check_length(scaling)
    check_flag(scaling, "truncate")
    fast, slow = scaling.beta_fast, scaling.beta_slow
    in_order = is_number(fast) and is_number(slow) and fast >= slow > 0
    if not in_order or not math.isfinite(scaling.original_length / slow):
        raise ValueError(
            f"{type(scaling).__name__}: beta_fast >= beta_slow > 0 is needed, got {fast} and {slow}"
        )
