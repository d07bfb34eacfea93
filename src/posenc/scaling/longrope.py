"""LongRoPE. Ding et al. 2024, arXiv 2402.13753."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.checks import (
    check_factor,
    check_length,
    check_one_of,
    check_positive,
    is_number,
)

__all__ = ["LongRope"]


@dataclass(frozen=True)
class LongRope:
    """LongRoPE (Ding 2024, arXiv 2402.13753): every pair has its own divisor, found by search.

    >>> rope = Rope(96, scaling=LongRope((1.0,) * 48, (4.0,) * 48, factor=32.0, original_length=4096))
    >>> rope = rope.at_length(100_000)                # the long list; up to 4,096 the short one

    `attention_factor` defaults to √(1 + ln(factor)/ln(original_length)), or with
    `attention_rule="yarn"` to 0.1·ln(factor) + 1, which is kept as the number that it gives; 1
    where factor is 1. `short_attention_factor` and `long_attention_factor` set it for one list only.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    factor: float
    original_length: int
    attention_factor: float | None = None
    attention_rule: Literal["sqrt", "yarn"] = "sqrt"
    short_attention_factor: float | None = None
    long_attention_factor: float | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        check_factor(self)
        check_length(self)
        check_one_of(self, "attention_rule", ("sqrt", "yarn"))
        for name in ("attention_factor", "short_attention_factor", "long_attention_factor"):
            check_positive(self, name)
        for name in ("short_factor", "long_factor"):
            listed = getattr(self, name)
            divisors = tuple(listed) if isinstance(listed, Iterable) else ()
            if not divisors or not all(is_number(x) and x > 0 for x in divisors):
                raise ValueError(f"LongRope: {name} must list positive numbers, got {listed!r}")
            object.__setattr__(self, name, divisors)
        if self.attention_rule == "yarn":  # configs have no name for it: a number, read back equal
            if self.attention_factor is None:
                object.__setattr__(self, "attention_factor", 0.1 * math.log(self.factor) + 1.0)
            object.__setattr__(self, "attention_rule", "sqrt")

    @property
    def _is_long(self) -> bool:
        return self.length is not None and self.length > self.original_length

    def at_length(self, length: int) -> "LongRope":
        """The method for sequences of `length`: the long list beyond the original length."""
        return replace(self, length=length if length > self.original_length else None)

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        name = "long_factor" if self._is_long else "short_factor"
        divisors = getattr(self, name)
        if len(divisors) != spectrum.per_radian.numel():
            raise ValueError(
                f"LongRope: {name} lists {len(divisors)} numbers for the "
                f"{spectrum.per_radian.numel()} pairs of rotary_dim {spectrum.rotary_dim}"
            )
        per_pair = torch.tensor(divisors, dtype=spectrum.per_radian.dtype)
        per_pair = per_pair.to(spectrum.per_radian.device)
        return Frequencies(1.0 / (per_pair * spectrum.per_radian), self._attention_factor())

    def _attention_factor(self) -> float:
        own = self.long_attention_factor if self._is_long else self.short_attention_factor
        given = own if own is not None else self.attention_factor
        if given is not None:
            return given
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
