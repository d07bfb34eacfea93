"""What the sinusoids share: the order of sines and cosines, and the checks of their options."""

from typing import Literal

import torch
from torch import Tensor

from posenc.positions import check_positions

__all__ = ["CHOICES", "First", "Layout", "check_choices", "check_dim", "coordinates", "waves"]

Layout = Literal["alternating", "concatenated"]
First = Literal["sine", "cosine"]

CHOICES: dict[str, tuple[str, str]] = {
    "denominator": ("d", "d-2"),
    "layout": ("alternating", "concatenated"),
    "first": ("sine", "cosine"),
}


def waves(angle: Tensor, layout: Layout, first: First) -> Tensor:
    """`[..., pairs]` angles -> `[..., 2 · pairs]`: sines and cosines in turn, or in two blocks."""
    parts = (angle.sin(), angle.cos()) if first == "sine" else (angle.cos(), angle.sin())
    if layout == "alternating":
        return torch.stack(parts, -1).flatten(-2)
    return torch.cat(parts, -1)


def coordinates(positions: Tensor, num_axes: int, *, real: bool = False) -> Tensor:
    """Checked positions `[T, A]` or `[B, T, A]`; one axis, `[T]` or `[B, T]`, gets its dimension."""
    token_dim = -1 if num_axes == 1 else -2
    num_tokens = positions.shape[token_dim] if positions.ndim >= -token_dim else positions.numel()
    positions = check_positions(positions, num_tokens=num_tokens, num_axes=num_axes, real=real)
    return positions[..., None] if num_axes == 1 else positions


def check_choices(encoding: object) -> None:
    """Raise unless every option that is a word is one of its words."""
    for name, (one, other) in CHOICES.items():
        value = getattr(encoding, name, one)
        if value not in (one, other):
            raise ValueError(f"{name} must be {one!r} or {other!r}, got {value!r}")


def check_dim(name: str, value: object) -> None:
    """Raise unless a width is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive int, got {value!r}")
