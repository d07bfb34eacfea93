"""A bias of each coordinate, summed: text order and boxes on a page, each with buckets of its own.

Xu et al. 2020, "LayoutLMv2", arXiv 2012.14740, section 2.2, eq. 3 (spatial-aware self-attention).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias

__all__ = ["AxesBias"]


class AxesBias(LogitBias):
    """`scale · Σ_a bias_a(q_pos[a], k_pos[a])` over the coordinates of positions `[..., T, axes]`.

    >>> order = T5Bias(12)                                         # LayoutLMv2 and v3
    >>> left, bottom = (T5Bias(12, num_buckets=64, max_distance=256) for _ in range(2))
    >>> bias = AxesBias([order, left, bottom])
    >>> at = torch.stack((index, boxes[..., 0], boxes[..., 3]), -1)  # [B, T, 3]
    >>> attention(q, k, v, scheme=Scheme(bias=bias), q_pos=at, k_pos=at, mask=None)

    Each part reads one coordinate. `scale` multiplies the sum: LayoutLMv3 divides it by √head_dim.
    """

    def __init__(self, biases: Sequence[LogitBias], *, scale: float = 1.0) -> None:
        heads = [bias.num_heads for bias in biases]
        if len(heads) < 2 or len(set(heads)) != 1:
            raise ValueError(
                f"biases must be two or more for one number of heads, got heads {heads}"
            )
        unfit = [bias for bias in biases if bias.num_axes != 1 or bias.causal_only]
        if unfit:
            raise ValueError(
                f"each of the biases must read one coordinate and both directions, got {unfit[0]!r}"
            )
        if not math.isfinite(scale) or scale <= 0:
            raise ValueError(f"scale must be positive and finite, got {scale}")
        super().__init__(heads[0])
        self.num_axes, self.scale = len(heads), scale
        self.biases = nn.ModuleList(biases)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        total = torch.zeros((), device=q_pos.device)
        for axis, bias in enumerate(self.biases):
            assert isinstance(bias, LogitBias)
            total = total + bias.value(head, q_pos[..., axis], k_pos[..., axis])
        return total * self.scale

    def extra_repr(self) -> str:
        return f"{self.num_heads}, scale={self.scale}"
