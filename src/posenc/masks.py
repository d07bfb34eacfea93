"""Masks: which query may see which key, as elementwise functions of positions and segments.

Never of storage indices: a rolled cache, a packed row or a left-padded batch needs no other mask.

>>> mask = causal & window(128) & same_segment(segments)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

__all__ = [
    "All",
    "Causal",
    "Mask",
    "SameSegment",
    "Window",
    "causal",
    "is_causal",
    "parts_of",
    "same_segment",
    "window",
]


class Mask(ABC):
    """Where attention may look. Combine with `&`."""

    @abstractmethod
    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """`[B|1, Q]`, `[B|1, K]` positions -> `[B|1, Q, K]` bool, True where the key is seen."""

    def visible(self, first: int, last: int) -> tuple[int | None, int | None]:
        """Bounds [start, stop) of the positions that queries at first … last can see, if any."""
        del first, last
        return None, None

    def fitted(self, num_queries: int, num_keys: int, batch: int) -> "Mask":
        """The mask for this call, checked; segments are cut to the queries at the end."""
        del num_queries, num_keys, batch
        return self

    def block(self, queries: slice, keys: slice) -> "Mask":
        """The mask of a block of storage; only masks that hold tensors differ from themselves."""
        del queries, keys
        return self

    def __and__(self, other: "Mask") -> "All":
        if not isinstance(other, Mask):
            return NotImplemented
        return All((*parts_of(self), *parts_of(other)))


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees keys at its own position and before."""

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos[:, None, :] <= q_pos[:, :, None]

    def visible(self, first: int, last: int) -> tuple[int | None, int | None]:
        return None, last + 1


@dataclass(frozen=True)
class Window(Mask):
    """A query sees the keys fewer than `size` positions away, itself included."""

    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"a window holds at least 1 position, got size {self.size!r}")

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (q_pos[:, :, None] - k_pos[:, None, :]).abs() < self.size

    def visible(self, first: int, last: int) -> tuple[int | None, int | None]:
        return first - self.size + 1, last + self.size


@dataclass(frozen=True, eq=False)
class SameSegment(Mask):
    """A query sees the keys of its own document; `[T]` or `[B, T]` integers name documents.

    Padding is a segment of its own: real tokens never see it, and its rows stay finite.
    """

    q_segments: Tensor
    k_segments: Tensor

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        del q_pos, k_pos
        return _rows(self.k_segments)[:, None, :] == _rows(self.q_segments)[:, :, None]

    def fitted(self, num_queries: int, num_keys: int, batch: int) -> "SameSegment":
        q, k = _rows(self.q_segments), _rows(self.k_segments)
        if q.shape[1] < num_queries or k.shape[1] != num_keys:
            raise ValueError(
                f"same_segment was made for {q.shape[1]} queries and {k.shape[1]} keys, "
                f"got {num_queries} and {num_keys}"
            )
        if not {q.shape[0], k.shape[0]} <= {1, batch}:
            raise ValueError(
                f"same_segment has {k.shape[0]} rows of keys and {q.shape[0]} of queries "
                f"for a batch of {batch}"
            )
        return SameSegment(q[:, -num_queries:], k)

    def block(self, queries: slice, keys: slice) -> "SameSegment":
        return SameSegment(self.q_segments[..., queries], self.k_segments[..., keys])


@dataclass(frozen=True, eq=False)
class All(Mask):
    """Every part must allow the pair."""

    parts: tuple[Mask, ...]

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        result = self.parts[0].allowed(q_pos, k_pos)
        for part in self.parts[1:]:
            result = result & part.allowed(q_pos, k_pos)
        return result

    def visible(self, first: int, last: int) -> tuple[int | None, int | None]:
        bounds = [part.visible(first, last) for part in self.parts]
        starts = [start for start, _ in bounds if start is not None]
        stops = [stop for _, stop in bounds if stop is not None]
        return max(starts) if starts else None, min(stops) if stops else None

    def fitted(self, num_queries: int, num_keys: int, batch: int) -> "All":
        return All(tuple(part.fitted(num_queries, num_keys, batch) for part in self.parts))

    def block(self, queries: slice, keys: slice) -> "All":
        return All(tuple(part.block(queries, keys) for part in self.parts))


causal = Causal()


def window(size: int) -> Window:
    """Keys fewer than `size` positions away; `causal & window(n)` is a sliding window."""
    return Window(size)


def same_segment(k_segments: Tensor, q_segments: Tensor | None = None) -> SameSegment:
    """Keys of the query's own document. Queries default to the END of the keys."""
    q_segments = k_segments if q_segments is None else q_segments
    for name, segments in (("k_segments", k_segments), ("q_segments", q_segments)):
        if not isinstance(segments, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(segments).__name__}: {segments!r}")
        if segments.is_floating_point() or segments.ndim not in (1, 2):
            raise ValueError(
                f"{name} must be integers [T] or [B, T], "
                f"got {segments.dtype} {list(segments.shape)}"
            )
    return SameSegment(q_segments, k_segments)


def _rows(segments: Tensor) -> Tensor:
    return segments if segments.ndim == 2 else segments[None]


def parts_of(mask: Mask | None) -> tuple[Mask, ...]:
    """The masks that were joined with `&`; none where every key is seen."""
    if mask is None:
        return ()
    return mask.parts if isinstance(mask, All) else (mask,)


def is_causal(mask: Mask | None) -> bool:
    """Whether no query sees a key after it."""
    return any(isinstance(part, Causal) for part in parts_of(mask))
