"""How one whole model encodes position: what a config says, as values of this library."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

from posenc.additive import AxialLearned, Learned, Sinusoidal
from posenc.contracts import Scheme

__all__ = ["Additive", "LearnedAxes", "LearnedPositions", "ModelScheme", "described"]


@dataclass(frozen=True)
class LearnedPositions:
    """A learned table, described: its vectors are in the checkpoint, so none are made here.

    >>> LearnedPositions(2048, 768, offset=2).build()       # OPT: 2,050 rows, the first two unused
    Learned(2048, 768, offset=2)

    `num_positions` counts the positions a text can have, without the rows below `offset`.
    """

    num_positions: int
    dim: int
    offset: int = 0
    padding_idx: int | None = None

    def build(self) -> Learned:
        """The module, with `weight` to be loaded; leaves the random state alone."""
        with torch.random.fork_rng(devices=[]):
            return Learned(
                self.num_positions, self.dim, offset=self.offset, padding_idx=self.padding_idx
            )


@dataclass(frozen=True)
class LearnedAxes:
    """A learned table for each coordinate, described.

    >>> LearnedAxes((64, 64), (64, 192)).build()                # Reformer, at unravel(at, (64, 64))
    AxialLearned((64, 64), (64, 192), axis_order=(0, 1), combine='concatenated')
    """

    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    combine: Literal["concatenated", "added"] = "concatenated"

    @property
    def num_positions(self) -> int:
        """How many positions differ."""
        return math.prod(self.sizes)

    def build(self) -> AxialLearned:
        """The module, with its tables to be loaded; leaves the random state alone."""
        dims = self.dims[0] if self.combine == "added" else self.dims
        with torch.random.fork_rng(devices=[]):
            return AxialLearned(self.sizes, dims, combine=self.combine)


Additive = LearnedPositions | LearnedAxes | Sinusoidal


@dataclass(frozen=True, eq=False)
class ModelScheme:
    """Where position enters each layer of a model.

    >>> model = ModelScheme("llama", (Scheme(rotary=Rope(64)),) * 16)
    >>> model.scheme.rotary.base, model.uses_rope(3)
    (10000.0, True)

    Equal layers hold the same Scheme object. `additive` describes what is added to the embeddings.
    `layer_types` are the config's names; `windows` are sliding windows in tokens, None where a
    layer sees everything. `softmax_scale` is
    the scale of q·k where the config fixes another one than 1/√head_dim. `encoder` is the encoder
    of an encoder-decoder, `layers` then being its decoder. `used_keys` were read, `defaults_used`
    are keys that the config leaves to the published code of its family, `notes` say what a scheme
    cannot.

    Two are equal where they say the same of every layer: parts that learn (T5's bias) by their kind,
    their options and which layers share one, not by their weights, which a config does not hold.
    `used_keys`, `defaults_used` and `notes` tell how it was read and are not compared.
    """

    model_type: str
    layers: tuple[Scheme, ...]
    additive: Additive | None = None
    layer_types: tuple[str | None, ...] = ()
    windows: tuple[int | None, ...] = ()
    softmax_scale: float | None = None
    max_length: int | None = None
    original_length: int | None = None
    encoder: "ModelScheme | None" = None
    used_keys: tuple[str, ...] = ()
    defaults_used: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return self._said() == other._said() if isinstance(other, ModelScheme) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._said())

    def _said(self) -> tuple[Any, ...]:
        told = {"layers", "used_keys", "defaults_used", "notes"}
        plain = tuple(getattr(self, x.name) for x in fields(self) if x.name not in told)
        seen: dict[nn.Module, int] = {}
        return plain, tuple(described(scheme, seen) for scheme in self.layers)

    @property
    def scheme(self) -> Scheme:
        """The scheme of every layer, or a ValueError where layers differ."""
        kinds = list(dict.fromkeys(map(id, self.layers)))
        if len(kinds) != 1:
            groups = [[i for i, x in enumerate(self.layers) if id(x) == kind] for kind in kinds]
            listed = "; ".join(f"layers {group}" for group in groups)
            raise ValueError(
                f"the layers of this {self.model_type} do not share one scheme: {listed}. "
                "Use layers[i]"
            )
        return self.layers[0]

    def uses_rope(self, layer: int) -> bool:
        """Whether this layer rotates its queries and keys."""
        return self.layers[layer].rotary is not None

    def at_length(self, length: int) -> "ModelScheme":
        """For sequences of `length`: length-dependent methods set, everything else unchanged."""
        made = {id(x): _at_length(x, length) for x in self.layers}
        encoder = None if self.encoder is None else self.encoder.at_length(length)
        return replace(self, layers=tuple(made[id(x)] for x in self.layers), encoder=encoder)


def described(scheme: Scheme, seen: dict[nn.Module, int] | None = None) -> tuple[Any, ...]:
    """The parts of a scheme; of one that learns its kind, its options, and its place among them."""
    seen = {} if seen is None else seen
    parts = (getattr(scheme, field.name) for field in fields(scheme))
    return tuple(
        (type(part), repr(part), seen.setdefault(part, len(seen)))
        if isinstance(part, nn.Module)
        else part
        for part in parts
    )


def _at_length(scheme: Scheme, length: int) -> Scheme:
    at_length = getattr(scheme.rotary, "at_length", None)
    return scheme if at_length is None else replace(scheme, rotary=at_length(length))
