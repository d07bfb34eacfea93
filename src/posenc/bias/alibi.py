"""ALiBi: logits lowered in proportion to distance, with a fixed slope per head.

Press et al. 2022, "Train Short, Test Long", arXiv 2108.12409, section 3, and its released rule for
head counts that are no power of two. MPT's `alibi_bias_max` and Falcon's order of scaling are
options.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias
from posenc.frequencies import widest

__all__ = ["Alibi", "slopes"]


def slopes(num_heads: int, bias_max: float = 8.0) -> list[float]:
    """The published slopes: 2**(-8/P), 2**(-16/P), … for the P heads of the power of two below.

    The remaining heads take every other slope of the next power, in this (non-monotone) order:
    checkpoints were trained with it. `bias_max` is MPT's name for the 8.

    >>> slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    power = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-bias_max * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-bias_max / 2 * (2 * h + 1) / power) for h in range(num_heads - power)]
    return first + between


class Alibi(LogitBias):
    """`−slope[head] · (q_pos − k_pos)` added to the logits.

    >>> attention(q, k, v, scheme=Scheme(bias=Alibi(12)))
    >>> Alibi(4, slopes=slopes(8)[4:])                              # the second of two ranks
    >>> Alibi(71, slope_dtype=torch.bfloat16, scale=64**-0.5)       # Falcon, heads of 64 channels

    Causal by default: zero at the query's own position and for future keys (which a causal mask
    hides). `symmetric=True` takes |q_pos − k_pos| for encoders. `learned=True` starts from the
    published slopes and learns their logarithms, so that they stay positive. `bias_max` sets the
    published slopes (MPT), `slopes` gives others, one a head. `slope_dtype` rounds them, and `scale`
    multiplies them: Falcon adds ALiBi before it scales the logits, so its bias is scaled too.
    """

    by_distance = True
    falls = True

    def __init__(
        self,
        num_heads: int,
        *,
        symmetric: bool = False,
        learned: bool = False,
        bias_max: float = 8.0,
        slopes: Sequence[float] | Tensor | None = None,
        slope_dtype: torch.dtype | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__(num_heads)
        start = _start(num_heads, bias_max, slopes)
        if slope_dtype is not None:
            if learned or not slope_dtype.is_floating_point:
                raise ValueError(
                    f"slope_dtype rounds fixed slopes to a floating dtype, got {slope_dtype} "
                    f"with learned={learned}"
                )
            start = _exact(start).to(slope_dtype).tolist()
        if not math.isfinite(scale) or scale <= 0:
            raise ValueError(f"scale must be positive and finite, got {scale}")
        if learned and min(start) == 0:
            raise ValueError(f"learned slopes start above 0, got {start}")
        self.symmetric, self.learned = symmetric, learned
        self.bias_max, self.slope_dtype, self.scale = bias_max, slope_dtype, scale
        self.is_given = slopes is not None
        self._fixed = tuple(slope * scale for slope in start)
        logs = torch.tensor([math.log(x) for x in start], dtype=torch.float32) if learned else None
        self.log_slopes = None if logs is None else nn.Parameter(logs)

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """`[H]`, float64 where fixed; what multiplies a distance, `scale` included."""
        if self.log_slopes is not None:
            wide = torch.promote_types(self.log_slopes.dtype, torch.float32)
            learned = self.log_slopes.to(wide).exp()  # distances would follow it into bfloat16
            return learned if self.scale == 1 else learned * self.scale
        dtype = torch.float64 if device is None else widest(device)
        return torch.tensor(self._fixed, dtype=dtype, device=device)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        distance = q_pos - k_pos
        distance = distance.abs() if self.symmetric else distance.clamp(min=0)
        return -self.slopes(distance.device)[head] * distance

    def _of_distances(self, head: Tensor, distances: Tensor) -> Tensor:
        del head
        falling = -self.slopes(distances.device)[:, None]
        distances = distances.abs() if self.symmetric else distances.clamp(min=0)
        return falling * distances.to(falling.dtype)

    def extra_repr(self) -> str:
        options = {
            "bias_max": None if self.bias_max == 8 else self.bias_max,
            "slopes": self._fixed if self.is_given and not self.learned else None,
            "slope_dtype": self.slope_dtype,
            "scale": None if self.scale == 1 else self.scale,
        }
        told = "".join(f", {name}={value}" for name, value in options.items() if value is not None)
        return f"{self.num_heads}, symmetric={self.symmetric}, learned={self.learned}{told}"


def _start(num_heads: int, bias_max: float, given: Sequence[float] | Tensor | None) -> list[float]:
    """The published slopes, or those given."""
    if not math.isfinite(bias_max) or bias_max <= 0 or (given is not None and bias_max != 8):
        raise ValueError(
            "bias_max makes the published slopes, so it is positive and goes without slopes=; "
            f"got {bias_max}"
        )
    if given is None:
        return slopes(num_heads, bias_max)
    start = _numbers(given)
    if len(start) != num_heads or not all(0 <= x < math.inf for x in start):
        raise ValueError(
            f"slopes must be {num_heads} finite numbers of at least 0, one a head, got {given!r}"
        )
    return start


def _numbers(given: Sequence[float] | Tensor) -> list[float]:
    """As floats of Python, that no context rounds; nothing where they are no row of numbers."""
    listed: Any = given.tolist() if isinstance(given, Tensor) else given
    try:
        return [math.nan if isinstance(x, str) else float(x) for x in listed]
    except TypeError:
        return []


def _exact(values: list[float]) -> Tensor:
    """float64 of these very numbers, also where a context rounds every tensor that is made."""
    return torch.frombuffer(array("d", values), dtype=torch.float64)
