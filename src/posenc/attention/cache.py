"""Keys and values of a layer, with the positions that they have and the rotation that they carry."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from posenc.attention.room import Room
from posenc.contracts import rows
from posenc.positions import check_positions, following, sequence
from posenc.rotary import rerotate

__all__ = ["KVCache"]


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

    def __repr__(self) -> str:
        if self.keys is None:
            return "KVCache(empty)"
        batch, heads, tokens, _ = self.keys.shape
        return f"KVCache({tokens} tokens, batch {batch}, {heads} heads, rotation {self.encoding})"

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def next_positions(self, num_tokens: int, *, device: torch.device | None = None) -> Tensor:
        """Positions of the next tokens, `[1|B, T]`: each row goes on from its own largest one."""
        if self.positions is None:
            return sequence(num_tokens, device=device)[None]
        return following(self.positions, num_tokens, num_axes=_axes(self.positions))

    @contextmanager
    def unchanged_if_refused(self) -> Iterator[None]:
        """As it was before, where something inside raises: tokens are not there twice on a retry."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

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


def _axes(positions: Tensor) -> int:
    """Coordinates of one position, of `[B|1, T]` or `[B|1, T, A]`."""
    return 1 if positions.ndim == 2 else positions.shape[-1]


def _joined(old: Tensor, new: Tensor) -> Tensor:
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([x.expand(batch, *x.shape[1:]) for x in (old, new)], dim=1)
