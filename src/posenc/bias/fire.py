"""FIRE: a learned function of the distance, relative to how much the query can see.

Li et al. 2023, "Functional Interpolation for Relative Positions Improves Long Context
Transformers", arXiv 2310.04418, section 3 (eq. 4 and 5) and the released code.
"""

import math

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias
from posenc.frequencies import full_precision
from posenc.positions import check_ints
from posenc.positions.checks import is_recorded

__all__ = ["Fire"]

LEAST_PAIRS = 1024  # whose hidden units are made at once
PARTS = 8  # of larger calls, at least
EPS = 1e-6  # in the denominator, as released: it keeps position 0 finite where the threshold is 0


class Fire(LogitBias):
    """`f(ψ(q_pos − k_pos) / ψ(max(L, q_pos)))` with `ψ(x) = ln(1 + |c|·x)` and f a small MLP.

    >>> attention(q, k, v, scheme=Scheme(bias=Fire(12)))

    c and the threshold L learn (L as a factor of its start, as released), and the MLP: one hidden
    layer of `width` units, one output a head. Up to L the bias depends on distance alone; past it
    the query's own position enters, so it has no per-distance form and counts positions from 0.
    For decoders only: a query's own position says how much it sees, which is not so where it sees
    the future. Attention without a causal mask is an error.
    """

    causal_only = True

    def __init__(
        self,
        num_heads: int,
        *,
        width: int = 32,
        initial_c: float = 0.1,
        initial_threshold: float = 512.0,
    ) -> None:
        super().__init__(num_heads)
        check_ints(width=width)
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        starts = {"initial_c": initial_c, "initial_threshold": initial_threshold}
        for name, start in starts.items():
            if not math.isfinite(start) or start <= 0:
                raise ValueError(f"{name} must be positive and finite, got {start}")
        self.width, self.initial_c, self.initial_threshold = width, initial_c, initial_threshold
        self.c = nn.Parameter(torch.tensor(float(initial_c)))
        self.threshold_factor = nn.Parameter(torch.tensor(1.0))
        self.hidden = nn.Linear(1, width)
        self.out = nn.Linear(width, num_heads)

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        share = self._share(q_pos, k_pos)
        mixed = self.out.bias.to(share.dtype)[head]
        for start in range(0, self.width, self.num_heads):  # never larger than the bias itself
            units = slice(start, start + self.num_heads)
            weight, offset = self.hidden.weight[units, 0], self.hidden.bias[units]
            hidden = torch.relu(share[..., None] * weight.to(share.dtype) + offset.to(share.dtype))
            out = self.out.weight.to(share.dtype)[head, units]
            with full_precision(q_pos.device):
                mixed = mixed + torch.einsum("...w,...w->...", hidden, out)
        return mixed

    def _share(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The distance by what the query can see, in float32 or wider."""
        wide = torch.promote_types(self.c.dtype, torch.float32)
        c, factor = self.c.to(wide).abs(), self.threshold_factor.to(wide).abs()
        seen = torch.maximum(q_pos.to(wide), factor * self.initial_threshold)
        distance = (q_pos - k_pos).abs().to(wide)
        share = torch.log1p(c * distance) / (torch.log1p(c * seen) + EPS)
        return share

    def _of_pairs(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """All heads in one product, some pairs at a time, so that hidden units stay few."""
        if torch.compiler.is_compiling() or is_recorded():  # parts would bound a graph's lengths
            return self.value(head, q_pos, k_pos)
        share = self._share(q_pos, k_pos)
        weight, offset, out, start = (
            x.to(share.dtype)
            for x in (self.hidden.weight, self.hidden.bias, self.out.weight, self.out.bias)
        )
        flat = share.flatten()
        parts = max(PARTS, self.width // self.num_heads)  # hidden units no more than the bias
        made = []
        with full_precision(q_pos.device):
            for part in flat.split(max(LEAST_PAIRS, flat.numel() // parts)):
                hidden = torch.relu(torch.addcmul(offset[:, None], weight, part))
                made.append(torch.addmm(start[:, None], out, hidden))
        return torch.cat(made, 1).unflatten(1, share.shape).squeeze(2).movedim(0, 1)

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, width={self.width}, initial_c={self.initial_c}, "
            f"initial_threshold={self.initial_threshold}"
        )
