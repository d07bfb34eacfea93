"""Contextual position encoding: the context decides what is counted.

Golovneva et al. 2024, arXiv 2405.18719, eq. 3 to 8 and the code in its appendix.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from posenc.contracts import Block, RelativeKeyValue, rows
from posenc.positions import check_ints
from posenc.positions.checks import can_look

__all__ = ["Cope"]

NEAR = 8  # times as many keys as positions are looked at first: gates are rarely below an eighth


class Cope(RelativeKeyValue):
    """`q · e[p]` joins the logits, p the sum of the gates from the key up to the query.

    >>> attention(q, k, v, scheme=Scheme(relative=Cope(64, max_positions=64)))

    The gate of a pair is sigmoid(scale · q·k), zero where the mask hides the key; p_ij is the sum
    of the gates of query i over the keys at k_j and after it, at most max_positions − 1. It is no
    integer: e[p] lies between two neighbours. `embeddings` is `[max_positions, head_dim]`, shared
    by all heads. As in the authors' code the softmax scale acts on q·k alone, in gates and
    logits.

    Gates exist for each pair, so there is no form in less memory than the logits; attention makes
    them for a block of queries at a time. What counts as "after" are positions, not places in
    storage: a rolled cache gives the same. Raises ValueError for sizes below 1.
    """

    scaled = False
    reads_products = True

    def __init__(self, head_dim: int, *, max_positions: int) -> None:
        super().__init__()
        check_ints(head_dim=head_dim, max_positions=max_positions)
        if min(head_dim, max_positions) < 1:
            raise ValueError(
                f"head_dim and max_positions must be positive, got {head_dim} and {max_positions}"
            )
        self.head_dim, self.max_positions = head_dim, max_positions
        self.embeddings = nn.Parameter(torch.zeros(max_positions, head_dim))

    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        far = self._num_counted(q, k, block)
        if far:
            near = self.key_logits(q, k[:, :, far:], _without(block, far))
            last = q @ self.embeddings[-1].to(q.dtype)
            return torch.cat((last[..., None].expand(*q.shape[:3], far), near), -1)
        positions = self.positions(q, k, block)
        per_position = q @ self.embeddings.to(q.dtype).T  # [B, H, Q, max_positions]
        below = positions.detach().floor().long()
        above = (below + 1).clamp(max=self.max_positions - 1)
        share = positions - below
        low, high = (per_position.gather(-1, index) for index in (below, above))
        return torch.lerp(low, high, share)

    def positions(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        """p of every pair, `[B, H, Q, K]` in [0, max_positions − 1]."""
        products = q @ k.mT if block.products is None else block.products
        gates = (products * block.scale).sigmoid()
        if block.allowed is not None:
            gates = gates.masked_fill(~block.allowed, 0.0)
        return _sums_from(gates, block).clamp(max=self.max_positions - 1)

    def _num_counted(self, q: Tensor, k: Tensor, block: Block) -> int:
        """How many keys at the front stand at the last position for every query, as far as the
        gates of the few after them say; 0 where that is not known."""
        far = k.shape[2] - NEAR * self.max_positions - q.shape[2]
        if far < k.shape[2] // 2 or block.first is None or not can_look(q, k):
            return 0
        seen = self.positions(q.detach(), k[:, :, far:].detach(), _without(block, far))
        return far if bool((seen[..., 0] >= self.max_positions - 1).all()) else 0

    def extra_repr(self) -> str:
        return f"{self.head_dim}, max_positions={self.max_positions}"


def _without(block: Block, num_keys: int) -> Block:
    """The block without its first keys."""
    q_first, k_first = block.first or (0, 0)
    return replace(
        block,
        k_pos=block.k_pos[..., num_keys:],
        allowed=None if block.allowed is None else block.allowed[..., num_keys:],
        first=(q_first, k_first + num_keys),
        products=None if block.products is None else block.products[..., num_keys:],
    )


def _sums_from(gates: Tensor, block: Block) -> Tensor:
    """For each key the sum over the keys at its position and after it."""
    if block.first is not None:  # positions are storage order
        return gates.flip(-1).cumsum(-1).flip(-1)
    k_pos = rows(block.k_pos).contiguous()
    ascending, order = k_pos.sort(-1)
    num_from = k_pos.shape[-1] - torch.searchsorted(ascending, k_pos)  # keys at or after each
    last_first = order.flip(-1)[:, None, None].expand_as(gates)
    sums = gates.gather(-1, last_first).cumsum(-1)
    return sums.gather(-1, (num_from - 1)[:, None, None].expand_as(gates))
