"""Where position enters one model: one part of each contract, or none."""

from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from posenc.contracts.additive import AdditiveEncoding
from posenc.contracts.axes import axes_of
from posenc.contracts.bias import LogitBias
from posenc.contracts.relative import RelativeKeyValue
from posenc.contracts.tables import RotaryEncoding, RotaryTables

__all__ = ["QueryScale", "Scheme"]


@runtime_checkable
class QueryScale(Protocol):
    """A temperature that depends on the query's position (log-length scaling)."""

    def factors(self, q_pos: Tensor) -> Tensor:
        """`[Q]` or `[B, Q]` positions -> factors of the logits `[B|1, H|1, Q]`."""
        ...


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
                kind = _CONTRACTS[field.name].__name__
                raise TypeError(
                    f"{field.name}= takes {'an' if kind[0] in 'AEIOU' else 'a'} {kind}, "
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
        axes["relative"] = None if self.relative is None else self.relative.num_axes
        axes["query_scale"] = 1 if self.query_scale is not None else None
        if min(axes_of(self.additive), self.num_axes) > 1:
            axes["additive"] = axes_of(self.additive)
        read = {name: count for name, count in axes.items() if count is not None}
        if len(set(read.values())) > 1:
            told = ", ".join(f"{name}= reads {count}" for name, count in read.items())
            raise ValueError(f"the parts of a scheme need positions with the same axes: {told}")

    @property
    def num_axes(self) -> int:
        """Coordinates of one position in attention: what its parts ask for."""
        return max(axes_of(self.bias), axes_of(self.rotary), axes_of(self.relative))

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
