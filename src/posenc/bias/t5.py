"""T5's relative bias: a learned scalar per head for each bucket of distances.

Raffel et al. 2020, arXiv 1910.10683, section 2.1: near distances have a bucket each, farther ones
share logarithmically wider buckets up to `max_distance`, and one bucket holds all beyond it.
"""

import torch
from torch import Tensor, nn

from posenc.contracts import LogitBias
from posenc.positions import check_ints

__all__ = ["T5Bias", "bucket_edges"]


def bucket_edges(num_buckets: int, max_distance: int) -> list[int]:
    """Smallest distance of each bucket of one direction, in exact integer arithmetic.

    The first half of the buckets are one distance each; of the m others, bucket j begins at the
    smallest n with ln(n/e) / ln(D/e) · m >= j, that is n**m >= D**j · e**(m-j). A logarithm in low
    precision puts the edges elsewhere (distances 16, 32 and 90 of 32/128 in bfloat16).
    """
    exact = num_buckets // 2
    m = num_buckets - exact
    edges = list(range(exact + 1))
    for j in range(1, m):
        n = edges[-1]
        while n**m < max_distance**j * exact ** (m - j):
            n += 1
        edges.append(n)
    return edges


class T5Bias(LogitBias):
    """`weight[bucket(k_pos − q_pos), head]` added to the logits (T5 itself uses no 1/√d: scale=1.0).

    >>> attention(q, k, v, scheme=Scheme(bias=T5Bias(12, bidirectional=False)), scale=1.0)

    `bidirectional=True` (encoders) gives future keys the upper half of the buckets; False (decoders)
    puts every future key into bucket 0. `weight` is `[num_buckets, num_heads]`, the layout of T5.
    """

    by_distance = True

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__(num_heads)
        check_ints(num_buckets=num_buckets, max_distance=max_distance)
        per_direction = num_buckets // 2 if bidirectional else num_buckets
        if num_buckets < (4 if bidirectional else 2) or (bidirectional and num_buckets % 2):
            wanted = "even and at least 4" if bidirectional else "at least 2"
            raise ValueError(
                f"num_buckets must be {wanted} with bidirectional={bidirectional}, got {num_buckets}"
            )
        if max_distance <= per_direction // 2:
            raise ValueError(
                f"max_distance must exceed the {per_direction // 2} exact buckets of "
                f"num_buckets = {num_buckets}, got {max_distance}"
            )
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.bidirectional = bidirectional
        self._edges = tuple(bucket_edges(per_direction, max_distance)[1:])
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, relative: Tensor) -> Tensor:
        """Bucket of each `k_pos − q_pos`, int64; exact at every edge."""
        edges = torch.tensor(self._edges, device=relative.device)
        distance = relative.abs() if self.bidirectional else (-relative).clamp(min=0)
        bucket = torch.bucketize(distance, edges, right=True)
        if self.bidirectional:
            bucket = bucket + (relative > 0) * (self.num_buckets // 2)
        return bucket

    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.weight[self.bucket(k_pos - q_pos), head]

    def _of_distances(self, head: Tensor, distances: Tensor) -> Tensor:
        return self.weight.t().index_select(1, self.bucket(-distances))

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )
