"""Relative positions of Transformer-XL: sinusoids of the distance, projected, meet biased queries.

Dai et al. 2019, arXiv 1901.02860, section 3.3: (q_i + u)·k_j + (q_i + v)·W_{k,R} R_{i−j}.
Conformer (arXiv 2005.08100), XLNet, Wav2Vec2-Conformer, Parakeet and Gemma's audio encoders have
the same form with another order of channels, no biases or a clamped distance.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from posenc.contracts import Block, RelativeKeyValue
from posenc.frequencies import check_base, geometric, host_for
from posenc.positions import check_ints
from posenc.relative.distances import bucket_logits, consecutive_offsets, offset_range, skewed

__all__ = ["TransformerXL"]


class TransformerXL(RelativeKeyValue):
    """`u · k + (q + v) · W R[q_pos − k_pos]` joins the logits.

    >>> attention(q, k, v, scheme=Scheme(relative=TransformerXL(8, 64)))              # a decoder
    >>> conformer = TransformerXL(8, 64, layout="alternating")                        # mask=None
    >>> scheme = Scheme(relative=TransformerXL(8, 64))
    >>> attention(q[:, :, 1:], k, v, scheme=scheme)                                   # a memory of 1

    `dim` is the width of the sinusoids (num_heads · head_dim where nothing is said), `projection`
    the matrix W_{k,R} `[H · head_dim, dim]`, `content_bias` u and `position_bias` v, `[H,
    head_dim]`. Layers share any of them as modules do: `second.content_bias =
    first.content_bias`.

    `layout` is "concatenated" (all sines, then all cosines: Transformer-XL, XLNet, Gemma) or
    "alternating" (Conformers). `denominator` is "d" or "d-2" (Gemma). `clamp` is the largest
    distance told apart (XLNet's clamp_len). `biases=False` leaves u and v out (Gemma).

    Memory is O(T · head_dim) a head beyond the logits where tokens follow one by one. At other
    positions sin(ω(i − j)) is written out by the addition theorem, O(T · dim) a head; with
    `clamp`, rows of a table are looked up. No distance ever needs a relative shift. Raises
    ValueError for sizes that do not fit.
    """

    heads = slice(None)

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        dim: int | None = None,
        base: float = 10_000.0,
        layout: Literal["concatenated", "alternating"] = "concatenated",
        denominator: Literal["d", "d-2"] = "d",
        clamp: int | None = None,
        biases: bool = True,
    ) -> None:
        super().__init__()
        check_ints(num_heads=num_heads, head_dim=head_dim)
        dim = num_heads * head_dim if dim is None else dim
        check_ints(dim=dim, clamp=dim if clamp is None else clamp)
        if min(num_heads, head_dim, dim) < 1 or dim % 2:
            raise ValueError(
                f"num_heads and head_dim must be positive and dim even, got {num_heads}, {head_dim} "
                f"and {dim}"
            )
        if layout not in ("concatenated", "alternating"):
            raise ValueError(f"layout must be 'concatenated' or 'alternating', got {layout!r}")
        if denominator not in ("d", "d-2"):
            raise ValueError(f"denominator must be 'd' or 'd-2', got {denominator!r}")
        if clamp is not None and clamp < 1:
            raise ValueError(f"clamp must be a positive distance or None, got {clamp}")
        check_base(base)
        self.num_heads, self.head_dim, self.dim, self.base = num_heads, head_dim, dim, float(base)
        self.layout, self.denominator, self.clamp = layout, denominator, clamp
        self.projection = nn.Parameter(torch.empty(num_heads * head_dim, dim))
        nn.init.xavier_uniform_(self.projection)
        bias = [nn.Parameter(torch.zeros(num_heads, head_dim)) if biases else None for _ in "uv"]
        self.content_bias, self.position_bias = bias

    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        block = self.prepared(block, q.dtype)
        queries = q
        if self.position_bias is not None:
            queries = q + self.position_bias[self.heads].to(q.dtype)[:, None]
        logits = self._position_logits(queries, block)
        if self.content_bias is None:
            return logits
        content = self.content_bias[self.heads].to(k.dtype)
        return logits + (k @ content[..., None]).mT  # u·k, [B, H, 1, K]

    def prepare(self, whole: Block, dtype: torch.dtype) -> tuple[Tensor | int, ...]:
        """Vectors of the distances that occur; at scattered positions the waves of both sides."""
        if self.clamp is not None:
            distances = torch.arange(self.clamp, -self.clamp - 1, -1, device=whole.q_pos.device)
            return (self._vectors(distances, dtype),)
        if whole.first is not None:
            rows = self._vectors(-consecutive_offsets(whole), dtype)
            return rows, offset_range(whole)[0]
        return (*self._waves(whole.q_pos, dtype), *self._waves(whole.k_pos, dtype))

    def _position_logits(self, queries: Tensor, block: Block) -> Tensor:
        clamp = self.clamp
        if clamp is not None:
            (rows,) = block.made
            return bucket_logits(queries, rows, lambda x: x.clamp(-clamp, clamp) + clamp, block)
        if block.first is None:
            return self._written_out(queries, block)
        rows, first = block.made
        start, width = offset_range(block)
        return skewed(queries @ rows.narrow(-2, start - first, width).mT)

    def _vectors(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """W R of each distance, `[H, N, head_dim]`."""
        sin, cos = self._waves(distances, dtype)
        by_sine, by_cosine = self._weights(dtype)
        return sin @ by_sine.mT + cos @ by_cosine.mT

    def _written_out(self, queries: Tensor, block: Block) -> Tensor:
        """sin(ω(i − j)) = sin ωi · cos ωj − cos ωi · sin ωj, and so for the cosine."""
        sides = (block.q_pos, block.k_pos)
        (first_q, first_k), (num_q, num_k) = block.start, (x.shape[-1] for x in sides)
        sin_q, cos_q = (x[..., None, first_q : first_q + num_q, :] for x in block.made[:2])
        sin_k, cos_k = (x[..., None, first_k : first_k + num_k, :] for x in block.made[2:])
        by_sine, by_cosine = (queries @ weights for weights in self._weights(queries.dtype))
        on_cosine = by_sine * sin_q + by_cosine * cos_q
        on_sine = by_cosine * sin_q - by_sine * cos_q
        return torch.cat((on_cosine, on_sine), -1) @ torch.cat((cos_k, sin_k), -1).mT

    def _weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The columns of W that meet sines and cosines, `[H, head_dim, dim / 2]` each."""
        weights = self.projection.unflatten(0, (-1, self.head_dim))[self.heads].to(dtype)
        if self.layout == "alternating":
            return weights[..., 0::2], weights[..., 1::2]
        return weights[..., : self.dim // 2], weights[..., self.dim // 2 :]

    def _waves(self, distances: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Sines and cosines `[..., N, dim / 2]`, of float64 angles, rounded once."""
        host = host_for(distances.device)
        width = self.dim if self.denominator == "d" else max(self.dim - 2, 1)
        per_radian = geometric(self.dim // 2, width, self.base, device=host)
        angle = distances.to(host, torch.float64)[..., None] / per_radian
        return angle.sin().to(dtype).to(distances.device), angle.cos().to(dtype).to(
            distances.device
        )

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, {self.head_dim}, dim={self.dim}, base={self.base}, "
            f"layout={self.layout!r}, denominator={self.denominator!r}, clamp={self.clamp}, "
            f"biases={self.content_bias is not None}"
        )
