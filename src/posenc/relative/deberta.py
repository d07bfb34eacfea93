"""Disentangled attention: content meets position and position meets content, at one distance.

He et al. 2020, arXiv 2006.03654, section 3.1, and the logarithmic buckets of the released
DeBERTa-v2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc.contracts import Block, RelativeKeyValue
from posenc.positions import check_ints
from posenc.relative.distances import FEW, bucket_logits, from_keys

__all__ = ["Deberta", "log_bucket_edges"]

TERMS = ("c2p", "p2c")


def log_bucket_edges(num_buckets: int, max_distance: int) -> list[int]:
    """Largest distance of each bucket past the exact ones, in exact integer arithmetic.

    Distance n > m = num_buckets / 2 is in bucket m + ⌈ln(n/m) / ln((D−1)/m) · (m−1)⌉: bucket m +
    j ends at the largest n with (n/m)^(m−1) <= ((D−1)/m)^j.
    """
    middle = num_buckets // 2
    edges, n = [], middle
    for j in range(1, middle):
        # ((D−1)/m)^j ≥ (n/m)^(m−1), cleared of fractions
        limit = (max_distance - 1) ** j * middle ** (middle - 1 - j)
        while (n + 1) ** (middle - 1) <= limit:
            n += 1
        edges.append(n)
    return edges


class Deberta(RelativeKeyValue):
    """`q · K_r[δ] + k · Q_r[δ]` joins the logits, δ the bucket of q_pos − k_pos.

    >>> relative = Deberta(8, 64, num_buckets=256, max_distance=512)             # DeBERTa-v2 and v3
    >>> attention(q, k, v, scheme=Scheme(relative=relative), scale=relative.scale, mask=None)

    The softmax scale is 1/√(head_dim · (1 + number of terms)): it is `scale=` of attention, and
    `relative.scale` holds it. `table` `[2·span, dim]` are the vectors of distances
    −span … span − 1, which `norm`, `key` (for "c2p") and `query` (for "p2c") turn into heads. All
    are parts to be shared as any: DeBERTa has one `table` and `norm` for all layers, and with
    share_att_key `key` and `query` are the layer's own projections.

    >>> first, layer = Deberta(8, 64), MultiHeadAttention(512, 8)
    >>> relative.table, relative.key, relative.query = first.table, layer.k, layer.q

    `num_buckets=None` is the first DeBERTa: span is max_distance, each distance has a vector and
    those beyond share the last. With buckets, the span is num_buckets, half of it for distances
    of their own. Both kinds of term read the bucket of q_pos − k_pos, as the released code does;
    the paper writes δ(j, i) for the second, which is the same table in reverse. Raises ValueError
    for what does not fit.
    """

    heads = slice(None)

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        dim: int | None = None,
        max_distance: int = 512,
        num_buckets: int | None = None,
        terms: Sequence[str] = TERMS,
    ) -> None:
        super().__init__()
        check_ints(num_heads=num_heads, head_dim=head_dim, max_distance=max_distance)
        dim = num_heads * head_dim if dim is None else dim
        check_ints(dim=dim, num_buckets=max_distance if num_buckets is None else num_buckets)
        if min(num_heads, head_dim, dim, max_distance) < 1:
            raise ValueError(
                f"num_heads, head_dim, dim and max_distance must be positive, got {num_heads}, "
                f"{head_dim}, {dim} and {max_distance}"
            )
        if num_buckets is not None and (num_buckets < 4 or max_distance <= num_buckets // 2 + 1):
            raise ValueError(
                f"num_buckets must be at least 4 and max_distance exceed num_buckets / 2 + 1, got "
                f"{num_buckets} and {max_distance}"
            )
        if not terms or not set(terms) <= set(TERMS) or len(set(terms)) < len(terms):
            raise ValueError(f"terms must be some of {TERMS}, got {tuple(terms)}")
        self.num_heads, self.head_dim, self.dim = num_heads, head_dim, dim
        self.max_distance, self.num_buckets, self.terms = max_distance, num_buckets, tuple(terms)
        self.span = max_distance if num_buckets is None else num_buckets
        self._edges = (
            () if num_buckets is None else tuple(log_bucket_edges(num_buckets, max_distance))
        )
        self.table = nn.Parameter(torch.empty(2 * self.span, dim))
        nn.init.normal_(self.table, std=0.02)
        self.norm: nn.Module = nn.Identity()
        self.key = nn.Linear(dim, num_heads * head_dim) if "c2p" in terms else None
        self.query = nn.Linear(dim, num_heads * head_dim) if "p2c" in terms else None

    @property
    def scale(self) -> float:
        """The softmax scale that DeBERTa uses: 1/√(head_dim · (1 + number of terms))."""
        return (self.head_dim * (1 + len(self.terms))) ** -0.5

    def bucket(self, distances: Tensor) -> Tensor:
        """The bucket of each q_pos − k_pos, int64, odd in it; exact at every edge."""
        if self.num_buckets is None:
            return distances
        size, middle = distances.abs(), self.num_buckets // 2
        edges = torch.tensor(self._edges, device=distances.device)
        past = middle + 1 + torch.bucketize(size, edges)
        return torch.where(size <= middle, distances, distances.sign() * past)

    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        keys, queries = self.prepared(block, q.dtype).made
        logits = q.new_zeros(())
        if keys is not None:
            logits = logits + bucket_logits(q, keys, lambda offset: self._row(-offset), block)
        if queries is not None:
            logits = logits + self._from_keys(k, queries, block)
        return logits

    def _from_keys(self, k: Tensor, queries: Tensor, block: Block) -> Tensor:
        """`k · Q_r[δ]`, `[B, H, Q, K]`. Few queries look up one vector a key; all keys past
        max_distance share theirs."""
        num_queries, num_keys = block.q_pos.shape[-1], k.shape[2]
        if block.first is None or num_queries > FEW:
            return from_keys(k, block, lambda x, at: bucket_logits(x, queries, self._row, at))
        far = min(max(block.first[0] - block.first[1] - self.max_distance + 1, 0), num_keys)
        rows = self._row(-Block(block.q_pos, block.k_pos[..., far:]).offsets()[0, 0])
        near = torch.einsum("bhkd,hqkd->bhqk", k[:, :, far:], queries[:, rows])
        shared = (k[:, :, :far] @ queries[:, -1, :, None]).mT
        return torch.cat((shared.expand(-1, -1, num_queries, -1), near), -1)

    def prepare(self, whole: Block, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """The table as keys and as queries, `[H, 2·span, head_dim]` each, where their terms count."""
        del whole
        table = self.norm(self.table).to(dtype)
        keys = None if self.key is None else self._heads(self.key, table)
        return keys, None if self.query is None else self._heads(self.query, table)

    def _row(self, distances: Tensor) -> Tensor:
        return (self.bucket(distances) + self.span).clamp(0, 2 * self.span - 1)

    def _heads(self, project: nn.Linear, table: Tensor) -> Tensor:
        weight = self._of_heads(project.weight).to(table.dtype)
        bias = None if project.bias is None else self._of_heads(project.bias).to(table.dtype)
        projected = nn.functional.linear(table, weight, bias)
        return projected.unflatten(-1, (-1, self.head_dim)).movedim(1, 0)

    def _of_heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, self.head_dim))[self.heads].flatten(0, 1)

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, {self.head_dim}, dim={self.dim}, max_distance={self.max_distance}, "
            f"num_buckets={self.num_buckets}, terms={self.terms}"
        )
