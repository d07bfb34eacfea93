"""The second contract: rotations of queries and keys, as tables that know how they are applied."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from posenc.frequencies import Frequencies

__all__ = ["Pairing", "RotaryEncoding", "RotaryTables", "Rotation", "Table", "table_from_angles"]

Pairing = Literal["half", "adjacent"]


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
