"""Log-length scaling: queries sharpened as the number of keys grows, so that attention does not
spread out over them.

Chiang and Cholak 2022, arXiv 2202.12172, section 5.2 (log n); Su 2021, kexue.fm 8823; Nakanishi
2025, "Scalable-Softmax", arXiv 2501.19399. A query at position p has n = p + 1 keys, and every factor
depends on p alone, so decoding one token at a time gives what a full forward gives.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.frequencies import host_for
from posenc.positions import check_positions

__all__ = ["LearnedLogScale", "LogScale", "PowerScale", "StepLogScale"]


class _FixedScale(ABC):
    """A factor of n = p + 1, the number of keys that a causal query at p sees."""

    def factors(self, q_pos: Tensor) -> Tensor:
        """`[Q]` or `[B, Q]` positions -> float64 `[B|1, 1, Q]`; padding (−1) counts as the first."""
        return self._of_count(_counts(q_pos))[:, None].to(_kept_dtype(q_pos)).to(q_pos.device)

    @abstractmethod
    def _of_count(self, count: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LogScale(_FixedScale):
    """`1 + coefficient · ln(n / original_length)`, and 1 up to `original_length`.

    >>> Scheme(rotary=Rope(128), query_scale=LogScale(8192))      # Qwen v1: log n / log 8192
    >>> LogScale(65_536, coefficient=0.1)                         # Inkling's global layers

    The default coefficient, 1 / ln(original_length), makes it ln(n) / ln(original_length), the
    "log-n" scaling. `clamp=False` weakens queries before `original_length` too (Su 2021).
    """

    original_length: int
    coefficient: float | None = None
    clamp: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.original_length, bool) or not self.original_length > 1:
            raise ValueError(
                f"LogScale: original_length must exceed 1, got {self.original_length!r}"
            )
        _check_finite(self, "coefficient")

    def _of_count(self, count: Tensor) -> Tensor:
        given = self.coefficient
        coefficient = 1 / math.log(self.original_length) if given is None else given
        ratio = count / self.original_length
        return 1 + coefficient * (ratio.clamp(min=1) if self.clamp else ratio).log()


@dataclass(frozen=True)
class StepLogScale(_FixedScale):
    """`1 + coefficient · ln(1 + ⌊n / step⌋)`: constant over runs of `step` positions.

    >>> StepLogScale(0.1, step=8192)                              # Llama 4, layers without rotation
    >>> StepLogScale(0.1, step=16_384, count_from=0)              # Ministral 3, Mistral 4

    `count_from=0` divides p instead of n = p + 1: each step then begins one position later.
    """

    coefficient: float
    step: int
    count_from: int = 1

    def __post_init__(self) -> None:
        _check_finite(self, "coefficient")
        if isinstance(self.step, bool) or not self.step >= 1:
            raise ValueError(f"StepLogScale: step must be at least 1, got {self.step!r}")
        if self.count_from not in (0, 1):
            raise ValueError(f"StepLogScale: count_from must be 0 or 1, got {self.count_from!r}")

    def _of_count(self, count: Tensor) -> Tensor:
        steps = ((count - 1 + self.count_from) / self.step).floor()
        return 1 + self.coefficient * steps.log1p()


@dataclass(frozen=True)
class PowerScale(_FixedScale):
    """`(1 + n / original_length) ** exponent`.

    >>> PowerScale(2048, exponent=0.1)                            # Beam, layers without rotation
    """

    original_length: int
    exponent: float

    def __post_init__(self) -> None:
        _check_finite(self, "exponent")
        if isinstance(self.original_length, bool) or not self.original_length >= 1:
            raise ValueError(
                f"PowerScale: original_length must be at least 1, got {self.original_length!r}"
            )

    def _of_count(self, count: Tensor) -> Tensor:
        return (self.exponent * (count / self.original_length).log1p()).exp()


class LearnedLogScale(nn.Module):
    """`scale[head] · ln(n) + bias[head]`, both learned (Scalable-Softmax; Mistral Large 4).

    >>> Scheme(rotary=Rope(128), query_scale=LearnedLogScale(32))

    Starts at scale 0 and bias 1, which changes nothing. `bias=False` is Scalable-Softmax itself,
    s · ln(n), started at s = 1.
    """

    def __init__(self, num_heads: int, *, bias: bool = True) -> None:
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, got {num_heads!r}")
        self.num_heads = num_heads
        self.scale = nn.Parameter(torch.zeros(num_heads) if bias else torch.ones(num_heads))
        self.bias = nn.Parameter(torch.ones(num_heads)) if bias else None

    def factors(self, q_pos: Tensor) -> Tensor:
        """`[Q]` or `[B, Q]` positions -> `[B|1, H, Q]`."""
        log_count = _counts(q_pos).log().to(self.scale.dtype).to(q_pos.device)[:, None]
        factors = self.scale[:, None] * log_count
        return factors if self.bias is None else factors + self.bias[:, None]

    def extra_repr(self) -> str:
        return f"{self.num_heads}, bias={self.bias is not None}"


def _counts(q_pos: Tensor) -> Tensor:
    """n = p + 1 as float64 `[B|1, Q]`, at least 1."""
    q_pos = check_positions(q_pos, name="q_pos", real=True)
    counts = q_pos.to(host_for(q_pos.device), torch.float64) + 1
    return (counts if counts.ndim == 2 else counts[None]).clamp(min=1)


def _kept_dtype(q_pos: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    same = host_for(q_pos.device) == q_pos.device
    return torch.float64 if same else torch.float32


def _check_finite(scale: Any, name: str) -> None:
    value = getattr(scale, name)
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{type(scale).__name__}: {name} must be finite, got {value!r}")
