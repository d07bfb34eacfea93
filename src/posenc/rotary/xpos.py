"""xPos: rotary whose pairs also decay with distance, the faster ones more.

Sun et al. 2022, "A Length-Extrapolatable Transformer", arXiv 2212.10554, section 2.1.2: queries are
multiplied by ζ**n and keys by ζ**(−m), so a score carries ζ**(n − m).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from posenc.contracts import RotaryTables, Table, rows, table_from_angles
from posenc.frequencies import angles, host_for
from posenc.positions import check_positions, check_range
from posenc.rotary.shared import OverRope

__all__ = ["XPos"]

LARGEST_AMPLITUDE = 2.0**100  # float32 ends at 2**128; keys themselves need room above


@dataclass(frozen=True)
class XPos(OverRope):
    """`rope` with amplitudes: queries times ζ**((p − origin)/scale_base), keys divided by it.

    >>> xpos = XPos(Rope(64))
    >>> tables = xpos.tables(q_pos, k_pos)            # for causal attention

    ζ of pair i is (2i/d + gamma)/(1 + gamma), for the d channels that turn. Scores do not depend on
    `origin`, but the rotated keys do, so it is part of the value and never taken from the data: keys
    cached one by one are the keys of a full forward.

    Amplitudes grow with the distance from the origin; past `reach` positions (28,000 at the
    defaults) float32 could overflow, which is an error. float16 has room for a tenth of that (2,832
    positions), and rotating float16 queries or keys farther out is an error too: rotate them in
    bfloat16 or float32. A longer context takes an origin in its middle or a larger `scale_base`.
    Keys after their query are amplified: use a causal mask.
    """

    scale_base: float = 512.0
    origin: int = 0
    gamma: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale_base", "gamma"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"XPos: {name} must be positive and finite, got {value!r}")
        if isinstance(self.origin, bool) or not isinstance(self.origin, int):
            raise ValueError(f"XPos: origin must be an int position, got {self.origin!r}")

    @property
    def reach(self) -> int:
        """How far from the origin a position may lie."""
        steepest = math.log((1 + self.gamma) / self.gamma)
        return int(self.scale_base * math.log(LARGEST_AMPLITUDE) / steepest)

    def log_decay(self, device: torch.device | None = None) -> Tensor:
        """ln ζ / scale_base of each pair, `[pairs]` in float64: what a unit of distance costs."""
        num_pairs = self.frequencies().inv_freq.numel()
        place = torch.arange(num_pairs, device=device).to(torch.float64) / num_pairs
        return ((place + self.gamma) / (1 + self.gamma)).log() / self.scale_base

    def table(
        self,
        positions: Tensor,
        *,
        side: Literal["query", "key"],
        dtype: torch.dtype = torch.float32,
    ) -> Table:
        """cos and sin times the amplitude of queries, or of keys, at `[T]` or `[B, T]` positions."""
        positions = check_positions(positions)
        low, high = self.origin - self.reach, self.origin + self.reach
        check_range(positions, low, high, name="positions of this XPos (origin ± reach)")
        host = host_for(positions.device)
        frequencies = self.frequencies(host)
        exact = rows(positions).to(host)
        exponent = angles(exact - self.origin, self.log_decay(host))
        amplitude = (exponent if side == "query" else -exponent).exp()
        turned = table_from_angles(
            angles(exact, frequencies.inv_freq),
            self,
            frequencies.attention_factor,
            torch.float64,
            host,
        )
        cos, sin = (
            (part * amplitude).to(dtype).to(positions.device) for part in (turned.cos, turned.sin)
        )
        return replace(turned, cos=cos, sin=sin, amplified=True)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        """Tables of queries and of keys, which differ even at the same positions."""
        q = self.table(q_pos, side="query", dtype=dtype)
        k = self.table(k_pos, side="key", dtype=dtype)
        frequencies = self.frequencies()
        return RotaryTables(
            q,
            k,
            self,
            frequencies.attention_factor,
            frequencies.softmax_scale,
            (q_pos, k_pos),
        )
