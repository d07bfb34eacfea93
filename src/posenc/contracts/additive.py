"""The first contract: added to token embeddings."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from posenc.contracts.axes import axes_of
from posenc.positions import check_positions, sequence

__all__ = ["AdditiveEncoding", "add_encoding"]


@runtime_checkable
class AdditiveEncoding(Protocol):
    """Added to token embeddings: `[B, T, C] -> [B, T, C]`.

    One that reads several coordinates says so with `num_axes`, one that takes real positions with
    `real_positions`; without them a position is one integer.
    """

    def encode(self, positions: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor: ...


def add_encoding(encoding: AdditiveEncoding, x: Tensor, positions: Tensor | None) -> Tensor:
    """`x + encoding.encode(positions)`, summed in float32 or wider and rounded once."""
    dim: int = encoding.dim  # pyright: ignore[reportAttributeAccessIssue]
    if x.ndim != 3 or x.shape[-1] != dim or not x.is_floating_point():
        raise ValueError(
            f"{type(encoding).__name__} adds to floating embeddings [B, T, {dim}], "
            f"got {x.dtype} {list(x.shape)}"
        )
    axes, real = axes_of(encoding), bool(getattr(encoding, "real_positions", False))
    if positions is None and axes > 1:
        raise ValueError(
            f"{type(encoding).__name__} reads positions with {axes} axes, [..., T, {axes}]: give "
            "them (posenc.positions.grid makes them for an image)"
        )
    if positions is None:
        positions = sequence(x.shape[1], device=x.device)
    positions = check_positions(positions, num_tokens=x.shape[1], num_axes=axes, real=real)
    values = encoding.encode(positions)
    return (x.to(torch.promote_types(x.dtype, values.dtype)) + values).to(x.dtype)
