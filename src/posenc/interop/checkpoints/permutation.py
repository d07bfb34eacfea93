"""Moving weights from one pairing to the other: rows change places, and nothing is computed.

Meta's Llama weights pair channels (2i, 2i + 1), the same model in transformers (i, i + d/2): same
numbers, other rows. The order is a permutation inside each head, so the inverse is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posenc.contracts import Pairing

__all__ = ["Heads", "check_pairing", "pair_order", "permute", "permute_fused", "row_order"]


@dataclass(frozen=True)
class Heads:
    """A run of rows: `count` heads of `head_dim` rows, `rotary_dim` of which turn, from `start` on.

    >>> Heads(32, 128, 128)                           # queries of Llama
    >>> Heads(128, 192, 64, start=128)                # queries of DeepSeek: the last 64 turn
    >>> Heads(8, 128)                                 # values: rows that stay
    """

    count: int
    head_dim: int
    rotary_dim: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or self.head_dim < 1:
            raise ValueError(f"count and head_dim must be at least 1, got {self}")
        inside = self.start >= 0 and self.start + self.rotary_dim <= self.head_dim
        if self.rotary_dim < 0 or self.rotary_dim % 2 or not inside:
            raise ValueError(
                f"rotary_dim must be even, and start + rotary_dim at most head_dim; got {self}"
            )

    @property
    def rows(self) -> int:
        """Rows of the whole run."""
        return self.count * self.head_dim


def check_pairing(to: str) -> None:
    """Raise unless `to` names a pairing."""
    if to not in ("half", "adjacent"):
        raise ValueError(f"a pairing is 'half' or 'adjacent', got {to!r}")


def pair_order(rotary_dim: int, to: Pairing) -> Tensor:
    """Which old channel each new channel holds, `[rotary_dim]`: new[i] = old[order[i]].

    >>> pair_order(6, "adjacent").tolist()
    [0, 3, 1, 4, 2, 5]
    >>> pair_order(6, "half").tolist()
    [0, 2, 4, 1, 3, 5]
    """
    check_pairing(to)
    channels = torch.arange(rotary_dim)
    grid = channels.view(2, -1) if to == "adjacent" else channels.view(-1, 2)
    return grid.T.flatten()


def row_order(runs: Sequence[Heads], to: Pairing, *, groups: int = 1) -> Tensor:
    """Which old row each new row holds, for runs that repeat `groups` times."""
    parts = [_run_order(run, to) for run in runs]
    firsts = torch.tensor([0, *(run.rows for run in runs)]).cumsum(0)
    once = torch.cat([part + first for part, first in zip(parts, firsts[:-1], strict=True)])
    return (torch.arange(groups)[:, None] * firsts[-1] + once).flatten()


def permute(
    weight: Tensor,
    *,
    num_heads: int,
    head_dim: int,
    rotary_dim: int | None = None,
    start: int = 0,
    to: Pairing,
) -> Tensor:
    """Rows of one projection, bias or per-channel norm moved to another pairing.

    >>> k_weight = permute(k_weight, num_heads=4, head_dim=64, to="half")  # [256, C]

    `num_heads` counts the heads of THIS tensor: for grouped keys the key heads. `[rows]` and
    `[rows, ...]` of any dtype; rows must be num_heads · head_dim. Applied with the other `to`, it
    undoes itself bit for bit.
    """
    width = head_dim if rotary_dim is None else rotary_dim
    return permute_fused(weight, [Heads(num_heads, head_dim, width, start)], to=to)


def permute_fused(weight: Tensor, runs: Sequence[Heads], *, to: Pairing, groups: int = 1) -> Tensor:
    """Rows of a fused projection moved to another pairing; runs without rotary_dim stay.

    >>> runs = [Heads(32, 128, 128), Heads(8, 128, 128), Heads(8, 128)]   # [q; k; v], grouped keys
    >>> qkv = permute_fused(qkv, runs, to="adjacent")
    >>> runs = [Heads(1, 96, 24), Heads(1, 96, 24), Heads(1, 96)]         # GPT-NeoX: [H, 3, d]
    >>> neox = permute_fused(neox, runs, groups=64, to="adjacent")
    """
    rows = groups * sum(run.rows for run in runs)
    if weight.ndim < 1 or weight.shape[0] != rows:
        described = " + ".join(f"{run.count} heads · {run.head_dim}" for run in runs)
        times = f"{groups} · ({described})" if groups > 1 else described
        raise ValueError(f"expected {rows} rows = {times}, got a weight {list(weight.shape)}")
    order = row_order(runs, to, groups=groups).to(weight.device)
    return _as_bytes(weight)[order].flatten().view(weight.dtype).view(weight.shape)


def _run_order(run: Heads, to: Pairing) -> Tensor:
    head = torch.arange(run.head_dim)
    turned = slice(run.start, run.start + run.rotary_dim)
    head[turned] = run.start + pair_order(run.rotary_dim, to)
    return (torch.arange(run.count)[:, None] * run.head_dim + head).flatten()


def _as_bytes(weight: Tensor) -> Tensor:
    """`[rows, bytes]`: moving bytes works for every dtype, float8 too, and cannot round."""
    flat = weight.detach().contiguous().flatten()
    return flat.view(torch.uint8).view(weight.shape[0], -1)
