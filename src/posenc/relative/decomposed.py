"""Decomposed 2-D relative positions: a vector of the row offset and one of the column offset.

Li et al. 2021, "MViTv2", arXiv 2112.01526, section 4.1, eq. 4; ViTDet (arXiv 2203.16527) and SAM
(arXiv 2304.02643) without its pooling.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.contracts import Block, RelativeKeyValue, rows
from posenc.positions import check_ints, check_range, check_window

__all__ = ["Decomposed"]


class Decomposed(RelativeKeyValue):
    """`q · R_row[Δrow] + q · R_column[Δcolumn]` joins the scaled logits, Δ = q_pos − k_pos.

    >>> relative = Decomposed(64, window=(14, 14))                # SAM's windows
    >>> cells = posenc.positions.grid(14, 14)                     # [196, 2]
    >>> attention(q, k, v, scheme=Scheme(relative=relative), q_pos=cells, k_pos=cells, mask=None)
    >>> larger = relative.resized((64, 64))                       # linear, as SAM for other images

    Row r of `row_vectors` `[2h − 1, head_dim]` is the offset r − (h − 1), and so for
    `column_vectors` `[2w − 1, head_dim]`; all heads share them. As in the released code of all three
    the softmax scale acts on q·k alone; the paper divides the whole sum.

    h + w vectors for the h · w · h · w pairs of cells. Offsets that do not fit the window are an
    error. Raises ValueError for sizes below 1.
    """

    num_axes = 2
    scaled = False

    def __init__(self, head_dim: int, *, window: int | tuple[int, int]) -> None:
        super().__init__()
        check_ints(head_dim=head_dim)
        if head_dim < 1:
            raise ValueError(f"head_dim must be positive, got {head_dim}")
        self.head_dim, self.window = head_dim, check_window(window)
        self.row_vectors, self.column_vectors = (
            nn.Parameter(torch.empty(2 * side - 1, head_dim)) for side in self.window
        )
        for table in self.parameters():
            nn.init.trunc_normal_(table, std=0.02)

    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        q_pos, k_pos = (rows(x, 2)[:, None] for x in (block.q_pos, block.k_pos))
        offset = q_pos[:, :, :, None] - k_pos[:, :, None]  # [B|1, 1, Q, K, 2]
        terms = zip(("row", "column"), (self.row_vectors, self.column_vectors), strict=True)
        logits = q.new_zeros(())
        for axis, (name, table) in enumerate(terms):
            reach, along = self.window[axis] - 1, offset[..., axis]
            check_range(along, -reach, reach, name=f"{name} offsets in a side of {reach + 1}")
            per_offset = q @ table.to(q.dtype).T  # [B, H, Q, 2 · side − 1]
            index = (along + reach).expand(*q.shape[:2], -1, -1)
            logits = logits + per_offset.gather(-1, index)
        return logits

    def resized(self, window: int | tuple[int, int]) -> "Decomposed":
        """New tables for another window, linear between the old vectors, half-pixel centres."""
        new = Decomposed(self.head_dim, window=window).to(self.row_vectors)
        for old, made in zip(self.parameters(), new.parameters(), strict=True):
            table = old.detach().double().T[None]
            size = made.shape[0]
            resized = F.interpolate(table, size=size, mode="linear", align_corners=False)[0].T
            made.data.copy_(resized)
        return new

    def extra_repr(self) -> str:
        return f"{self.head_dim}, window={self.window}"
