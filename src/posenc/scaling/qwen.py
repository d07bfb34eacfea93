"""Qwen 1's dynamic NTK. Bai et al. 2023, arXiv 2309.16609, section 2.4.3, and its released code.

The factor is a power of two less one, taken from the length of the sequence, so that the base
changes in steps and not with every token.
"""

import math
from dataclasses import dataclass, replace

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.checks import check_length
from posenc.scaling.ntk import NTK

__all__ = ["QwenNTK"]


@dataclass(frozen=True)
class QwenNTK:
    """NTK-aware with the factor 2**ceil(log2(n / original_length) + 1) − 1, and 1 within it.

    >>> [QwenNTK(8192).at_length(n).factor for n in (8192, 8193, 16385)]
    [1.0, 3.0, 7.0]
    """

    original_length: int
    length: int | None = None

    def __post_init__(self) -> None:
        check_length(self)

    @property
    def factor(self) -> float:
        ratio = (self.length or 1) / self.original_length
        return max(1.0, 2.0 ** math.ceil(math.log2(ratio) + 1) - 1)

    def at_length(self, length: int) -> "QwenNTK":
        """The method for sequences of `length`; lengths within the trained one are all the same."""
        return replace(self, length=length if length > self.original_length else None)

    def __call__(self, spectrum: Spectrum) -> Frequencies:
        return NTK(self.factor)(spectrum)
