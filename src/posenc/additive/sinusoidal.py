"""Sinusoids. Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762, section 3.5.

PE(p, 2i) = sin(p / base**(2i/d)),   PE(p, 2i+1) = cos(p / base**(2i/d))
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posenc.additive.waves import First, Layout, check_choices, check_dim, waves
from posenc.contracts import add_encoding
from posenc.frequencies import angles, check_base, geometric, host_for
from posenc.positions import check_positions

__all__ = ["Sinusoidal"]


@dataclass(frozen=True)
class Sinusoidal:
    """Sines and cosines of the position, added to embeddings `[B, T, dim]`.

    >>> x = Sinusoidal(512)(x)                        # positions 0 … T-1
    >>> x = Sinusoidal(512)(x, positions)             # any integers, [T] or [B, T], no table limit
    >>> whisper = Sinusoidal(512, denominator="d-2", layout="concatenated")
    >>> m2m100 = replace(whisper, offset=2, zero_padding=True)

    `layout` is "alternating" (sin, cos, sin, … the paper) or "concatenated" (all sines, then all
    cosines: tensor2tensor, fairseq, Marian, Whisper); `first="cosine"` puts cosines before sines
    (MusicGen). `denominator` is "d" (the paper) or "d-2" (tensor2tensor: the slowest wavelength is
    exactly 2π·base; an odd last channel stays zero).

    Position p is encoded as p + offset (fairseq: padding_idx + 1; FunASR: 1). With `zero_padding`,
    position −1 marks padding and adds zeros. `amplitude` multiplies all (Canary: dim ** -0.5).

    `real_positions=True` takes float32 and float64 positions too. Diffusion times are such:

    >>> times = Sinusoidal(256, layout="concatenated", first="cosine", real_positions=True)
    >>> features = times.encode(1000 * torch.rand(8))     # [8, 256]

    diffusers' `flip_sin_to_cos` is `first="cosine"`, its `downscale_freq_shift` of 1 (or 0) is
    denominator "d-2" (or "d"), and its `scale` multiplies the times.
    """

    dim: int
    base: float = 10_000.0
    denominator: Literal["d", "d-2"] = "d"
    layout: Layout = "alternating"
    first: First = "sine"
    amplitude: float = 1.0
    offset: int = 0
    zero_padding: bool = False
    real_positions: bool = False

    def __post_init__(self) -> None:
        check_dim("dim", self.dim)
        check_choices(self)
        if self.denominator == "d-2" and self.dim < 2:
            raise ValueError("denominator 'd-2' needs dim of at least 2, got 1")
        check_base(self.base)
        if not math.isfinite(self.amplitude) or self.amplitude == 0:
            raise ValueError(f"amplitude must be a finite number but 0, got {self.amplitude!r}")
        if isinstance(self.offset, bool) or not isinstance(self.offset, int):
            raise ValueError(f"offset must be an int, got {self.offset!r}")

    def inv_freq(self, device: torch.device | None = None) -> Tensor:
        """Radians per position of each sine, float64 `[pairs]`."""
        if self.denominator == "d":
            return 1.0 / geometric((self.dim + 1) // 2, self.dim, self.base, device=device)
        num_pairs = self.dim // 2
        return 1.0 / geometric(num_pairs, max(2 * num_pairs - 2, 1), self.base, device=device)

    def encode(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[T]` or `[B, T]` positions -> `[..., T, dim]`; angles are float64 whatever `dtype` is."""
        positions = check_positions(positions, real=self.real_positions)
        host = host_for(positions.device)
        angle = angles(positions.to(host, torch.float64) + self.offset, self.inv_freq(host))
        values = self.amplitude * self._channels(waves(angle, self.layout, self.first))
        if self.zero_padding:
            values = values.masked_fill((positions == -1).to(host)[..., None], 0.0)
        return values.to(dtype).to(positions.device)

    def _channels(self, values: Tensor) -> Tensor:
        """An odd dim drops the last wave of the second kind ("d"), or ends in a zero ("d-2")."""
        if values.shape[-1] < self.dim:
            return torch.cat((values, torch.zeros_like(values[..., :1])), -1)
        return values[..., : self.dim]

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
        sines, cosines = index, index + self.dim // 2
        if self.layout == "alternating":
            sines, cosines = 2 * index, 2 * index + 1
        if self.first == "cosine":
            sines, cosines = cosines, sines
        matrix = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        matrix[sines, sines] = matrix[cosines, cosines] = angle.cos()
        matrix[sines, cosines], matrix[cosines, sines] = angle.sin(), -angle.sin()
        return matrix

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)
