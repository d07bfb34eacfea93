"""Rotary positions times a learned scale: how fast a unit of position turns is fitted to the data.

The scale multiplies real-valued positions, so its gradient is d angle / d scale = position · inv_freq
(RoFormer, arXiv 2104.09864, section 3.2.2, with p replaced by scale · p). An integer cast on the way
would make that gradient zero: there is none.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from posenc.contracts import RotaryTables, Rotation, Table, rows, table_from_angles
from posenc.frequencies import Frequencies, angles, host_for
from posenc.positions import check_positions
from posenc.rotary.pair import tables_of
from posenc.rotary.shared import check_rope

__all__ = ["LearnedScaleRope"]


class LearnedScaleRope(nn.Module):
    """`rope` at positions `scale · p`, with `scale` a learned positive-initialised scalar.

    >>> rotary = LearnedScaleRope(Rope(64))
    >>> tables = rotary.tables(positions, positions)  # integers or reals; gaps are fine

    `blend=w` mixes w · (unscaled rotation) + (1 − w) · (scaled rotation), with a fixed weight.
    A blend of two rotations is shorter than either where they disagree, so it does not keep norms;
    without a blend this is an exact rotation.
    """

    real_positions = True

    def __init__(
        self, rope: Rotation, *, initial_scale: float = 1.0, blend: float | None = None
    ) -> None:
        super().__init__()
        if not initial_scale > 0 or not initial_scale < float("inf"):
            raise ValueError(f"initial_scale must be positive and finite, got {initial_scale}")
        if blend is not None and not 0 <= blend <= 1:
            raise ValueError(f"blend is the weight of the unscaled rotation in [0, 1], got {blend}")
        check_rope(rope, "LearnedScaleRope")
        self.rope, self.blend = rope, blend
        self.scale = nn.Parameter(torch.tensor(float(initial_scale)))

    @property
    def head_dim(self) -> int:
        return self.rope.head_dim

    def frequencies(self, device: torch.device | None = None) -> Frequencies:
        """Those of the rope, before the scale."""
        return self.rope.frequencies(device)

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table:
        """cos and sin at `scale · positions`, differentiable in the scale and in real positions."""
        num_tokens = positions.shape[-1]
        positions = rows(check_positions(positions, num_tokens=num_tokens, real=True))
        host = host_for(positions.device)
        frequencies = self.rope.frequencies(host)
        exact = positions.to(host, torch.float64)
        scaled = exact * self.scale.to(host, torch.float64)
        factor, device = frequencies.attention_factor, positions.device
        table = table_from_angles(
            angles(scaled, frequencies.inv_freq), self.rope, factor, dtype, device
        )
        if self.blend is None:
            return table
        plain = table_from_angles(
            angles(exact, frequencies.inv_freq), self.rope, factor, dtype, device
        )
        cos, sin = (
            self.blend * unscaled + (1 - self.blend) * turned
            for unscaled, turned in ((plain.cos, table.cos), (plain.sin, table.sin))
        )
        return replace(table, cos=cos, sin=sin)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        return tables_of(self, q_pos, k_pos, dtype)

    def extra_repr(self) -> str:
        return f"{self.rope}, blend={self.blend}"
