"""ALiBi: logits lowered in proportion to distance, with a fixed slope per head.

Press et al. 2022, "Train Short, Test Long", arXiv 2108.12409, section 3, and its released rule for
head counts that are no power of two.
"""

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias
from posenc.frequencies import host_for

__all__ = ["Alibi", "slopes"]


def slopes(num_heads: int) -> list[float]:
    """The published slopes: 2**(-8/P), 2**(-16/P), … for the P heads of the power of two below.

    The remaining heads take every other slope of the next power, in this (non-monotone) order:
    checkpoints were trained with it.

    >>> slopes(6)
    [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    power = 1 << (num_heads.bit_length() - 1)
    first = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-4.0 * (2 * h + 1) / power) for h in range(num_heads - power)]
    return first + between


class Alibi(LogitBias):
    """`−slope[head] · (q_pos − k_pos)` added to the logits.

    >>> attention(q, k, v, scheme=Scheme(bias=Alibi(12)))

    Causal by default: zero at the query's own position and for future keys (which a causal mask
    hides). `symmetric=True` takes |q_pos − k_pos| for encoders. `learned=True` starts from the
    published slopes and learns their logarithms, so that they stay positive.
    """

    by_distance = True
    falls = True

    def __init__(self, num_heads: int, *, symmetric: bool = False, learned: bool = False) -> None:
        super().__init__(num_heads)
        self.symmetric, self.learned = symmetric, learned
        start = torch.tensor(slopes(num_heads), dtype=torch.float64)
        self.log_slopes = nn.Parameter(start.log().float()) if learned else None

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """`[H]`, float64 where fixed."""
        if self.log_slopes is not None:
            wide = torch.promote_types(self.log_slopes.dtype, torch.float32)
            return self.log_slopes.to(wide).exp()  # distances would follow it into bfloat16
        return torch.tensor(slopes(self.num_heads), dtype=torch.float64, device=device)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        distance = q_pos - k_pos
        distance = distance.abs() if self.symmetric else distance.clamp(min=0)
        per_head = self.slopes(host_for(distance.device)).to(distance.device)[head]
        return -per_head * distance

    def extra_repr(self) -> str:
        return f"{self.num_heads}, symmetric={self.symmetric}, learned={self.learned}"
