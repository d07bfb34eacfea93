"""What every attention implementation is given: checked tensors, positions and one mask."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.contracts import Block, RelativeKeyValue, Scheme, rows
from posenc.masks import Mask, SameSegment, is_causal, parts_of
from posenc.positions import query_key_positions, sequence

__all__ = ["Problem", "check_heads", "checked", "softmax"]


@dataclass(frozen=True, eq=False)
class Problem:
    """One attention call. `contiguous` says that positions are storage order, known on the host."""

    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, H', K, D]
    v: Tensor  # [B, H', K, Dv]
    scheme: Scheme
    q_pos: Tensor
    k_pos: Tensor
    mask: Mask | None
    scale: float
    contiguous: bool
    first: tuple[int, int] | None = None  # positions of the first query and key, where consecutive
    start: tuple[int, int] = (0, 0)  # of this block's queries and keys, counted in the whole call
    native: bool = True  # whether the compiled kernel may serve
    made: Any = None  # what the relative vectors share between blocks

    def allowed(self) -> Tensor | None:
        """`[B|1, 1, Q, K]` bool, or None where every key is seen."""
        if self.mask is None:
            return None
        q_pos, k_pos = rows(self.q_pos, self.num_axes), rows(self.k_pos, self.num_axes)
        if self.num_axes > 1:  # only segments are left, and they ignore coordinates
            q_pos, k_pos = q_pos[..., 0], k_pos[..., 0]
        return self.mask.allowed(q_pos, k_pos)[:, None]

    def block(self, queries: slice, keys: slice) -> "Problem":
        """The same call for a block of queries and keys."""
        token_dim = -1 if self.num_axes == 1 else -2
        return replace(
            self,
            q=self.q[:, :, queries],
            k=self.k[:, :, keys],
            v=self.v[:, :, keys],
            q_pos=_slice(self.q_pos, queries, token_dim),
            k_pos=_slice(self.k_pos, keys, token_dim),
            mask=None if self.mask is None else self.mask.block(queries, keys),
            contiguous=False,
            first=self.first and (self.first[0] + queries.start, self.first[1] + keys.start),
            start=(self.start[0] + queries.start, self.start[1] + keys.start),
        )

    def meeting(self) -> Block:
        """What relative vectors need to know of the queries and keys of this call."""
        places = (self.first, self.start, self.made)
        return Block(self.q_pos, self.k_pos, self.allowed(), self.scale, *places)

    def prepared(self) -> "Problem":
        """With what the relative vectors make once for all blocks."""
        relative = self.scheme.relative
        if relative is None:
            return self
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        whole = Block(self.q_pos, self.k_pos, scale=self.scale, first=self.first)
        return replace(self, made=relative.prepare(whole, dtype))

    @property
    def num_axes(self) -> int:
        return self.scheme.num_axes

    def visible_keys(self, queries: slice) -> slice:
        """Storage slice of the keys that a block of queries can see, at contiguous positions."""
        num_keys = self.k.shape[2]
        if not self.contiguous or self.mask is None:
            return slice(0, num_keys)
        shift = num_keys - self.q.shape[2]
        start, stop = self.mask.visible(queries.start + shift, queries.stop - 1 + shift)
        return slice(max(start or 0, 0), num_keys if stop is None else min(stop, num_keys))


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    q_pos: Tensor | None,
    k_pos: Tensor | None,
    mask: Mask | None,
    scale: float | None,
) -> Problem:
    """Everything checked at the boundary, once, with the tensors' shapes in the message."""
    check_heads(q, k, v)
    mask = _fitted(mask, scheme.num_axes, q, k)
    batch, num_heads, num_queries, head_dim = q.shape
    if scheme.bias is not None and scheme.bias.num_heads != num_heads:
        raise ValueError(
            f"the bias was made for {scheme.bias.num_heads} heads, queries have {num_heads}"
        )
    if scheme.bias is not None and scheme.bias.causal_only and not is_causal(mask):
        raise ValueError(
            f"{type(scheme.bias).__name__} means nothing for keys after the query: pass "
            f"mask=causal (and others joined with &), got {mask}"
        )
    _check_relative(scheme.relative, num_heads, head_dim, v.shape[-1])
    contiguous = q_pos is None and k_pos is None
    if contiguous and num_queries > k.shape[2] and not _reads_positions(scheme, mask):
        q_pos, k_pos = (sequence(x.shape[2], device=q.device) for x in (q, k))  # cross-attention
    q_pos, k_pos = query_key_positions(
        num_queries,
        k.shape[2],
        q_pos,
        k_pos,
        num_axes=scheme.num_axes,
        real=scheme.real_positions,
        device=q.device,
    )
    for name, positions in (("q_pos", q_pos), ("k_pos", k_pos)):
        if rows(positions, scheme.num_axes).shape[0] not in (1, batch):
            raise ValueError(f"{name} has {positions.shape[0]} rows for a batch of {batch}")
    softmax_scale = head_dim**-0.5 if scale is None else scale
    first = (k.shape[2] - num_queries, 0) if contiguous else None
    return Problem(q, k, v, scheme, q_pos, k_pos, mask, softmax_scale, contiguous, first)


def _reads_positions(scheme: Scheme, mask: Mask | None) -> bool:
    """Whether it matters where queries and keys stand: not without a scheme, among segments."""
    parts = (scheme.rotary, scheme.bias, scheme.relative, scheme.query_scale)
    by_segment = all(isinstance(part, SameSegment) for part in parts_of(mask))
    return not by_segment or any(part is not None for part in parts)


def _check_relative(
    relative: RelativeKeyValue | None, num_heads: int, head_dim: int, value_dim: int
) -> None:
    if relative is None:
        return
    if relative.head_dim != head_dim:
        raise ValueError(
            f"the relative vectors have {relative.head_dim} channels, heads have {head_dim}"
        )
    if relative.num_heads not in (None, num_heads):
        raise ValueError(
            f"the relative vectors were made for {relative.num_heads} heads, "
            f"queries have {num_heads}"
        )
    if relative.adds_values and value_dim != head_dim:
        raise ValueError(
            f"relative vectors of {head_dim} channels are added to values, which have {value_dim}"
        )


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless q, k and v are heads `[B, H, T, D]` of one dtype that fit each other."""
    shapes = {"q": q, "k": k, "v": v}
    fits = all(x.ndim == 4 and x.numel() > 0 for x in shapes.values()) and (
        k.shape[:3] == v.shape[:3]
        and q.shape[0] == k.shape[0]
        and q.shape[3] == k.shape[3]
        and q.shape[1] % k.shape[1] == 0
    )
    if not fits:
        described = ", ".join(f"{name} {list(x.shape)}" for name, x in shapes.items())
        wanted = "q [B, H, Q, D], k [B, H', K, D], v [B, H', K, Dv] with H a multiple of H'"
        raise ValueError(
            f"expected {wanted}, got {described}: split the heads (view) and transpose before "
            "scores, or every score mixes heads"
        )
    if len({x.dtype for x in shapes.values()}) > 1 or not q.is_floating_point():
        kinds = ", ".join(f"{name} {x.dtype}" for name, x in shapes.items())
        raise ValueError(f"q, k and v must share one floating dtype, got {kinds}")


def softmax(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Weights over the last dimension, keys; a query that may see no key gets zeros, not NaN."""
    if allowed is None:
        return torch.softmax(logits, -1)
    blind = ~allowed.any(-1, keepdim=True)
    logits = logits.masked_fill(~(allowed | blind), float("-inf"))
    return torch.softmax(logits, -1).masked_fill(blind, 0.0)


def _fitted(mask: Mask | None, num_axes: int, q: Tensor, k: Tensor) -> Mask | None:
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        raise TypeError(
            f"mask must be a posenc mask (causal, window(n), same_segment(segments), combined with "
            f"&) or None, got {type(mask).__name__}"
        )
    parts = parts_of(mask)
    if num_axes > 1 and not all(isinstance(part, SameSegment) for part in parts):
        raise ValueError(
            f"positions with {num_axes} axes have no order and no window: pass mask=None "
            f"(or same_segment), got {mask}"
        )
    return mask.fitted(q.shape[2], k.shape[2], q.shape[0])


def _slice(positions: Tensor, where: slice, dim: int) -> Tensor:
    return positions.narrow(dim, where.start, where.stop - where.start)
