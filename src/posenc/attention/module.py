"""Multi-head attention with projections, for pasting into a model: it takes any Scheme."""

from dataclasses import replace
from functools import reduce
from operator import and_

import torch
from torch import Tensor, nn

from posenc.attention.cache import KVCache
from posenc.attention.softmax import attention
from posenc.contracts import RotaryTables, Scheme
from posenc.masks import Mask, causal, same_segment
from posenc.positions import check_positions
from posenc.positions.checks import assert_on_device, host_all
from posenc.rotate import rotate_qk

__all__ = ["MultiHeadAttention"]

NOPE = Scheme()


class MultiHeadAttention(nn.Module):
    """Self-attention `[B, T, dim] -> [B, T, dim]` under any scheme, with grouped keys and a cache.

    >>> layer = MultiHeadAttention(512, 8, num_kv_heads=2, scheme=Scheme(rotary=Rope(64)))
    >>> y = layer(x)                                  # positions 0 … T-1, causal
    >>> y = layer(x, positions, segments=documents)   # packed documents, padding
    >>> y = layer(x_last, cache=cache)                # decoding

    Rotation happens here, on queries and keys after the heads are split, never on embeddings;
    `scheme.additive` is the embedding's business. A model with many layers makes its tables once:
    `layer(x, tables=rope.tables(positions, positions))`, where positions 0 … T-1 need not be passed
    (the fused kernel then needs no mask), and others are passed as well.

    Tokens at negative positions are padding (`from_padding_mask` gives them −1): no other token sees
    them. Real-valued positions (`LearnedScaleRope`) may be negative; there, and with several axes,
    padding is told by `segments`. Positions with several axes have no order, so under `MRope` causal
    and windowed masks go by storage order.

    Parameters: `q`, `k`, `v` and `out`, each an `nn.Linear`; what learns of the scheme is `learned`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        scheme: Scheme = NOPE,
        mask: Mask | None = causal,
        scale: float | None = None,
        projection_bias: bool = False,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if min(dim, num_heads, num_kv_heads) < 1 or dim % num_heads or num_heads % num_kv_heads:
            raise ValueError(
                f"dim must be a multiple of num_heads, and num_heads of num_kv_heads; got "
                f"dim {dim}, num_heads {num_heads}, num_kv_heads {num_kv_heads}"
            )
        self.head_dim = dim // num_heads
        rotated = getattr(scheme.rotary, "head_dim", self.head_dim)
        if rotated != self.head_dim:
            raise ValueError(
                f"the rotation is for heads of {rotated} channels, but dim {dim} over {num_heads} "
                f"heads gives {self.head_dim}"
            )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.scheme, self.mask, self.scale = scheme, mask, scale
        self.learned = nn.ModuleDict(
            {name: part for name, part in scheme.modules().items() if name != "additive"}
        )
        self.q = nn.Linear(dim, dim, bias=projection_bias)
        self.k = nn.Linear(dim, num_kv_heads * self.head_dim, bias=projection_bias)
        self.v = nn.Linear(dim, num_kv_heads * self.head_dim, bias=projection_bias)
        self.out = nn.Linear(dim, dim, bias=projection_bias)

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        cache: KVCache | None = None,
        tables: RotaryTables | None = None,
    ) -> Tensor:
        """`positions` `[T]` or `[B, T]` default to the ones after the cache; −1 marks padding."""
        if tables is not None and self.scheme.rotary is None:
            raise ValueError("tables= were given, but this layer's scheme has no rotary part")
        if x.ndim != 3 or x.shape[-1] != self.q.in_features:
            raise ValueError(f"expected x [B, T, {self.q.in_features}], got {list(x.shape)}")
        cache = KVCache() if cache is None else cache
        in_order = cache.contiguous and positions is None
        if positions is None:
            positions = cache.next_positions(x.shape[1], device=x.device)
        axes, real = self.scheme.num_axes, self.scheme.real_positions
        positions = check_positions(positions, num_tokens=x.shape[1], num_axes=axes, real=real)
        positions = positions if positions.ndim == (2 if axes == 1 else 3) else positions[None]
        if axes > 1 and segments is None and not _has_class_token(self.scheme):
            _check_none_is_padding(positions)

        q, k, v = (self._heads(project(x)) for project in (self.q, self.k, self.v))
        scheme, scale = self.scheme, self.head_dim**-0.5 if self.scale is None else self.scale
        encoding = scheme.rotary
        if scheme.rotary is not None:
            made = (scheme.rotary if tables is None else tables).tables(
                positions, positions, dtype=torch.promote_types(q.dtype, torch.float32)
            )
            _check_filled_in(made, positions)
            q, k = rotate_qk(q, k, made)
            encoding, scale = made.encoding, scale * made.softmax_scale
        scheme = replace(scheme, rotary=None)
        with cache.unchanged_if_refused():
            cache.append(k, v, positions, _rows(segments), encoding)
            cache.contiguous = in_order
            keys = cache.keys_in_place()
            assert keys is not None and cache.values is not None
            in_storage_order = in_order or scheme.num_axes < axes  # only the rotation had axes
            out = attention(
                q,
                keys,
                cache.values,
                scheme=scheme,
                q_pos=None if in_storage_order else positions,
                k_pos=None if in_storage_order else cache.positions,
                mask=self._mask(cache, axes),
                scale=scale,
            )
        return self.out(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _mask(self, cache: KVCache, axes: int) -> Mask | None:
        """The layer's own mask, and who is of the same document, and who is padding."""
        parts = [] if self.mask is None else [self.mask]
        if cache.segments is not None:
            parts.append(same_segment(cache.segments))
        at = cache.positions
        assert at is not None
        counts_tokens = axes == 1 and not cache.contiguous and not at.is_floating_point()
        if counts_tokens and not _known(at >= 0):
            parts.append(same_segment(at >= 0))
        return reduce(and_, parts) if parts else None


def _check_filled_in(tables: RotaryTables, positions: Tensor) -> None:
    """Tables made for other positions would rotate in silence; the host compares what it holds."""
    for name, held in zip(("q", "k"), tables.positions or (), strict=False):
        if held is positions or held.shape[-1] != positions.shape[-1]:
            continue
        if held.ndim <= positions.ndim and not host_all(held == positions):
            other, at = (x[held != positions] for x in torch.broadcast_tensors(held, positions))
            raise ValueError(
                f"tables= hold position {other[0].item()} for {name} where the token is at "
                f"{at[0].item()}: make them for the positions that the layer is given"
            )


def _has_class_token(scheme: Scheme) -> bool:
    """Whether −1 on every axis is a place of its own, and no padding."""
    return scheme.bias is not None and scheme.bias.has_class_token


def _check_none_is_padding(positions: Tensor) -> None:
    """Coordinates make no mask, so padding marked by them would be seen."""
    if positions.is_floating_point() or positions.device.type == "meta":
        return
    told = (positions >= 0).any(-1)
    message = "positions with several axes (all of them negative at some token) tell no padding"
    if positions.device.type != "cpu" or torch.compiler.is_compiling():
        assert_on_device(told.all(), message)
    elif not told.all():
        raise ValueError(f"{message}: give it a segment of its own (segments=)")


def _known(condition: Tensor) -> bool:
    """Whether the condition is known to hold: on a device, and in a compiled graph, nothing is."""
    return not (condition.device.type != "cpu" or torch.compiler.is_compiling()) and bool(
        condition.all()
    )


def _rows(segments: Tensor | None) -> Tensor | None:
    return segments if segments is None or segments.ndim == 2 else segments[None]
