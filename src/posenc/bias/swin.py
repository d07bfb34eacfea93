"""Swin's relative bias: a learned scalar per head for each 2-D offset inside a window.

Liu et al. 2021, "Swin Transformer", arXiv 2103.14030, section 3.2 and eq. 4.
"""

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias
from posenc.positions import check_range

__all__ = ["SwinBias"]


class SwinBias(LogitBias):
    """A table `[(2h−1)(2w−1), H]` read at the (row, column) offset between query and key.

    >>> bias = SwinBias(4, window=(7, 5))
    >>> cells = posenc.positions.grid(7, 5)           # [35, 2]
    >>> attention(q, k, v, scheme=Scheme(bias=bias), q_pos=cells, k_pos=cells, mask=None)

    Rows and columns keep their own sizes, so h ≠ w is no special case. Offsets that do not fit the
    window are an error. There is no index buffer to persist.
    """

    num_axes = 2

    def __init__(self, num_heads: int, *, window: int | tuple[int, int]) -> None:
        super().__init__(num_heads)
        height, width = (window, window) if isinstance(window, int) else window
        if height < 1 or width < 1:
            raise ValueError(f"window must be (height, width) of at least 1, got {window!r}")
        self.window = (height, width)
        self.weight = nn.Parameter(torch.empty((2 * height - 1) * (2 * width - 1), num_heads))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        height, width = self.window
        offset = q_pos - k_pos
        rows, columns = offset[..., 0], offset[..., 1]
        name = f"offsets in a window of {height} × {width}"
        check_range(rows, 1 - height, height - 1, name=f"row {name}")
        check_range(columns, 1 - width, width - 1, name=f"column {name}")
        return self.weight[(rows + height - 1) * (2 * width - 1) + columns + width - 1, head]

    def extra_repr(self) -> str:
        return f"{self.num_heads}, window={self.window}"
