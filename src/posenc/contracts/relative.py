"""The fourth contract: relative positions as vectors on keys and values."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from posenc.contracts.axes import rows

__all__ = ["Block", "RelativeKeyValue"]


@dataclass(frozen=True, eq=False)
class Block:
    """The queries and keys that meet in one call: where they stand, who sees whom, at which scale.

    `first` holds the positions of the first query and the first key where all of them follow one by
    one: then logits by distance are a view, not a lookup.
    """

    q_pos: Tensor  # [Q] or [B, Q]; coordinates are a last dimension, where vectors read several
    k_pos: Tensor  # [K] or [B, K]
    allowed: Tensor | None = None  # [B|1, 1, Q, K] bool; None where every key is seen
    scale: float = 1.0  # what attention multiplies q·k by
    first: tuple[int, int] | None = None
    start: tuple[int, int] = (0, 0)  # the first query and key, counted in the whole call
    made: Any = None  # what `RelativeKeyValue.prepare` made for the whole call
    products: Tensor | None = None  # q·k [B, H, Q, K], for vectors that ask for it

    def offsets(self) -> Tensor:
        """k_pos − q_pos, `[B|1, 1, Q, K]`."""
        return rows(self.k_pos)[:, None, None, :] - rows(self.q_pos)[:, None, :, None]


class RelativeKeyValue(nn.Module, ABC):
    """Relative positions as vectors: they meet queries, keys and the attention weights."""

    head_dim: int
    num_heads: int | None = None  # None: the vectors are shared by all heads
    heads: slice | None = None  # which of its heads it reads, where a rank may read some alone
    num_axes: int = 1  # coordinates of one position
    scaled: bool = True  # whether the softmax scale multiplies its logits, as it does q·k
    adds_values: bool = False  # whether value_sum gives anything
    reads_products: bool = False  # whether key_logits depends on q·k itself

    @abstractmethod
    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        """Logits `[B, H, Q, K]`: beside q·k before the softmax scale, or after it if not `scaled`."""

    def prepare(self, whole: Block, dtype: torch.dtype) -> Any:
        """What all blocks of one call share, made once: projected vectors, sinusoids, …"""
        del whole, dtype
        return None

    @final
    def prepared(self, block: Block, dtype: torch.dtype) -> Block:
        """The block with what `prepare` makes; one that stands alone is its own whole."""
        if block.made is not None:
            return block
        return replace(block, made=self.prepare(block, dtype), start=(0, 0))

    def value_sum(self, weights: Tensor, block: Block) -> Tensor | None:
        """`[B, H, Q, D]` to add to the weighted values, or None where values carry none."""
        del weights, block
        return None
