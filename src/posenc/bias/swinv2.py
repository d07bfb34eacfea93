"""Swin v2's continuous bias: a small MLP of log-spaced offsets, so that windows can change.

Liu et al. 2022, "Swin Transformer V2", arXiv 2111.09883, section 3.3, eq. 3 and 4, and the released
code: coordinates of up to 8, 16 · sigmoid of the output.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.bias.windows import offset_rows
from posenc.contracts import LogitBias
from posenc.frequencies import full_precision
from posenc.positions import check_window

__all__ = ["SwinV2Bias"]

LARGEST = 16.0  # the bias lies between 0 and this


class SwinV2Bias(LogitBias):
    """`16 · sigmoid(MLP(x))`, x = sign(d) · log2(1 + 8·|d|/(side − 1)) / 3 for each offset d.

    >>> bias = SwinV2Bias(4, window=(7, 5))
    >>> cells = posenc.positions.grid(7, 5)           # [35, 2]
    >>> attention(q, k, v, scheme=Scheme(bias=bias), q_pos=cells, k_pos=cells, mask=None)
    >>> larger = bias.at_window(14)                   # the same MLP, measured by the 7 × 5 window

    Offsets are measured by `pretrained_window`, or the window itself. A side of 1 has offset 0 and
    coordinate 0. The MLP is evaluated once for each offset, not for each pair of cells. Swin v2's
    cosine attention and its learned temperature belong to the model.
    """

    num_axes = 2

    def __init__(
        self,
        num_heads: int,
        *,
        window: int | tuple[int, int],
        pretrained_window: int | tuple[int, int] | None = None,
        width: int = 512,
    ) -> None:
        super().__init__(num_heads)
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.window, self.width = check_window(window), width
        self.pretrained_window = None
        if pretrained_window is not None:
            self.pretrained_window = check_window(pretrained_window, "pretrained_window")
            shrinks = zip(self.window, self.pretrained_window, strict=True)
            if any(side > 1 and by == 1 for side, by in shrinks):
                raise ValueError(
                    f"pretrained_window {self.pretrained_window} measures no offsets of a window "
                    f"{self.window}: a side of 1 has none"
                )
        self.hidden = nn.Linear(2, width)
        self.out = nn.Linear(width, num_heads, bias=False)

    def coordinates(self, device: torch.device | None = None) -> Tensor:
        """`[(2h−1)(2w−1), 2]` float64, in the order of a table of offsets."""
        axes = []
        for side, by in zip(self.window, self.pretrained_window or self.window, strict=True):
            steps = torch.arange(1 - side, side, device="cpu").double()
            share = steps / max(by - 1, 1)  # a side of 1 has the offset 0 alone
            axes.append(share.sign() * torch.log2(1 + 8 * share.abs()) / 3)
        return torch.cartesian_prod(*axes).to(device)

    def table(self) -> Tensor:
        """`[(2h−1)(2w−1), H]`: the bias of each offset, in float32 or wider."""
        weight = self.hidden.weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        x = self.coordinates().to(wide).to(weight.device)
        with full_precision(weight.device):
            hidden = F.linear(x, weight.to(wide), self.hidden.bias.to(wide)).relu()
            out = F.linear(hidden, self.out.weight.to(wide))
        return LARGEST * out.sigmoid()

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.table()[offset_rows(q_pos - k_pos, self.window), head]

    def at_window(self, window: int | tuple[int, int]) -> "SwinV2Bias":
        """The same MLP for another window, with offsets measured as they were in training."""
        new = SwinV2Bias(
            self.num_heads,
            window=window,
            pretrained_window=self.pretrained_window or self.window,
            width=self.width,
        ).to(self.hidden.weight)
        new.load_state_dict(self.state_dict())
        return new

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, window={self.window}, pretrained_window={self.pretrained_window}, "
            f"width={self.width}"
        )
