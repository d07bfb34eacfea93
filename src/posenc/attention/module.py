"""Multi-head attention with projections, for pasting into a model: it takes any Scheme."""

import copy
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor, nn

from posenc.attention.room import Room
from posenc.attention.softmax import attention
from posenc.contracts import RotaryTables, Scheme, rows
from posenc.masks import Mask, causal, same_segment
from posenc.positions import check_positions, following, sequence
from posenc.positions.checks import assert_on_device, host_all
from posenc.rotary import rerotate
from posenc.rotate import rotate_qk

__all__ = ["KVCache", "MultiHeadAttention"]

NOPE = Scheme()


class KVCache:
    """Keys and values of one layer, with the positions they have and the rotation they carry.

    >>> cache = KVCache()
    >>> for token in tokens:                          # [B, 1, C] each
    ...     out = layer(token, cache=cache)

    Keys are stored rotated. Queries under another rotation are an error (`posenc.rerotate` moves
    keys over); the next position follows each row's own last one, so padded rows stay right.
    `copy.deepcopy` takes a snapshot to branch from: tensors of its own without their graph, under
    the same encoding.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # [B, H', K, D]
        self.values: Tensor | None = None  # [B, H', K, Dv]
        self.positions: Tensor | None = None  # [1|B, K]
        self.rotated_at: Tensor | None = None  # [1|B, K], where tokens stood before they were moved
        self.segments: Tensor | None = None  # [1|B, K]
        self.encoding: Any = None
        self.contiguous = True  # positions are 0 … K-1, so that the fused causal kernel applies
        self._rooms = (Room(), Room())  # of keys and of values

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVCache":
        """Tensors without their graph, which PyTorch does not copy; the encoding itself, which an
        equal one that learns would not be.
        """
        twin = copy.copy(self)
        memo[id(self)] = twin
        for name, held in vars(self).items():
            if isinstance(held, Tensor):
                setattr(twin, name, held.detach().clone())
        twin._rooms = (Room(), Room())
        twin.encoding = memo.get(id(self.encoding), self.encoding)
        return twin

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def next_positions(self, num_tokens: int, *, device: torch.device | None = None) -> Tensor:
        """Positions of the next tokens, `[1|B, T]`: each row goes on from its own largest one."""
        if self.positions is None:
            return sequence(num_tokens, device=device)[None]
        return following(self.positions, num_tokens, num_axes=_axes(self.positions))

    def append(
        self, k: Tensor, v: Tensor, positions: Tensor, segments: Tensor | None, encoding: Any
    ) -> None:
        """Add keys (already rotated under `encoding`) and values of new tokens."""
        self._check(k, v, positions, segments)
        if self.keys is None or self.values is None or self.positions is None:
            self.keys, self.values, self.positions = k, v, positions
            self.segments, self.encoding = segments, encoding
            return
        if encoding != self.encoding:
            raise ValueError(
                f"keys were cached under {self.encoding}, new ones come under {encoding}: scores of "
                "the two mean nothing; move the cache with posenc.rerotate first"
            )
        self.keys = self._rooms[0].extended(self.keys, k)
        self.values = self._rooms[1].extended(self.values, v)
        self.positions = _joined(self.positions, positions)
        if self.rotated_at is not None:
            self.rotated_at = _joined(self.rotated_at, positions)
        if self.segments is not None and segments is not None:
            self.segments = _joined(self.segments, segments)

    def _check(self, k: Tensor, v: Tensor, positions: Tensor, segments: Tensor | None) -> None:
        """Raise before anything is changed: a refused call leaves the cache as it was."""
        batch, num_tokens = k.shape[0], k.shape[2]
        fits = v.shape[:3] == k.shape[:3] and positions.shape[0] in (1, batch)
        if segments is not None:
            fits = fits and segments.shape[0] in (1, batch) and segments.shape[1] == num_tokens
        if not fits:
            told = "none" if segments is None else list(segments.shape)
            raise ValueError(
                f"keys {list(k.shape)} need values, positions and segments of the same batch and "
                f"tokens, got {list(v.shape)}, {list(positions.shape)} and {told}"
            )
        if self.keys is None:
            return
        held = (self.keys.shape[0], self.keys.shape[1], self.keys.shape[3])
        if (batch, k.shape[1], k.shape[3]) != held:
            raise ValueError(
                f"the cache holds keys {list(self.keys.shape)} ([B, H', K, D]), new ones are "
                f"{list(k.shape)}: batch, heads and channels must agree"
            )
        if (segments is None) != (self.segments is None):
            raise ValueError("segments must be given for every call on a cache, or for none")

    def keys_in_place(self) -> Tensor | None:
        """The keys as rotated at `positions`: those stored, or moved over in one rotation."""
        if self.keys is None or self.rotated_at is None or self.encoding is None:
            return self.keys
        old = new = self.encoding
        return rerotate(self.keys, self.rotated_at, old, new, new_positions=self.positions)

    def move(self, positions: Tensor) -> None:
        """Give the tokens other positions, `[K]` or `[1|B, K]`: after an eviction, say.

        >>> y = layer(x, cache=cache)                         # 12 tokens
        >>> cache.keep(torch.tensor([0, 1, 8, 9, 10, 11]))    # sinks and the most recent
        >>> cache.move(torch.arange(6))                       # side by side

        Keys stay as they were written, and are turned by the whole difference when they are used:
        a thousand moves cost one rounding, not a thousand.
        """
        if self.positions is None:
            raise ValueError("an empty cache has no tokens to move")
        axes, real = _axes(self.positions), self.positions.is_floating_point()
        positions = check_positions(positions, num_tokens=len(self), num_axes=axes, real=real)
        self.rotated_at = self.positions if self.rotated_at is None else self.rotated_at
        self.positions, self.contiguous = rows(positions, axes), False

    def keep(self, index: Tensor) -> None:
        """Keep the tokens at `index` `[N]` in storage, in this order, at their positions."""
        held = {"keys": 2, "values": 2, "positions": 1, "rotated_at": 1, "segments": 1}
        for name, dim in held.items():
            x: Tensor | None = getattr(self, name)
            setattr(self, name, None if x is None else x.index_select(dim, index))
        self.contiguous = False

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens in storage: drafts that were rejected.

        >>> y = layer(x, cache=cache)
        >>> cache.truncate(len(cache) - 3)                    # the last three were rejected
        """
        if not 0 <= length <= len(self):
            raise ValueError(
                f"length must lie between 0 and the {len(self)} tokens held, got {length}"
            )
        if length == 0:
            self.__init__()
        elif length < len(self) and self.keys is not None:
            contiguous = self.contiguous
            self.keep(torch.arange(length, device=self.keys.device))
            self.contiguous = contiguous


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
    them. Positions with several axes have no order, so under `MRope` causal and windowed masks go by
    storage order, and padding is told by segments.
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
        cache.append(k, v, positions, _rows(segments), encoding)
        cache.contiguous = in_order
        keys = cache.keys_in_place()
        assert keys is not None and cache.values is not None
        scheme = replace(scheme, rotary=None)
        in_storage_order = cache.contiguous or scheme.num_axes < axes  # only the rotation had axes
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
    held = None if tables.positions is None else tables.positions[0]
    if held is None or held is positions or held.shape[-1] != positions.shape[-1]:
        return
    if held.ndim <= positions.ndim and not host_all(held == positions):
        raise ValueError(f"tables= hold positions {held.tolist()}, not {positions.tolist()}")


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


def _axes(positions: Tensor) -> int:
    """Coordinates of one position, of `[B|1, T]` or `[B|1, T, A]`."""
    return 1 if positions.ndim == 2 else positions.shape[-1]


def _joined(old: Tensor, new: Tensor) -> Tensor:
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([x.expand(batch, *x.shape[1:]) for x in (old, new)], dim=1)
