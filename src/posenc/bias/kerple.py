"""KERPLE: logits lowered by a learned concave function of distance, two coefficients a head.

Chi et al. 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
arXiv 2205.09921, section 4: the logarithmic and the power variant.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias

__all__ = ["Kerple"]

SMALLEST = 0.01  # of a coefficient at the start, as in the released code


class Kerple(LogitBias):
    """`−r1 · ln(1 + r2 · |q_pos − k_pos|)`, or with `form="power"` `−r1 · |q_pos − k_pos|^r2`.

    >>> attention(q, k, v, scheme=Scheme(bias=Kerple(12)))
    >>> Kerple(2, form="power", r1=[0.5, 1.0], r2=[1.0, 0.3])       # chosen starting values

    r1 and r2 are positive, and r2 of a power at most 2: the kernels are positive definite there. What
    learns is unbounded (a logarithm; for the power's r2 a logit), so no step can leave the range and
    nothing is clamped. They start as released: uniform, r1 up to 2 and r2 up to 1 in the logarithm,
    r1 up to 1 and r2 up to 2 in the power. Distances are symmetric; a decoder masks the future.
    """

    by_distance = True

    def __init__(
        self,
        num_heads: int,
        *,
        form: Literal["log", "power"] = "log",
        r1: Sequence[float] | Tensor | None = None,
        r2: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(num_heads)
        if form not in ("log", "power"):
            raise ValueError(f"form must be 'log' or 'power', got {form!r}")
        self.form: Literal["log", "power"] = form
        high = (2.0, 1.0) if form == "log" else (1.0, 2.0)
        first = _start("r1", r1, num_heads, high[0], math.inf)
        second = _start("r2", r2, num_heads, high[1], math.inf if form == "log" else 2.0)
        self.log_r1 = nn.Parameter(first.log())
        self.raw_r2 = nn.Parameter(second.log() if form == "log" else torch.logit(second / 2, 1e-6))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """r1 and r2, each `[H]`, in float32 or wider."""
        wide = torch.promote_types(self.log_r1.dtype, torch.float32)
        r1, raw = self.log_r1.to(wide).exp(), self.raw_r2.to(wide)
        return r1, raw.exp() if self.form == "log" else 2 * raw.sigmoid()

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        r1, r2 = (coefficient[head] for coefficient in self.coefficients())
        distance = (q_pos - k_pos).abs().to(r1.dtype)
        if self.form == "power":
            return -r1 * distance**r2
        return -r1 * torch.log1p(r2 * distance)

    def extra_repr(self) -> str:
        return f"{self.num_heads}, form={self.form!r}"


def _start(
    name: str, given: Sequence[float] | Tensor | None, num_heads: int, high: float, largest: float
) -> Tensor:
    """`[H]` float32 starting values: those given, or uniform up to `high`."""
    if given is None:
        return (high * torch.rand(num_heads)).clamp(min=SMALLEST)
    start = torch.as_tensor(given, dtype=torch.float64, device="cpu").tolist()
    fits = isinstance(start, list) and len(start) == num_heads
    if not fits or not all(0 < x <= largest and math.isfinite(x) for x in start):
        bound = "finite numbers above 0" if largest == math.inf else f"numbers in (0, {largest:g}]"
        raise ValueError(f"{name} must be {num_heads} {bound}, one a head, got {given!r}")
    return torch.tensor(start, dtype=torch.float32)
