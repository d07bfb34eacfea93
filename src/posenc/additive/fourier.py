"""Fourier features of real coordinates: at random frequencies, or in even bands.

Tancik et al. 2020, "Fourier Features Let Networks Learn High Frequency Functions", arXiv 2006.10739,
section 5 (Gaussian; SAM's prompts, arXiv 2304.02643); Jaegle et al. 2021, "Perceiver", arXiv
2103.03206, section 3.2 (bands).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posenc.additive.waves import check_dim, coordinates, waves
from posenc.contracts import add_encoding
from posenc.frequencies import angles, host_for

__all__ = ["FourierBands", "RandomFourier"]


class RandomFourier(nn.Module):
    """`[sin 2πxF, cos 2πxF]` of real coordinates x, at fixed random frequencies F `[A, dim / 2]`.

    >>> sam = RandomFourier(256)
    >>> features = sam.encode(points)                 # (x, y) in [-1, 1], float32 [T, 2] or [B, T, 2]
    >>> learned = RandomFourier(256, learned=True)    # Li 2021, arXiv 2106.02795, before its MLP

    F is drawn from a normal distribution of standard deviation `scale`, and saved with the model (a
    parameter without gradient, which no optimizer moves): a checkpoint means nothing without its
    own. SAM's (x, y) are `2 · (pixel + ½) / size − 1`.
    """

    real_positions = True

    def __init__(
        self, dim: int, *, num_axes: int = 2, scale: float = 1.0, learned: bool = False
    ) -> None:
        super().__init__()
        check_dim("dim", dim)
        check_dim("num_axes", num_axes)
        if dim % 2:
            raise ValueError(f"dim must be even, a sine and a cosine for each frequency, got {dim}")
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be a positive finite number, got {scale!r}")
        self.dim, self.num_axes, self.scale, self.learned = dim, num_axes, scale, learned
        drawn = scale * torch.randn(num_axes, dim // 2)
        self.frequencies = nn.Parameter(drawn, requires_grad=learned)

    def encode(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[T, A]` or `[B, T, A]` real positions -> `[..., T, dim]`; angles are float64."""
        positions = coordinates(positions, self.num_axes, real=True)
        host = host_for(positions.device)
        speeds = self.frequencies.to(host, torch.float64)
        angle = 2 * math.pi * (positions.to(host, torch.float64) @ speeds)
        return waves(angle, "concatenated", "sine").to(dtype).to(positions.device)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)

    def extra_repr(self) -> str:
        return f"{self.dim}, num_axes={self.num_axes}, scale={self.scale}, learned={self.learned}"


@dataclass(frozen=True)
class FourierBands:
    """Sines and cosines of `π f x` at frequencies f from 1 to half the resolution, evenly spaced.

    >>> bands = FourierBands(64, (224, 224))          # Perceiver on ImageNet: dim 258
    >>> features = bands.encode(centred(224, 224, ends=True))            # [50176, 258]

    Channels: the coordinates themselves (unless `keep_positions=False`), the sines of each
    coordinate in turn, then the cosines (unless `sine_only=True`). `resolution` has one entry for
    each axis; positions are real, in [-1, 1].
    """

    num_bands: int
    resolution: tuple[int, ...]
    keep_positions: bool = True
    sine_only: bool = False

    real_positions = True

    def __post_init__(self) -> None:
        check_dim("num_bands", self.num_bands)
        object.__setattr__(self, "resolution", tuple(self.resolution))
        if not self.resolution:
            raise ValueError("resolution must have an entry for each axis, got ()")
        for size in self.resolution:
            check_dim("a resolution", size)

    @property
    def num_axes(self) -> int:
        """Coordinates of one position."""
        return len(self.resolution)

    @property
    def dim(self) -> int:
        """Channels of one position."""
        num_waves = self.num_bands * (1 if self.sine_only else 2)
        return self.num_axes * (num_waves + self.keep_positions)

    def encode(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[T, A]` or `[B, T, A]` real positions -> `[..., T, dim]`; angles are float64."""
        positions = coordinates(positions, self.num_axes, real=True)
        host = host_for(positions.device)
        x = positions.to(host, torch.float64)
        bands = self._bands(host)
        angle = torch.cat([angles(x[..., i], math.pi * band) for i, band in enumerate(bands)], -1)
        kept = [x] if self.keep_positions else []
        made = [angle.sin()] if self.sine_only else [angle.sin(), angle.cos()]
        return torch.cat((*kept, *made), -1).to(dtype).to(positions.device)

    def _bands(self, host: torch.device) -> list[Tensor]:
        """The frequencies of each axis."""
        steps = {"steps": self.num_bands, "dtype": torch.float64, "device": host}
        return [torch.linspace(1.0, size / 2, **steps) for size in self.resolution]

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)
