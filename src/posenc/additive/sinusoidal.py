"""Sinusoids. Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762, section 3.5.

PE(p, 2i) = sin(p / base**(2i/d)),   PE(p, 2i+1) = cos(p / base**(2i/d))
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posenc.contracts import add_encoding
from posenc.frequencies import angles, check_base, geometric, host_for
from posenc.positions import check_positions

__all__ = ["Sinusoidal"]


@dataclass(frozen=True)
class Sinusoidal:
    """Sines and cosines of the position, added to embeddings `[B, T, dim]`.

    >>> x = Sinusoidal(512)(x)                        # positions 0 … T-1
    >>> x = Sinusoidal(512)(x, positions)             # any integers, [T] or [B, T], no table limit

    `layout` is "alternating" (sin, cos, sin, … the paper) or "concatenated" (all sines, then all
    cosines: tensor2tensor, fairseq, Marian, Whisper). `denominator` is "d" (the paper) or "d-2"
    (tensor2tensor: the slowest wavelength is exactly 2π·base; an odd last channel stays zero).
    """

    dim: int
    base: float = 10_000.0
    denominator: Literal["d", "d-2"] = "d"
    layout: Literal["alternating", "concatenated"] = "alternating"

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < 1:
            raise ValueError(f"dim must be a positive int, got {self.dim!r}")
        if self.denominator not in ("d", "d-2"):
            raise ValueError(f"denominator must be 'd' or 'd-2', got {self.denominator!r}")
        if self.layout not in ("alternating", "concatenated"):
            raise ValueError(f"layout must be 'alternating' or 'concatenated', got {self.layout!r}")
        if self.denominator == "d-2" and self.dim < 2:
            raise ValueError("denominator 'd-2' needs dim of at least 2, got 1")
        check_base(self.base)

    def inv_freq(self, device: torch.device | None = None) -> Tensor:
        """Radians per position of each sine, float64 `[pairs]`."""
        if self.denominator == "d":
            return 1.0 / geometric((self.dim + 1) // 2, self.dim, self.base, device=device)
        num_pairs = self.dim // 2
        return 1.0 / geometric(num_pairs, max(2 * num_pairs - 2, 1), self.base, device=device)

    def encode(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[T]` or `[B, T]` positions -> `[..., T, dim]`; angles are float64 whatever `dtype` is."""
        positions = check_positions(positions, num_tokens=positions.shape[-1])
        host = host_for(positions.device)
        angle = angles(positions.to(host), self.inv_freq(host))
        sin, cos = angle.sin(), angle.cos()
        if self.denominator == "d-2" and self.dim % 2:
            pad = torch.zeros_like(sin[..., :1])
        else:
            pad = sin[..., :0]
        if self.layout == "alternating":
            values = torch.stack((sin, cos), -1).flatten(-2)
        else:
            values = torch.cat((sin, cos[..., : self.dim // 2]), -1)
        return torch.cat((values, pad), -1)[..., : self.dim].to(dtype).to(positions.device)

    def shift(self, k: int) -> Tensor:
        """The matrix T_k of section 3.5 with PE(p + k) = T_k PE(p), float64 `[dim, dim]`.

        Needs both sine and cosine of every pair, so an even dim.
        """
        if self.dim % 2:
            raise ValueError(
                f"an odd dim ({self.dim}) has a sine without its cosine: no T_k exists"
            )
        angle = self.inv_freq() * k
        index = torch.arange(self.dim // 2)
        if self.layout == "alternating":
            sines, cosines = 2 * index, 2 * index + 1
        else:
            sines, cosines = index, index + self.dim // 2
        matrix = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        matrix[sines, sines] = matrix[cosines, cosines] = angle.cos()
        matrix[sines, cosines], matrix[cosines, sines] = angle.sin(), -angle.sin()
        return matrix

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)
