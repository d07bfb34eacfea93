"""The third contract: added to attention logits."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from posenc.contracts.axes import rows
from posenc.positions import check_positions
from posenc.positions.checks import is_bare, is_recorded

__all__ = ["TRAITS", "LogitBias"]

# What a LogitBias says of itself, and what a bias that wraps another one has to say again.
TRAITS = ("num_axes", "by_distance", "falls", "has_class_token", "causal_only")

SPARSE = 16  # distances for each token, beyond which few of a vector's would be read


class LogitBias(nn.Module, ABC):
    """Added to attention logits. `value` is the definition; every other form is derived from it."""

    num_axes: int = 1  # coordinates of one position
    by_distance: bool = False  # whether value depends on q_pos - k_pos alone
    falls: bool = False  # whether it falls with distance so fast that far keys can be left out
    has_class_token: bool = False  # whether −1 on every axis is the place of a class token
    causal_only: bool = False  # whether it means nothing for keys after the query
    constant: tuple[float, ...] | None = None  # a part of every value of a head; softmax cancels it

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        if isinstance(num_heads, bool) or not isinstance(num_heads, int) or num_heads < 1:
            raise ValueError(f"num_heads must be a positive int, got {num_heads!r}")
        self.num_heads = num_heads

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that changes `value`, also by one mixed in, goes back to forms made of it."""
        super().__init_subclass__(**options)
        for form in ("_of_pairs", "_of_distances"):
            if _depth(cls, "value") < _depth(cls, form):
                setattr(cls, form, getattr(LogitBias, form))

    @abstractmethod
    def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The bias of one logit, elementwise over broadcast heads and positions."""

    @final
    def dense(
        self,
        q_pos: Tensor,
        k_pos: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        for_softmax: bool = False,
    ) -> Tensor:
        """`[B|1, H, Q, K]` for positions `[Q]`/`[B, Q]` and `[K]`/`[B, K]`.

        `for_softmax=True` leaves out the constant of each head: large logits round coarsely.
        """
        q_pos, k_pos = self._rows(q_pos, "q_pos"), self._rows(k_pos, "k_pos")
        head = torch.arange(self.num_heads, device=q_pos.device)[:, None, None]
        value = self._of_pairs(head, q_pos[:, None, :, None], k_pos[:, None, None, :])
        value = value.expand(-1, self.num_heads, q_pos.shape[1], k_pos.shape[1])
        return self._shifted(value, head, for_softmax).to(dtype)

    @final
    def per_distance(
        self, distances: Tensor, *, dtype: torch.dtype = torch.float32, for_softmax: bool = False
    ) -> Tensor:
        """`[H, N]` for distances q_pos - k_pos `[N]`; an error where distance alone is not enough."""
        if not self.by_distance:
            raise ValueError(f"{type(self).__name__} does not depend on distance alone")
        distances = check_positions(distances, name="distances")
        head = torch.arange(self.num_heads, device=distances.device)[:, None]
        value = self._of_distances(head, distances).expand(self.num_heads, -1)
        return self._shifted(value, head, for_softmax).to(dtype)

    @final
    def score_mod(self, q_pos: Tensor, k_pos: Tensor) -> Callable[..., Tensor]:
        """The FlexAttention form: `score_mod(score, b, h, q_idx, kv_idx)`.

        A bias of distance is looked up in a vector per head, made here: its distances are read from
        the positions once. Where they are far apart for their number, and for every other bias,
        `value` is computed inside.
        """
        q_pos, k_pos = self._rows(q_pos, "q_pos"), self._rows(k_pos, "k_pos")
        q_shared, k_shared = q_pos.shape[0] == 1, k_pos.shape[0] == 1
        span = self._span(q_pos, k_pos)

        def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            q = q_pos[b * (not q_shared), q_idx]
            k = k_pos[b * (not k_shared), kv_idx]
            return score + self.value(h, q, k).to(score.dtype)

        if span is None:
            return mod
        head = torch.arange(self.num_heads, device=q_pos.device)[:, None]
        distances = torch.arange(span[0], span[1] + 1, device=q_pos.device)
        vector = self._of_distances(head, distances).expand(self.num_heads, -1).contiguous()
        q_place = q_pos - span[0]

        def looked_up(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            q = q_place[b * (not q_shared), q_idx]
            k = k_pos[b * (not k_shared), kv_idx]
            return score + vector[h, q - k].to(score.dtype)

        return looked_up

    def _span(self, q_pos: Tensor, k_pos: Tensor) -> tuple[int, int] | None:
        """The smallest and largest distance, where a vector of all between them is worth its room."""
        is_known = all(is_bare(x) and x.device.type != "meta" for x in (q_pos, k_pos))
        if not self.by_distance or not is_known or is_recorded() or torch.compiler.is_compiling():
            return None
        ends = torch.stack((q_pos.min() - k_pos.max(), q_pos.max() - k_pos.min()))
        low, high = ends.tolist()  # on a device the host waits once, before any kernel
        return (low, high) if high - low < SPARSE * (q_pos.shape[1] + k_pos.shape[1]) else None

    def forward(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.dense(q_pos, k_pos)

    def _of_pairs(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """`[B|1, H|1, Q, K]` for `[H, 1, 1]`, `[B|1, 1, Q, 1]` and `[B|1, 1, 1, K]`; to be overridden
        where all heads together have a faster form."""
        return self.value(head, q_pos, k_pos)

    def _of_distances(self, head: Tensor, distances: Tensor) -> Tensor:
        """`[H, N]` for `[H, 1]` and `[N]`; to be overridden where whole rows have a faster form."""
        return self.value(head, distances, torch.zeros_like(distances))

    def _shifted(self, value: Tensor, head: Tensor, for_softmax: bool) -> Tensor:
        if not for_softmax or self.constant is None:
            return value
        return value - torch.tensor(self.constant, dtype=value.dtype, device=value.device)[head]

    def _rows(self, positions: Tensor, name: str) -> Tensor:
        axes = self.num_axes
        return rows(check_positions(positions, name=name, num_axes=axes), axes)


def _depth(cls: type, name: str) -> int:
    """How far up its line of classes the name is defined."""
    return next(i for i, parent in enumerate(cls.__mro__) if name in vars(parent))
