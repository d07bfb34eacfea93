"""What the rotary forms share: tables of queries and keys, and angles that read several axes."""

from typing import Protocol

import torch
from torch import Tensor

from posenc.contracts import RotaryTables, Table, rows
from posenc.frequencies import Frequencies
from posenc.positions import check_positions
from posenc.rotary.rope import Rope

__all__ = ["TableMaker", "angles_by_axis", "check_rope", "rows_with_axes", "tables_of"]


class TableMaker(Protocol):
    """A rotary form whose queries and keys take the same table."""

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table: ...

    def frequencies(self, device: torch.device | None = None) -> Frequencies: ...


def tables_of(
    form: TableMaker, q_pos: Tensor, k_pos: Tensor, dtype: torch.dtype = torch.float32
) -> RotaryTables:
    """Tables of queries and keys; made once where both positions are the same tensor."""
    q = form.table(q_pos, dtype=dtype)
    k = q if k_pos is q_pos else form.table(k_pos, dtype=dtype)
    frequencies = form.frequencies()
    return RotaryTables(
        q,
        k,
        form,
        frequencies.attention_factor,
        frequencies.softmax_scale,
        (q_pos, k_pos),
    )


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
