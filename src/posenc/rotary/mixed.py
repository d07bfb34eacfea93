"""Mixed rotary: every pair turns with both coordinates, at two learned speeds.

Heo et al. 2024, "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, section 3.2
(RoPE-Mixed): angle = row · f_row + column · f_column, so diagonals can be told apart too.
"""

import math

import torch
from torch import Tensor, nn

from posenc.contracts import Pairing, RotaryTables, Table
from posenc.frequencies import check_base, geometric, host_for
from posenc.rotary.shared import rows_with_axes

__all__ = ["MixedRope"]


class MixedRope(nn.Module):
    """Rotation by (row, column) positions with `weight` `[2, pairs]` or `[2, H, pairs]` learned.

    >>> rotary = MixedRope(64, num_heads=12)          # a layer's own, as published
    >>> tables = rotary.tables(cells, cells)          # cells = grid(14, 14), whole or real, [T, 2]

    Speeds start as published: `base` ** (−4i/d) for i = 0 … d/4 − 1, pointing in a random direction
    of the plane for each head, and once more at a right angle to it. Without `num_heads` all heads
    share them (LightGlue's keypoints).
    """

    num_axes = 2
    real_positions = True
    heads = slice(None)  # which of them a rank reads

    def __init__(
        self,
        head_dim: int,
        *,
        num_heads: int | None = None,
        base: float = 10.0,
        pairing: Pairing = "adjacent",
    ) -> None:
        super().__init__()
        if not isinstance(head_dim, int) or head_dim < 4 or head_dim % 4:
            raise ValueError(f"head_dim must be a positive multiple of 4, got {head_dim!r}")
        if num_heads is not None and num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, or None, got {num_heads!r}")
        if pairing not in ("half", "adjacent"):
            raise ValueError(f"pairing must be 'half' or 'adjacent', got {pairing!r}")
        check_base(base)
        self.head_dim, self.num_heads, self.base = head_dim, num_heads, base
        self.pairing: Pairing = pairing
        shape = (head_dim // 2,) if num_heads is None else (num_heads, head_dim // 2)
        self.weight = nn.Parameter(torch.empty(2, *shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the directions anew."""
        num_speeds = self.head_dim // 4
        speed = 1.0 / geometric(num_speeds, 2 * num_speeds, self.base).repeat(2)
        turn = 2 * math.pi * torch.rand(self.num_heads or 1, 1, dtype=torch.float64)
        right_angle = (torch.arange(2 * num_speeds) >= num_speeds) * (math.pi / 2)
        direction = turn + right_angle
        speeds = torch.stack((speed * direction.sin(), speed * direction.cos()))
        with torch.no_grad():
            self.weight.copy_(speeds.reshape(self.weight.shape))

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table:
        """cos and sin at `[T, 2]` or `[B, T, 2]` positions, differentiable in the speeds."""
        positions = rows_with_axes(positions, 2, real=True)
        host, device = host_for(positions.device), positions.device
        row, column = positions.to(host, torch.float64)[..., None].unbind(-2)
        by_row, by_column = self.weight.to(host, torch.float64)
        if self.num_heads is not None:  # [B|1, 1, T, 1] against [H, 1, pairs]
            row, column = row[:, None], column[:, None]
            by_row, by_column = (by[self.heads, None] for by in (by_row, by_column))
        angle = row * by_row + column * by_column
        cos, sin = (part.to(dtype).to(device) for part in (angle.cos(), angle.sin()))
        return Table(cos, sin, self.pairing, self.head_dim)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        """Tables of queries and keys; made once where both positions are the same tensor."""
        q = self.table(q_pos, dtype=dtype)
        k = q if k_pos is q_pos else self.table(k_pos, dtype=dtype)
        return RotaryTables(q, k, self, positions=(q_pos, k_pos))

    def extra_repr(self) -> str:
        return (
            f"{self.head_dim}, num_heads={self.num_heads}, base={self.base}, "
            f"pairing={self.pairing!r}"
        )
