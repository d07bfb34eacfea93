"""What the code of a model family fixes, and its config does not say.

`ROPE` (rope_families.py) and `OTHER` (other_families.py) hold one entry per `model_type`;
class_defaults.json holds the sizes that transformers' config classes take for missing keys.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from posenc.contracts import Pairing

__all__ = ["Family", "class_defaults"]

Position = Literal[
    "rope",
    "axial",
    "alibi",
    "t5",
    "window",
    "layout",
    "relative",
    "decomposed",
    "cells",
    "axes",
    "learned",
    "sinusoidal",
    "none",
]


@dataclass(frozen=True)
class Family:
    """The facts of one model type. The defaults are Llama's.

    Layers: `layers` is the published order of layer types where the config lists none (see
    layers.py), `period` the key that changes it, `unrotated` the types without rotation.
    Rope sections: `types` are the published ones by layer type, `rope` the one of a family without
    types, `type_of` names the section of a layer type where it is not its own, `theta_keys` are
    the older keys of each type's base, `scaled` the types that one flat section reaches.
    """

    position: Position = "rope"
    theta: float | None = 10_000.0  # the published default of the base
    pairing: Pairing = "half"
    direction: Literal[1, -1] = 1  # -1: pairs turn by -p·θ
    trailing: bool = False  # the last channels turn, not the first
    mla: bool = False  # a head is qk_nope_head_dim + qk_rope_head_dim, and the second part turns
    fraction: float | None = None  # published share of the head that turns; None: it is not read
    head_dim: int | None = None  # where hidden_size / num_attention_heads is not the default
    mrope: bool = False  # positions with several axes, whose pairs are ordered and shared out:
    order: Literal["contiguous", "interleaved", "alternating"] = "contiguous"
    sections: tuple[int, ...] = (16, 24, 24)
    rope: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    type_of: Mapping[str, str] = field(default_factory=dict)
    theta_keys: Mapping[str, str] = field(default_factory=dict)
    scaled: tuple[str, ...] = ()
    wide: Mapping[str, int] = field(default_factory=dict)  # head_dim by layer type
    layers: str = ""
    period: str = ""
    types_key: str = ""  # where its class keeps the types of layers, if not where they are read
    head_dim_computed: bool = False  # its class takes no head_dim
    unrotated: tuple[str, ...] = ()
    unless_no_window: bool = False  # `unrotated` holds only where sliding_window is set
    per_layer: str = ""  # a list with one entry a layer: 0 is no rotation, see rope_config.py
    switched: bool = False  # its numbers are no bases: they switch the rotation of a layer on
    only_if: tuple[str, object] | None = None  # a key and the value that switches rotation on
    aliases: Mapping[str, str] = field(default_factory=dict)
    extra: frozenset[str] = frozenset()  # further keys of its rope section
    idle: frozenset[str] = frozenset()  # keys that published configs have and its code never reads
    interleave: bool = False  # the key rope_interleave says the pairing
    required: tuple[str, ...] = ()  # keys that the family's code has no default for
    query_scale: str = ""  # a rule of query_scales.py
    softmax: bool = False  # YaRN's mscale_all_dim reaches the softmax scale
    yarn_lists: bool = False
    windowed: bool = False  # sliding_window holds in every layer
    scale_key: str = ""  # a key that fixes the softmax scale: itself, or the scale is key**-0.5
    options: Mapping[str, Any] = field(default_factory=dict)  # of families without rope
    table: Mapping[str, Any] = field(default_factory=dict)  # of cells.py: what is added first
    dialect: str = ""  # a function of dialects.py that says the config in the common keys
    refuse: str = ""  # why this family is not supported
    notes: tuple[str, ...] = ()


@cache
def class_defaults(model_type: str) -> Mapping[str, Any]:
    """What transformers takes for keys that a nested config leaves out; empty where unknown."""
    text = resources.files("posenc.interop").joinpath("class_defaults.json").read_text("utf-8")
    return json.loads(text).get(model_type, {})
