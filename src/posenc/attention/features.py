"""Queries and keys behind a feature map, what linear attention sums.

Rotation acts after the feature map, on the sum alone; the normaliser stays unrotated and positive
(RoFormer, arXiv 2104.09864, section 3.3, eq. 19).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from posenc.attention.problem import Problem
from posenc.contracts import rows
from posenc.masks import SameSegment, parts_of
from posenc.rotate import rotate

__all__ = ["Features", "Pieces", "features_of", "ratio", "segments_of"]


@dataclass(frozen=True, eq=False)
class Features:
    """Feature-mapped queries and keys, turned (for the sum) and not (for the normaliser)."""

    q: Tensor
    k: Tensor
    turned_q: Tensor
    turned_k: Tensor
    v: Tensor

    def pieces(self, size: int) -> "Pieces":
        """Cut into chunks once: the gradient of a slice would be as long as the whole, each time."""
        tensors = (self.q, self.k, self.turned_q, self.turned_k, self.v)
        return Pieces(size, *(x.split(size, 2) for x in tensors))

    def row(self, index: int) -> "Features":
        """One row of the batch."""
        return self.each(lambda part: part[index : index + 1])

    def run(self, tokens: slice) -> "Features":
        """Queries and keys of one run of tokens."""
        return self.each(lambda part: part[:, :, tokens])

    def each(self, cut: Callable[[Tensor], Tensor]) -> "Features":
        """The same of every tensor."""
        parts = {field.name: cut(getattr(self, field.name)) for field in fields(self)}
        return Features(**parts)

    def within(self, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and normaliser over the allowed pairs `[B|1, 1, …, Q, K]`, written out."""
        weights = (self.turned_q @ self.turned_k.transpose(-1, -2)) * allowed
        total = ((self.q @ self.k.transpose(-1, -2)) * allowed).sum(-1, keepdim=True)
        return weights @ self.v, total

    def through(self, state: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Numerator and normaliser over the keys summed into a state."""
        return self.turned_q @ state, self.q @ total

    def state(self) -> tuple[Tensor, Tensor]:
        """`Σ R φ(k) vᵀ`, `[B, H, …, D', Dv]`, and `Σ φ(k)`, `[B, H, …, D', 1]`."""
        return self.turned_k.transpose(-1, -2) @ self.v, self.k.sum(-2)[..., None]

    def keeping(self, keys: Tensor) -> "Features":
        """Keys outside `[B|1, …, K]` contribute nothing."""
        kept = keys[:, None, ..., None]
        return replace(self, k=self.k * kept, turned_k=self.turned_k * kept)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Features in chunks of `size` tokens."""

    size: int
    q: tuple[Tensor, ...]
    k: tuple[Tensor, ...]
    turned_q: tuple[Tensor, ...]
    turned_k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

    def block(self, chunk: int, keys: slice) -> Features:
        """One chunk of queries with a slice of the keys."""
        first, last = keys.start // self.size, (keys.stop - 1) // self.size
        inside = slice(keys.start - first * self.size, keys.stop - first * self.size)
        k, turned_k, v = (
            (x[first] if first == last else torch.cat(x[first : last + 1], 2))[:, :, inside]
            for x in (self.k, self.turned_k, self.v)
        )
        return Features(self.q[chunk], k, self.turned_q[chunk], turned_k, v)


def features_of(problem: Problem, feature_map: Callable[[Tensor], Tensor]) -> Features:
    """Both behind the map, in float32 or wider, with keys and values for every head."""
    wide = torch.promote_types(problem.q.dtype, torch.float32)
    group = problem.q.shape[1] // problem.k.shape[1]
    q, k = feature_map(problem.q.to(wide)), feature_map(problem.k.to(wide))
    k, v = k.repeat_interleave(group, 1), problem.v.to(wide).repeat_interleave(group, 1)
    if q.shape[:3] != problem.q.shape[:3]:
        raise ValueError(
            f"feature_map must keep batch, heads and tokens {list(problem.q.shape[:3])} and act on "
            f"the channels of one head, got {list(q.shape)}"
        )
    rotary = problem.scheme.rotary
    if rotary is None:
        return Features(q, k, q, k, v)
    tables = rotary.tables(problem.q_pos, problem.k_pos, dtype=wide)
    amplitude = tables.attention_factor**2  # a softmax temperature: there is no softmax here
    return Features(q, k, rotate(q, tables.q) / amplitude, rotate(k, tables.k), v)


def ratio(numerator: Tensor, total: Tensor) -> Tensor:
    """Zeros where no key was seen."""
    return numerator / torch.where(total == 0, 1.0, total)


def segments_of(problem: Problem) -> Tensor:
    """`[B|1, T]` ids: tokens see each other only where all segment masks agree."""
    parts = parts_of(problem.mask)
    ids = [rows(part.k_segments) for part in parts if isinstance(part, SameSegment)]
    if not ids:
        return torch.zeros(1, problem.k.shape[2], dtype=torch.int64, device=problem.k.device)
    if len(ids) > 1:
        raise ValueError("linear attention takes one same_segment mask, got several")
    return ids[0]
