"""Relative position representations: learned vectors on keys and on values.

Shaw et al. 2018, arXiv 1803.02155, eq. 3 and 4, with distances clipped at `max_distance` (eq. 6).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from posenc.contracts import Block, RelativeKeyValue
from posenc.positions import check_ints
from posenc.relative.distances import clipped_logits, clipped_sums, from_keys

__all__ = ["Shaw"]


class Shaw(RelativeKeyValue):
    """`q · a_K[clip(k_pos − q_pos)]` joins the logits, `Σ weight · a_V[clip(…)]` the values.

    >>> attention(q, k, v, scheme=Scheme(relative=Shaw(64, max_distance=16)))
    >>> Shaw(64, max_distance=(64, 8), values=False)  # 64 back, 8 ahead: Wav2Vec2-BERT
    >>> Shaw(96, max_distance=4, outside="zero")      # nothing beyond the window: VITS
    >>> Shaw(64, max_distance=511, values=False, key_query=True)  # BERT's relative_key_query

    Row r of a table is the offset r − past, so tables are `[past + 1 + future, head_dim]`, shared
    by all heads as in the paper; with `num_heads` each head has its own, `[H, rows, head_dim]`.
    Code that counts q_pos − k_pos (BERT, SpeechT5) stores the same rows in reverse:
    `weight.flip(0)`. `key_query` adds `k · a_K[…]`.

    Queries meet the table, not a gathered `[T, T, head_dim]`: the extra memory is O(T · rows) a
    head.
    """

    heads = slice(None)

    def __init__(
        self,
        head_dim: int,
        *,
        max_distance: int | tuple[int, int],
        values: bool = True,
        num_heads: int | None = None,
        outside: Literal["clip", "zero"] = "clip",
        key_query: bool = False,
    ) -> None:
        super().__init__()
        check_ints(head_dim=head_dim, num_heads=head_dim if num_heads is None else num_heads)
        reach = _sides(max_distance)
        if head_dim < 1 or len(reach) != 2 or min(reach) < 0 or max(reach) < 1:
            raise ValueError(
                "head_dim and max_distance (one number, or those after and before the query) must be "
                f"positive, got {head_dim} and {max_distance}"
            )
        if outside not in ("clip", "zero"):
            raise ValueError(f"outside must be 'clip' or 'zero', got {outside!r}")
        if num_heads is not None and num_heads < 1:
            raise ValueError(f"num_heads must be positive, or None for shared, got {num_heads}")
        self.head_dim, self.max_distance, self.num_heads = head_dim, max_distance, num_heads
        self.outside, self.key_query, self.adds_values = outside, key_query, values
        self._low = -reach[0] - (outside == "zero")  # the offset of the first row that is read
        heads = () if num_heads is None else (num_heads,)
        shape = (*heads, reach[0] + 1 + reach[1], head_dim)
        self.keys = nn.Parameter(torch.empty(shape))
        self.values = nn.Parameter(torch.empty(shape)) if values else None
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        table = self._rows(self.keys, q.dtype).mT
        logits = clipped_logits(q @ table, self._low, block)  # [B, H, Q, rows] -> [B, H, Q, K]
        if self.key_query:  # seen from the keys, offsets have the other sign
            low = 1 - self._low - table.shape[-1]
            logits = logits + from_keys(
                k, block, lambda keys, block: clipped_logits((keys @ table).flip(-1), low, block)
            )
        return logits

    def value_sum(self, weights: Tensor, block: Block) -> Tensor | None:
        if self.values is None:
            return None
        table = self._rows(self.values, weights.dtype)
        return clipped_sums(weights, self._low, table.shape[-2], block) @ table

    def _rows(self, table: Tensor, dtype: torch.dtype) -> Tensor:
        """The table in `dtype`; where nothing counts outside, with a row of zeros at both ends."""
        table = (table if self.num_heads is None else table[self.heads]).to(dtype)
        return nn.functional.pad(table, (0, 0, 1, 1)) if self.outside == "zero" else table

    def extra_repr(self) -> str:
        told = f"{self.head_dim}, max_distance={self.max_distance}, values={self.adds_values}"
        told += "" if self.num_heads is None else f", num_heads={self.num_heads}"
        told += "" if self.outside == "clip" else f", outside={self.outside!r}"
        return told + (", key_query=True" if self.key_query else "")


def _sides(max_distance: int | tuple[int, int]) -> tuple[int, ...]:
    """How far the vectors of keys after and before the query go."""
    pair = isinstance(max_distance, tuple | list)
    sides = tuple(max_distance) if isinstance(max_distance, tuple | list) else (max_distance,) * 2
    for side in sides:
        check_ints(**{"a side of max_distance" if pair else "max_distance": side})
    return sides
