"""Swin's relative bias: a learned scalar per head for each 2-D offset inside a window.

Liu et al. 2021, "Swin Transformer", arXiv 2103.14030, section 3.2 and eq. 4. With `symmetric=True`
LeViT's attention bias: Graham et al. 2021, arXiv 2104.01136, section 4.2.
"""

import torch
from torch import Tensor, nn

from posenc.bias.windows import Kernel, offset_rows, resized_table
from posenc.contracts import LogitBias
from posenc.positions import check_window

__all__ = ["SwinBias"]


class SwinBias(LogitBias):
    """A table `[(2h−1)(2w−1), H]` read at the (row, column) offset between query and key.

    >>> bias = SwinBias(4, window=(7, 5))
    >>> cells = posenc.positions.grid(7, 5)           # [35, 2]
    >>> attention(q, k, v, scheme=Scheme(bias=bias), q_pos=cells, k_pos=cells, mask=None)
    >>> larger = bias.resized((14, 10))               # bicubic, a start for fine-tuning

    Rows and columns keep their own sizes, so h ≠ w is no special case. Offsets that do not fit the
    window are an error. There is no index buffer to persist. `symmetric=True` reads the absolute
    offset, `[h·w, H]`: LeViT, whose shrinking attention is a query grid with a stride.
    """

    num_axes = 2

    def __init__(
        self, num_heads: int, *, window: int | tuple[int, int], symmetric: bool = False
    ) -> None:
        super().__init__(num_heads)
        self.window, self.symmetric = check_window(window), symmetric
        height, width = self.window
        num_rows = height * width if symmetric else (2 * height - 1) * (2 * width - 1)
        self.weight = nn.Parameter(torch.empty(num_rows, num_heads))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        offset = q_pos - k_pos
        rows = offset_rows(offset, self.window)
        if self.symmetric:
            offset = offset.abs()
            rows = offset[..., 0] * self.window[1] + offset[..., 1]
        return self.weight[rows, head]

    def resized(self, window: int | tuple[int, int], *, kernel: Kernel = "bicubic") -> "SwinBias":
        """A new table for another window, interpolated from this one. Raises where symmetric."""
        if self.symmetric:
            raise ValueError("a table of absolute offsets has no published way to resize it")
        new = SwinBias(self.num_heads, window=window).to(self.weight)
        new.weight.data.copy_(resized_table(self.weight, self.window, new.window, kernel))
        return new

    def extra_repr(self) -> str:
        symmetric = ", symmetric=True" if self.symmetric else ""
        return f"{self.num_heads}, window={self.window}{symmetric}"
