"""Where position enters a Transformer: added to embeddings, rotating q and k, biasing logits,
or as vectors on keys and values. A `Scheme` names one of each; none at all is NoPE.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from posenc.frequencies import Frequencies
from posenc.positions import check_positions, sequence

__all__ = [
    "TRAITS",
    "AdditiveEncoding",
    "Block",
    "LogitBias",
    "Pairing",
    "QueryScale",
    "RelativeKeyValue",
    "RotaryEncoding",
    "RotaryTables",
    "Rotation",
    "Scheme",
    "Table",
    "add_encoding",
    "axes_of",
    "rows",
    "table_from_angles",
]

Pairing = Literal["half", "adjacent"]

# What a LogitBias says of itself, and what a bias that wraps another one has to say again.
TRAITS = ("num_axes", "by_distance", "falls", "has_class_token", "causal_only")


@runtime_checkable
class AdditiveEncoding(Protocol):
    """Added to token embeddings: `[B, T, C] -> [B, T, C]`.

    One that reads several coordinates says so with `num_axes`, one that takes real positions with
    `real_positions`; without them a position is one integer.
    """

    def encode(self, positions: Tensor) -> Tensor: ...

    def __call__(self, x: Tensor, positions: Tensor | None = None) -> Tensor: ...


def add_encoding(encoding: AdditiveEncoding, x: Tensor, positions: Tensor | None) -> Tensor:
    """`x + encoding.encode(positions)`, summed in float32 or wider and rounded once."""
    dim: int = encoding.dim  # pyright: ignore[reportAttributeAccessIssue]
    if x.ndim != 3 or x.shape[-1] != dim or not x.is_floating_point():
        raise ValueError(
            f"{type(encoding).__name__} adds to floating embeddings [B, T, {dim}], "
            f"got {x.dtype} {list(x.shape)}"
        )
    axes, real = axes_of(encoding), bool(getattr(encoding, "real_positions", False))
    if positions is None and axes > 1:
        raise ValueError(
            f"{type(encoding).__name__} reads positions with {axes} axes, [..., T, {axes}]: give "
            "them (posenc.positions.grid makes them for an image)"
        )
    if positions is None:
        positions = sequence(x.shape[1], device=x.device)
    positions = check_positions(positions, num_tokens=x.shape[1], num_axes=axes, real=real)
    values = encoding.encode(positions)
    return (x.to(torch.promote_types(x.dtype, values.dtype)) + values).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Table:
    """Cosines and sines of one set of positions, `[B|1, T, pairs]`, and how to apply them.

    Heads that turn at speeds of their own have `[B|1, H, T, pairs]`.

    It knows its pairing and the head it was made for: nobody passes bare cos and sin of unknown
    width. Channels outside `[start, start + rotary_dim)` pass through bit-equal.
    """

    cos: Tensor
    sin: Tensor
    pairing: Pairing
    head_dim: int
    start: int = 0  # the first channel that turns
    amplified: bool = False  # each position has amplitudes of its own, however large (xPos)

    def __post_init__(self) -> None:
        if self.cos.shape != self.sin.shape or self.start + self.rotary_dim > self.head_dim:
            shapes = f"cos {list(self.cos.shape)}, sin {list(self.sin.shape)}"
            raise ValueError(
                f"a table for heads of {self.head_dim} channels holds one column for each pair, at "
                f"most {self.head_dim // 2}, got {shapes}"
            )

    @property
    def rotary_dim(self) -> int:
        return 2 * self.cos.shape[-1]

    def inverse(self) -> "Table":
        """The table that undoes this one, amplitude included: for outputs that carry a rotation."""
        amplitude = self.cos.square() + self.sin.square()
        return replace(self, cos=self.cos / amplitude, sin=-self.sin / amplitude)


def table_from_angles(
    angle: Tensor,
    rotation: "Rotation",
    attention_factor: float,
    dtype: torch.dtype,
    device: torch.device,
) -> Table:
    """Round cos and sin of `[B|1, T, pairs]` angles once, to `dtype` on `device`."""
    cos, sin = (
        (part * attention_factor).to(dtype).to(device) for part in (angle.cos(), angle.sin())
    )
    start = getattr(rotation, "start", 0)
    return Table(cos, sin, rotation.pairing, rotation.head_dim, start)


@dataclass(frozen=True, eq=False)
class RotaryTables:
    """Tables for queries and for keys, made once per forward and used by every layer.

    It is itself a `RotaryEncoding` (with the positions already filled in). `encoding` is the value
    that made it, so that a cache can tell keys of one rotation from queries of another.
    """

    q: Table
    k: Table
    encoding: Any = None
    attention_factor: float = 1.0
    softmax_scale: float = 1.0
    positions: tuple[Tensor, Tensor] | None = None  # of queries and of keys

    real_positions = True  # they are filled in; what is left of them orders the mask

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> "RotaryTables":
        """These tables; in a wider dtype (the float64 reference) they are made again."""
        for name, table, positions in (("q", self.q, q_pos), ("k", self.k, k_pos)):
            held, given = table.cos.shape[-2], positions.shape[-1]
            if held != given and given == getattr(self.encoding, "num_axes", 1) > 1:
                given = positions.shape[-2]
            if held != given:
                raise ValueError(
                    f"these tables hold {held} positions for {name}, but {given} tokens were given"
                )
        is_wider = torch.promote_types(dtype, self.q.cos.dtype) != self.q.cos.dtype
        if is_wider and self.positions is not None and self.encoding is not None:
            return self.encoding.tables(*self.positions, dtype=dtype)
        return self


@runtime_checkable
class RotaryEncoding(Protocol):
    """Rotates queries and keys."""

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables: ...


class Rotation(Protocol):
    """What a table needs to know of the rotation that makes it: a `Rope`, say."""

    @property
    def head_dim(self) -> int: ...

    @property
    def pairing(self) -> Pairing: ...

    def frequencies(self, device: torch.device | None = None) -> Frequencies: ...


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
        value = self.value(head, q_pos[:, None, :, None], k_pos[:, None, None, :])
        return self._shifted(value, head, for_softmax).to(dtype)

    @final
    def per_distance(
        self, distances: Tensor, *, dtype: torch.dtype = torch.float32, for_softmax: bool = False
    ) -> Tensor:
        """`[H, N]` for distances q_pos - k_pos `[N]`; an error where distance alone is not enough."""
        if not self.by_distance:
            raise ValueError(f"{type(self).__name__} does not depend on distance alone")
        distances = check_positions(distances, num_tokens=distances.shape[-1], name="distances")
        head = torch.arange(self.num_heads, device=distances.device)[:, None]
        value = self.value(head, distances, torch.zeros_like(distances))
        return self._shifted(value, head, for_softmax).to(dtype)

    @final
    def score_mod(self, q_pos: Tensor, k_pos: Tensor) -> Callable[..., Tensor]:
        """The FlexAttention form: `score_mod(score, b, h, q_idx, kv_idx)`."""
        q_pos, k_pos = self._rows(q_pos, "q_pos"), self._rows(k_pos, "k_pos")
        q_shared, k_shared = q_pos.shape[0] == 1, k_pos.shape[0] == 1

        def mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            q = q_pos[b * (not q_shared), q_idx]
            k = k_pos[b * (not k_shared), kv_idx]
            return score + self.value(h, q, k).to(score.dtype)

        return mod

    def forward(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.dense(q_pos, k_pos)

    def _shifted(self, value: Tensor, head: Tensor, for_softmax: bool) -> Tensor:
        if not for_softmax or self.constant is None:
            return value
        return value - torch.tensor(self.constant, dtype=value.dtype, device=value.device)[head]

    def _rows(self, positions: Tensor, name: str) -> Tensor:
        axes = self.num_axes
        num_tokens = _length(positions, axes)
        return rows(
            check_positions(positions, num_tokens=num_tokens, name=name, num_axes=axes), axes
        )


@runtime_checkable
class QueryScale(Protocol):
    """A temperature that depends on the query's position (log-length scaling)."""

    def factors(self, q_pos: Tensor) -> Tensor:
        """`[Q]` or `[B, Q]` positions -> factors of the logits `[B|1, H|1, Q]`."""
        ...


@dataclass(frozen=True, eq=False)
class Block:
    """The queries and keys that meet in one call: where they stand, who sees whom, at which scale.

    `first` holds the positions of the first query and the first key where all of them follow one by
    one: then logits by distance are a view, not a lookup.
    """

    q_pos: Tensor  # [Q] or [B, Q]
    k_pos: Tensor  # [K] or [B, K]
    allowed: Tensor | None = None  # [B|1, 1, Q, K] bool; None where every key is seen
    scale: float = 1.0  # what attention multiplies the logits by
    first: tuple[int, int] | None = None
    start: tuple[int, int] = (0, 0)  # the first query and key, counted in the whole call
    made: Any = None  # what `RelativeKeyValue.prepare` made for the whole call

    def offsets(self) -> Tensor:
        """k_pos − q_pos, `[B|1, 1, Q, K]`."""
        return rows(self.k_pos)[:, None, None, :] - rows(self.q_pos)[:, None, :, None]


class RelativeKeyValue(nn.Module, ABC):
    """Relative positions as vectors: they meet queries, keys and the attention weights."""

    head_dim: int
    num_heads: int | None = None  # None: the vectors are shared by all heads
    adds_values: bool = False  # whether value_sum gives anything

    @abstractmethod
    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        """Unscaled logits `[B, H, Q, K]` to add to q·k before the softmax scale."""

    def prepare(self, whole: Block, dtype: torch.dtype) -> Any:
        """What all blocks of one call share, made once: projected vectors, sinusoids, …"""
        del whole, dtype
        return None

    @final
    def prepared(self, block: Block, dtype: torch.dtype) -> Block:
        """The block with what `prepare` makes; one that stands alone is its own whole."""
        if block.made is not None:
            return block
        return replace(block, made=self.prepare(block, dtype), start=(0, 0))

    def value_sum(self, weights: Tensor, block: Block) -> Tensor | None:
        """`[B, H, Q, D]` to add to the weighted values, or None where values carry none."""
        del weights, block
        return None


@dataclass(frozen=True)
class Scheme:
    """Where position enters one model. `Scheme()` is NoPE; two fields set make a hybrid.

    >>> scheme = Scheme(additive=Learned(512, 768), rotary=Rope(64))
    """

    additive: AdditiveEncoding | None = None
    rotary: RotaryEncoding | None = None
    bias: LogitBias | None = None
    relative: RelativeKeyValue | None = None
    query_scale: QueryScale | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            part = getattr(self, field.name)
            fits_here = isinstance(part, _CONTRACTS[field.name]) and not isinstance(part, type)
            if part is not None and not fits_here:
                fits = [name for name, kind in _CONTRACTS.items() if isinstance(part, kind)]
                hint = f"; it belongs in {fits[0]}=" if fits else ""
                raise TypeError(
                    f"{field.name}= takes a {_CONTRACTS[field.name].__name__}, "
                    f"got {type(part).__name__}{hint}"
                )
        self._check_axes()

    def _check_axes(self) -> None:
        """Every part of one scheme reads the same positions; embeddings may be counted in a row.

        A table for all tokens of an image goes with rotation by rows and columns (EVA-02), and
        Reformer's axial table with a causal mask; two and three coordinates do not go together.
        """
        counts = {"bias": self.bias, "rotary": self.rotary}
        axes = {name: getattr(part, "num_axes", None) for name, part in counts.items()}
        axes["rotary"] = axes["rotary"] if isinstance(axes["rotary"], int) else None
        if self.rotary is not None and not isinstance(self.rotary, RotaryTables):
            axes["rotary"] = axes["rotary"] or 1
        axes["relative"] = 1 if self.relative is not None else None
        axes["query_scale"] = 1 if self.query_scale is not None else None
        if min(axes_of(self.additive), self.num_axes) > 1:
            axes["additive"] = axes_of(self.additive)
        read = {name: count for name, count in axes.items() if count is not None}
        if len(set(read.values())) > 1:
            told = ", ".join(f"{name}= reads {count}" for name, count in read.items())
            raise ValueError(f"the parts of a scheme need positions with the same axes: {told}")

    @property
    def num_axes(self) -> int:
        """Coordinates of one position in attention: what the bias or the rotation asks for."""
        return max(axes_of(self.bias), axes_of(self.rotary))

    @property
    def real_positions(self) -> bool:
        """Whether positions may be real numbers: a learned scale, or nothing that counts steps."""
        counts_steps = self.bias is not None or self.relative is not None
        return not counts_steps and bool(
            getattr(self.rotary, "real_positions", self.rotary is None)
        )

    def modules(self) -> dict[str, nn.Module]:
        """The parts that learn, by field: register them so that an optimizer finds them."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}

    def prepared(self, q_pos: Tensor, k_pos: Tensor) -> "Scheme":
        """The same scheme with its rotary tables made: compute once, use in every layer."""
        if self.rotary is None:
            return self
        return replace(self, rotary=self.rotary.tables(q_pos, k_pos))


_CONTRACTS: dict[str, type] = {
    "additive": AdditiveEncoding,
    "rotary": RotaryEncoding,
    "bias": LogitBias,
    "relative": RelativeKeyValue,
    "query_scale": QueryScale,
}


def rows(positions: Tensor, num_axes: int = 1) -> Tensor:
    """`[T]` or `[B, T]` (with axes behind) -> with a batch dimension, of 1 where shared."""
    return positions if positions.ndim == (2 if num_axes == 1 else 3) else positions[None]


def axes_of(part: object) -> int:
    """Coordinates of one position that a part reads; 1 where it does not say."""
    axes = getattr(part, "num_axes", 1)
    return axes if isinstance(axes, int) else 1


def _length(positions: Tensor, num_axes: int) -> int:
    return positions.shape[-1] if num_axes == 1 else positions.shape[-2]
