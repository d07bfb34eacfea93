"""Sandwich: the part of sinusoidal attention that depends on distance alone, without parameters.

Chi et al. 2022, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
Analysis", arXiv 2212.10356, section 5: the inner product of two sinusoids, compressed per head.
"""

from typing import Any

import torch
from torch import Tensor

from posenc.contracts import LogitBias
from posenc.frequencies import check_base, host_for, widest
from posenc.positions.checks import can_look

__all__ = ["Sandwich"]

WIDEST = 4  # places in a table of distances for each one asked for
EXACT = 1 << 53  # below it, every integer is a float64


class Sandwich(LogitBias):
    """`H / (8h) · Σ_i cos((q_pos − k_pos) · base^(−2i/width))` for heads h = 1 … H.

    >>> attention(q, k, v, scheme=Scheme(bias=Sandwich(12)))

    `width` is the d̄ of the paper, the width of the sinusoids: i runs over its width / 2 pairs. It
    need not be the width of the model. The sum is largest at distance 0 and the same both ways. That
    largest value cancels in softmax: the fused paths leave it out, for it would cost five bits.
    """

    by_distance = True

    def __init__(self, num_heads: int, *, width: int = 128, base: float = 10_000.0) -> None:
        super().__init__(num_heads)
        if width < 2 or width % 2:
            raise ValueError(f"width must be even and at least 2, got {width}")
        check_base(base)
        self.width, self.base = width, base
        self._per_radian = [float(base) ** (2 * i / width) for i in range(width // 2)]
        largest = width // 2 * num_heads / 8  # of head 1, at distance 0
        self.constant = tuple(largest / (head + 1) for head in range(num_heads))

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        host, device = host_for(q_pos.device), q_pos.device
        distance = (q_pos - k_pos).to(host).double()
        total = torch.zeros_like(distance)
        for per_radian in self._per_radian:
            total = total + torch.cos(distance / per_radian)  # never [.., Q, K, width / 2]
        total = total.to(device, widest(device))
        return total * self.num_heads / (8 * (head + 1))

    def _of_distances(self, head: Tensor, distances: Tensor) -> Tensor:
        """By the sum of angles, where distances lie close: cos(a + b) = cos a cos b − sin a sin b.

        A distance is a multiple a of `step` and a rest b, so n distances take about √n of each and
        one product of matrices instead of n cosines for each pair.
        """
        if not can_look(distances) or distances.is_floating_point() or not distances.numel():
            return self.value(head, distances, torch.zeros_like(distances))
        least, most = (int(x) for x in distances.aminmax())
        if most - least > WIDEST * distances.numel() or max(-least, most) >= EXACT:
            return self.value(head, distances, torch.zeros_like(distances))
        step = 1 << ((most - least).bit_length() // 2)
        exact: Any = {"dtype": torch.float64, "device": distances.device}
        per_radian = torch.tensor(self._per_radian, **exact)[:, None]
        a = torch.arange(least, most + 1, step, **exact) / per_radian
        b = torch.arange(step, **exact) / per_radian
        table = a.cos().T @ b.cos() - a.sin().T @ b.sin()
        total = table.flatten()[distances.long() - least]
        return total * self.num_heads / (8 * (head + 1))

    def extra_repr(self) -> str:
        return f"{self.num_heads}, width={self.width}, base={self.base}"
