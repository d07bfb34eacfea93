"""What the rotary forms share: angles that read several axes, and what may be wrapped."""

import torch
from torch import Tensor

from posenc.contracts import rows
from posenc.positions import check_positions
from posenc.rotary.rope import Rope

__all__ = ["angles_by_axis", "check_rope", "rows_with_axes"]


def rows_with_axes(positions: Tensor, num_axes: int, *, real: bool = False) -> Tensor:
    """Checked positions `[T, A]` or `[B, T, A]` as `[B|1, T, A]`."""
    num_tokens = positions.shape[-2] if positions.ndim > 1 else positions.numel()
    checked = check_positions(positions, num_tokens=num_tokens, num_axes=num_axes, real=real)
    return rows(checked, num_axes)


def angles_by_axis(positions: Tensor, axis_of_pair: tuple[int, ...], inv_freq: Tensor) -> Tensor:
    """`[..., T, A]` positions -> `[..., T, pairs]`, pair i turning with coordinate axis_of_pair[i].

    A product per pair, never a sum with zeros: float32 angles stay bit-equal to other code's.
    """
    axis = torch.tensor(axis_of_pair, device=positions.device)
    return positions[..., axis].to(inv_freq.dtype) * inv_freq


def check_rope(rope: object, form: str) -> None:
    """Raise unless `rope` is a Rope: of another form, amplitudes or axes would be lost in silence."""
    if not isinstance(rope, Rope):
        raise TypeError(f"{form} changes a Rope: {form}(Rope(head_dim), ...), got {rope!r}")
