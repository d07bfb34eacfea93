"""Learned tables, sinusoids and T5's bias, from a config."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posenc.additive import Sinusoidal
from posenc.bias import T5Bias
from posenc.contracts import Scheme
from posenc.interop.alibi import MAX_HEADS, alibi_layers
from posenc.interop.cells import axes_table, cells_layers, cells_table
from posenc.interop.decomposed import decomposed_layers, decomposed_table
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import MAX_LAYERS, num_layers
from posenc.interop.model_scheme import Additive, LearnedPositions, ModelScheme
from posenc.interop.relative import relative_layers
from posenc.interop.windows import layout_layers, window_layers

__all__ = ["Parts", "other_parts"]

MAX_NUMBERS = 1 << 28  # learned ones, of all layers together: 1 GB
MAX_BUCKETS, MAX_DISTANCE = 1024, 1 << 16  # bucket edges are exact integers: dear beyond this

# Options of Sinusoidal, as they are.
WAVES = ("denominator", "layout", "first", "zero_padding", "amplitude")


@dataclass(frozen=True)
class Parts:
    """What a family without rotation has, before names and lengths are added."""

    layers: tuple[Scheme, ...]
    additive: Additive | None = None
    encoder: ModelScheme | None = None
    softmax_scale: float | None = None
    max_length: int | None = None


def other_parts(keys: Keys, family: Family, model_type: str) -> Parts:
    """The parts of a family without rotation. Raises ConfigError before they fill the memory."""
    with torch.device("meta"):
        _check_size(keys, _made(keys, family, model_type))
    return _made(keys, family, model_type)


def _check_size(keys: Keys, parts: Parts) -> None:
    """The largest that is published, DeBERTa-v2-xxlarge, has 2^27.8 numbers in its 48 layers."""
    layers = parts.layers + (parts.encoder.layers if parts.encoder else ())
    modules = {part for scheme in layers for part in scheme.modules().values()}
    numbers = {x for module in modules for x in module.parameters()}
    count = sum(x.numel() for x in numbers)
    if count > MAX_NUMBERS:
        key = next((x for x in ("num_hidden_layers", "depths") if x in keys), "num_hidden_layers")
        keys.fail(
            key, keys.get(key),
            f"layers whose positions have at most {MAX_NUMBERS} learned numbers, not {count}",
        )  # fmt: skip


def _made(keys: Keys, family: Family, model_type: str) -> Parts:
    if family.position == "t5":
        return _t5(keys, family, model_type)
    if family.position in _PARTS:
        return _PARTS[family.position](keys, family)
    return _added(keys, family, model_type)


def _none(keys: Keys, family: Family) -> Parts:
    for key in family.options.get("unused", ()):
        keys.get(key)
    return Parts((Scheme(),) * num_layers(keys))


def _alibi(keys: Keys, family: Family) -> Parts:
    return Parts(alibi_layers(keys, family), softmax_scale=_mpt_scale(keys, family))


def _windows(keys: Keys, family: Family) -> Parts:
    return Parts(window_layers(keys, family))


def _layout(keys: Keys, family: Family) -> Parts:
    table = _table(keys, keys.integer("hidden_size"), family.options)
    return Parts(layout_layers(keys, family), table, max_length=table.num_positions)


def _relative(keys: Keys, family: Family) -> Parts:
    """Vectors of distances, and DeBERTa's table of positions where it has one."""
    made, table = relative_layers(keys, family), None
    if family.options.get("table") and keys.flag("position_biased_input", default=True):
        table = _table(keys, keys.integer(_table_width(keys)), family.options)
    length = None if table is None else table.num_positions
    return Parts(made.layers, table, softmax_scale=made.softmax_scale, max_length=length)


def _decomposed(keys: Keys, family: Family) -> Parts:
    return Parts(decomposed_layers(keys, family), decomposed_table(keys, family))


def _cells(keys: Keys, family: Family) -> Parts:
    return Parts(cells_layers(keys), cells_table(keys, family))


def _axes(keys: Keys, family: Family) -> Parts:
    table = axes_table(keys, family)
    length = None if "rows" in family.table else table.num_positions
    return Parts(cells_layers(keys), table, max_length=length)


def _table_width(keys: Keys) -> str:
    return "embedding_size" if "embedding_size" in keys else "hidden_size"


def _mpt_scale(keys: Keys, family: Family) -> float | None:
    section = keys.section("attn_config") if family.options.get("mpt") else None
    if section is None or "softmax_scale" not in section:
        return None
    return section.number("softmax_scale", above=0)


_PARTS: Mapping[str, Callable[[Keys, Family], Parts]] = {
    "none": _none,
    "alibi": _alibi,
    "window": _windows,
    "layout": _layout,
    "relative": _relative,
    "decomposed": _decomposed,
    "cells": _cells,
    "axes": _axes,
}

# Added to embeddings ------------------------------------------------------------------------------


def _added(keys: Keys, family: Family, model_type: str) -> Parts:
    added = keys.text("position_embedding_type")
    if added not in (None, "absolute"):
        keys.fail("position_embedding_type", added, "'absolute': vectors per distance are not read")
    kind, options = _chosen(keys, family)
    for key in options.get("unused", ()):
        keys.get(key)
    if "if" in options and not keys.flag(options["if"], default=False):
        return _none(keys, family)
    additive = _additive(keys, kind, options)
    length = _length(additive, keys, options)
    if not options.get("seq2seq"):
        return Parts((Scheme(),) * num_layers(keys), additive, max_length=length)
    counts = {
        side: keys.integer(f"{side}_layers", high=MAX_LAYERS) for side in ("encoder", "decoder")
    }
    own = options.get("encoder")
    first = additive if own is None else _additive(keys, own["kind"], own)
    encoder = ModelScheme(
        model_type,
        (Scheme(),) * counts["encoder"],
        first,
        max_length=length if own is None else _length(first, keys, own),
    )
    return Parts((Scheme(),) * counts["decoder"], additive, encoder, max_length=length)


def _chosen(keys: Keys, family: Family) -> tuple[str, Any]:
    """The kind and its options: those of the family, or others where a switch is off (TrOCR)."""
    switch, other = family.options.get("unless", (None, {}))
    if switch is not None and not keys.flag(switch, default=True):
        return "sinusoidal", other
    return family.position, family.options


def _additive(keys: Keys, kind: str, options: Any) -> Additive:
    dim = keys.integer(options.get("dim") or "hidden_size")
    if kind == "learned":
        return _table(keys, dim, options)
    offset = options.get("offset", 0)
    if offset == "padding":  # fairseq: the row of padding, then the text
        offset = keys.integer("pad_token_id", low=0) + 1
    waves = {x: options[x] for x in WAVES if x in options}
    if waves.get("amplitude") == "1/sqrt(dim)":
        waves["amplitude"] = 1 / math.sqrt(dim)
    if options.get("timescales"):
        waves["base"] = _base(keys)
    with about("hidden_size"):
        return Sinusoidal(dim, offset=offset, **waves)


def _base(keys: Keys) -> float:
    """TimesFM's waves go from 2π · min_timescale to 2π · max_timescale."""
    shortest = keys.number("min_timescale", above=0)
    if shortest != 1:
        keys.fail("min_timescale", shortest, "1: a Sinusoidal begins with a wave of 2π")
    return keys.number("max_timescale", above=shortest)


def _table(keys: Keys, dim: int, options: Any) -> LearnedPositions:
    rows = keys.integer(options.get("rows", "max_position_embeddings"))
    if not options.get("padding"):
        return LearnedPositions(rows, dim, options.get("offset", 0))
    padding = keys.integer("pad_token_id", low=0)
    if rows <= padding + 1:
        expected = f"more rows than the {padding + 1} up to pad_token_id"
        keys.fail("max_position_embeddings", rows, expected)
    return LearnedPositions(rows - padding - 1, dim, padding + 1, padding)


def _length(additive: Additive, keys: Keys, options: Any) -> int | None:
    if not isinstance(additive, Sinusoidal):
        return additive.num_positions
    rows = options.get("rows", "max_position_embeddings")
    return keys.integer(rows) if rows in keys else None


# T5 -----------------------------------------------------------------------------------------------


def _t5(keys: Keys, family: Family, model_type: str) -> Parts:
    """T5 uses no 1/√d; one bias for all layers of a stack (UMT5: one a layer)."""
    options = family.options
    if local := options.get("local"):
        _only_local(keys, local)
    if options.get("padding"):  # MPNet: BERT's scale, RoBERTa's table, and T5's bias
        layers = _biased(keys, num_layers(keys), bidirectional=True)
        table = _table(keys, keys.integer("hidden_size"), options)
        return Parts(layers, table, max_length=table.num_positions)
    if options.get("decoder_only"):
        return Parts(_biased(keys, num_layers(keys), bidirectional=False), softmax_scale=1.0)
    per_layer = bool(options.get("per_layer"))
    count = num_layers(keys)
    encoder = ModelScheme(
        model_type, _biased(keys, count, True, per_layer), softmax_scale=1.0
    )  # fmt: skip
    if "num_decoder_layers" in keys:
        count = keys.integer("num_decoder_layers", high=MAX_LAYERS)
    return Parts(_biased(keys, count, False, per_layer), encoder=encoder, softmax_scale=1.0)


def _only_local(keys: Keys, key: str) -> None:
    kind = keys.text(key, ("local", "transient-global"))
    if kind == "transient-global":
        keys.fail(key, kind, "'local': the bias of global blocks is not supported")


def _biased(
    keys: Keys, count: int, bidirectional: bool, per_layer: bool = False
) -> tuple[Scheme, ...]:
    heads = keys.integer("num_attention_heads", high=MAX_HEADS)
    buckets = _or_published(keys, "relative_attention_num_buckets", 32, MAX_BUCKETS)
    distance = _or_published(keys, "relative_attention_max_distance", 128, MAX_DISTANCE)

    def scheme() -> Scheme:
        bias = T5Bias(
            heads, num_buckets=buckets, max_distance=distance, bidirectional=bidirectional
        )
        return Scheme(bias=bias)

    with about("relative_attention_num_buckets"), torch.random.fork_rng(devices=[]):
        return tuple(scheme() for _ in range(count)) if per_layer else (scheme(),) * count


def _or_published(keys: Keys, key: str, published: int, high: int) -> int:
    if key in keys:
        return keys.integer(key, high=high)
    keys.read.defaults[keys.path + key] = published
    return published
