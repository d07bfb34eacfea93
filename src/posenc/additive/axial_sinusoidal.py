"""Sinusoids of several coordinates, each with channels of its own: images, boxes, points.

Carion et al. 2020, "End-to-End Object Detection with Transformers" (DETR), arXiv 2005.12872, section
A.4; He et al. 2021, "Masked Autoencoders", arXiv 2111.06377, appendix A.1 (concatenated waves).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.additive.waves import First, Layout, check_choices, check_dim, coordinates, waves
from posenc.contracts import add_encoding, ordered_axes
from posenc.frequencies import angles, check_base, geometric, host_for

__all__ = ["AxialSinusoidal"]


@dataclass(frozen=True)
class AxialSinusoidal:
    """Each of `num_axes` coordinates gives `dim / num_axes` channels of sines and cosines.

    >>> mae = AxialSinusoidal(768, layout="concatenated")     # ViT-MAE: sin row, cos row, sin column
    >>> x = mae(x, cells)                                     # cells = grid(14, 14), [T, 2]
    >>> detr = AxialSinusoidal(256)                           # at from_pixel_mask(m, extent=2 * pi)
    >>> boxes = AxialSinusoidal(512, num_axes=4, axis_order=(1, 0, 2, 3))   # (x, y, w, h) · 2π

    Coordinates come in the order of `grid`, (row, column); channels follow `axis_order`: a model
    whose columns come first has (1, 0). `base` is one number, or one for each axis in the order of
    coordinates (DAB-DETR). `layout` and `first` are those of `Sinusoidal`, within each axis.

    Positions are integers or float32/float64 reals, `[T, A]` or `[B, T, A]`.
    """

    dim: int
    num_axes: int = 2
    base: float | tuple[float, ...] = 10_000.0
    layout: Layout = "alternating"
    first: First = "sine"
    axis_order: tuple[int, ...] = ()

    real_positions = True

    def __post_init__(self) -> None:
        check_dim("dim", self.dim)
        check_dim("num_axes", self.num_axes)
        check_choices(self)
        if self.num_axes < 2 or self.dim % (2 * self.num_axes):
            raise ValueError(
                "dim must be a multiple of 2 · num_axes, a sine and a cosine for each of at least "
                f"two axes, got dim {self.dim}, num_axes {self.num_axes}"
            )
        for base in self.bases:
            check_base(base)
        if len(self.bases) != self.num_axes:
            raise ValueError(f"base must be one number, or {self.num_axes}, got {self.base!r}")
        object.__setattr__(self, "axis_order", ordered_axes(self.axis_order, self.num_axes))

    @property
    def bases(self) -> tuple[float, ...]:
        """The base of each coordinate."""
        return self.base if isinstance(self.base, tuple) else (self.base,) * self.num_axes

    def encode(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[T, A]` or `[B, T, A]` positions -> `[..., T, dim]`; angles are float64."""
        positions = coordinates(positions, self.num_axes, real=True)
        host, width = host_for(positions.device), self.dim // self.num_axes
        parts = []
        for axis in self.axis_order:
            speeds = 1.0 / geometric(width // 2, width, self.bases[axis], device=host)
            angle = angles(positions[..., axis].to(host), speeds)
            parts.append(waves(angle, self.layout, self.first))
        return torch.cat(parts, -1).to(dtype).to(positions.device)

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)
