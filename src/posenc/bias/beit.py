"""BEiT's relative bias: Swin's table and three more rows, for a class token before the patches.

Bao et al. 2021, "BEiT: BERT Pre-Training of Image Transformers", arXiv 2106.08254, and its released
code. Patch offsets read the table; class to patch, patch to class and class to class a row each.
"""

import torch
from torch import Tensor, nn

from posenc.bias.windows import Kernel, offset_rows, resized_table
from posenc.contracts import LogitBias
from posenc.positions import check_window

__all__ = ["BeitBias"]


class BeitBias(LogitBias):
    """A table `[(2h−1)(2w−1) + 3, H]`; the class token stands at (−1, −1).

    >>> bias = BeitBias(4, window=(7, 5))
    >>> cells = posenc.positions.with_class_token(posenc.positions.grid(7, 5))     # [36, 2]
    >>> attention(q, k, v, scheme=Scheme(bias=bias), q_pos=cells, k_pos=cells, mask=None)
    >>> larger = bias.resized((14, 10))               # bicubic; the last three rows are kept

    The last three rows are: the class token looks at a patch, a patch at the class token, the class
    token at itself. Patches count from (0, 0), so that no patch stands where the class token does.
    """

    num_axes = 2
    has_class_token = True

    def __init__(self, num_heads: int, *, window: int | tuple[int, int]) -> None:
        super().__init__(num_heads)
        self.window = height, width = check_window(window)
        num_offsets = (2 * height - 1) * (2 * width - 1)
        self.weight = nn.Parameter(torch.empty(num_offsets + 3, num_heads))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        of_query, of_key = ((pos == -1).all(-1) for pos in (q_pos, k_pos))
        either = of_query | of_key
        offset = torch.where(either[..., None], 0, q_pos - k_pos)
        num_offsets = len(self.weight) - 3
        special = num_offsets + of_key.long() + (of_query & of_key)  # +0, +1 and, for both, +2
        rows = torch.where(either, special, offset_rows(offset, self.window))
        return self.weight[rows, head]

    def resized(self, window: int | tuple[int, int], *, kernel: Kernel = "bicubic") -> "BeitBias":
        """A new table for another window; the three rows of the class token are what they were.

        `kernel="bilinear"` is what transformers' BEiT does to images of another size.
        """
        new = BeitBias(self.num_heads, window=window).to(self.weight)
        offsets, special = self.weight.data[:-3], self.weight.data[-3:]
        made = resized_table(offsets, self.window, new.window, kernel)
        new.weight.data.copy_(torch.cat((made, special)))
        return new

    def extra_repr(self) -> str:
        return f"{self.num_heads}, window={self.window}"
