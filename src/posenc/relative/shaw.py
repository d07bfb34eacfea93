"""Relative position representations: learned vectors on keys and on values.

Shaw et al. 2018, arXiv 1803.02155, eq. 3 and 4, with distances clipped at `max_distance` (eq. 6).
"""

import torch
from torch import Tensor, nn

from posenc.contracts import RelativeKeyValue, rows

__all__ = ["Shaw"]


class Shaw(RelativeKeyValue):
    """`q · a_K[clip(k_pos − q_pos)]` joins the logits, `Σ weight · a_V[clip(…)]` the values.

    >>> attention(q, k, v, scheme=Scheme(relative=Shaw(64, max_distance=16)))

    Tables are `[2·max_distance + 1, head_dim]`, shared by all heads as in the paper. Queries meet the
    table, not a gathered `[T, T, head_dim]`: the extra memory is O(T · max_distance) a head.
    """

    def __init__(self, head_dim: int, *, max_distance: int, values: bool = True) -> None:
        super().__init__()
        if head_dim < 1 or max_distance < 1:
            raise ValueError(
                f"head_dim and max_distance must be positive, got {head_dim} and {max_distance}"
            )
        self.head_dim, self.max_distance = head_dim, max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))
        self.values = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim)) if values else None
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def key_logits(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        per_offset = q @ self.keys.to(q.dtype).T  # [B, H, Q, 2k+1]
        index = self._index(q_pos, k_pos).expand(*q.shape[:2], -1, -1)
        return per_offset.gather(-1, index)

    def value_sum(self, weights: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor | None:
        if self.values is None:
            return None
        index = self._index(q_pos, k_pos).expand_as(weights)
        per_offset = weights.new_zeros(*weights.shape[:-1], 2 * self.max_distance + 1)
        per_offset = per_offset.scatter_add(-1, index, weights)
        return per_offset @ self.values.to(weights.dtype)

    def _index(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        relative = rows(k_pos)[:, None, None, :] - rows(q_pos)[:, None, :, None]
        return relative.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def extra_repr(self) -> str:
        return (
            f"{self.head_dim}, max_distance={self.max_distance}, values={self.values is not None}"
        )
