"""Contextual position encoding: the context decides what is counted.

Golovneva et al. 2024, arXiv 2405.18719, eq. 3 to 8 and the code in its appendix.
"""

import torch
from torch import Tensor, nn

from posenc.contracts import Block, RelativeKeyValue, rows
from posenc.positions import check_ints

__all__ = ["Cope"]


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
        positions = self.positions(q, k, block)
        per_position = q @ self.embeddings.to(q.dtype).T  # [B, H, Q, max_positions]
        below = positions.detach().floor().long()
        above = (below + 1).clamp(max=self.max_positions - 1)
        share = positions - below
        low, high = (per_position.gather(-1, index) for index in (below, above))
        return torch.lerp(low, high, share)

    def positions(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        """p of every pair, `[B, H, Q, K]` in [0, max_positions − 1]."""
        gates = (q @ k.mT * block.scale).sigmoid()
        if block.allowed is not None:
            gates = gates.masked_fill(~block.allowed, 0.0)
        return _sums_from(gates, block).clamp(max=self.max_positions - 1)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, max_positions={self.max_positions}"


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
