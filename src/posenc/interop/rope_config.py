"""From a config to the rotation of each layer."""

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from posenc.contracts import Scheme
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import WITHOUT_ATTENTION, layer_types, listed_layers, num_layers
from posenc.interop.query_scales import SCALE_KEYS, query_scale
from posenc.interop.rope_heads import turning
from posenc.interop.rope_sections import Sections
from posenc.interop.scaling_keys import Head, method_name, read_scaling
from posenc.interop.several_axes import MROPE_KEYS, with_axes
from posenc.rotary import Rope
from posenc.scaling import Scaling

__all__ = ["check_finite", "rope_layers"]

# What a config may still say about rotation where no layer rotates.
IDLE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_dim")
IDLE += ("qk_rope_head_dim", "rope_interleave", "rotary_emb_base", "rotary_pct")


@dataclass(frozen=True)
class Layer:
    """What tells one layer's positions from another's."""

    kind: str | None
    rotates: bool = True
    base: float | None = None  # from a list with one base a layer
    share: float | None = None
    scaled: bool = True
    own: tuple[tuple[str, Any], ...] = ()  # keys that this layer overrides


def rope_layers(
    keys: Keys, family: Family, implied: Scaling | None = None
) -> tuple[tuple[Scheme, ...], tuple[str | None, ...]]:
    """The scheme of every layer, equal ones shared unless they learn, and the layers' types.

    `implied` is a scaling that keys outside the rope section ask for.
    """
    kinds = layer_types(keys, family, num_layers(keys))
    sections = Sections.read(keys, family, {kind for kind in kinds if kind is not None})
    layers = _layers(keys, family, kinds)
    if not any(layer.rotates for layer in layers):
        _pass_over(keys)
    made: dict[Layer, Scheme] = {}
    for layer in layers:
        if layer not in made:
            scheme = _scheme(keys, family, sections, layer, implied)
            made[layer] = next((x for x in made.values() if x == scheme), scheme)
    return tuple(_own(made[layer]) for layer in layers), kinds


def _own(scheme: Scheme) -> Scheme:
    """The scheme with a query scale of its own where that learns: no layer shares its weights."""
    scale = scheme.query_scale
    return replace(scheme, query_scale=deepcopy(scale)) if isinstance(scale, nn.Module) else scheme


def check_finite(rotary: Any, key: str) -> None:
    """Frequencies that no float holds are a config's fault: say so now, not in a forward pass."""
    with about(key):
        frequencies = rotary.frequencies()
        values = torch.cat([frequencies.inv_freq, torch.tensor([frequencies.attention_factor])])
        if not values.isfinite().all():
            raise ValueError(f"no finite rotation comes of {rotary}")


def _pass_over(keys: Keys) -> None:
    """Keys of a rotation that no layer has: published configs keep them, and no code reads them."""
    for key in IDLE:
        keys.get(key)


def _layers(keys: Keys, family: Family, kinds: tuple[str | None, ...]) -> list[Layer]:
    """What each layer rotates by."""
    count = len(kinds)
    bases, rotates, scaled = _listed(keys, family, kinds)
    if family.only_if is not None and not _switched_on(keys, *family.only_if):
        rotates = (False,) * count
    shares: tuple[float | None, ...] = (None,) * count
    if "partial_rotary_factors" in keys:
        shares = keys.numbers("partial_rotary_factors", count, "layer")
    own = _overrides(keys, count)
    return [
        Layer(kinds[i], True, bases[i], shares[i], scaled[i], own.get(i, ()))
        if rotates[i] and kinds[i] not in WITHOUT_ATTENTION
        else Layer(kinds[i], False)
        for i in range(count)
    ]


def _switched_on(keys: Keys, key: str, value: object) -> bool:
    if isinstance(value, bool):
        return keys.flag(key, default=not value) == value
    return keys.text(key) == value


def _listed(
    keys: Keys, family: Family, kinds: tuple[str | None, ...]
) -> tuple[tuple[float | None, ...], tuple[bool, ...], tuple[bool, ...]]:
    """The base of each layer, whether it rotates, whether it is scaled."""
    count, name = len(kinds), family.per_layer
    bases: tuple[float | None, ...] = (None,) * count
    every = (True,) * count
    listed = keys.raw.get(name) if name else None
    if name == "no_rope_layers":  # named the wrong way round: 1 means that the layer rotates
        if listed is None or listed == []:
            return bases, _by_interval(keys, family, count), every
        flags = keys.numbers(name, count, "layer")
        if not set(flags) <= {0, 1}:
            keys.fail(name, listed, "1 for layers that rotate and 0 for the others")
        return bases, tuple(flag == 1 for flag in flags), every
    if name == "rope_scaling_layers" and listed is not None:
        return bases, every, listed_layers(keys, name, count)
    if isinstance(listed, list | tuple):
        bases = keys.numbers(name, count, "layer")
        if min(bases) < 0:
            keys.fail(name, listed, "a base for each layer, 0 for layers that do not rotate")
        return bases, tuple(base != 0 for base in bases), every
    everywhere = family.unless_no_window and "sliding_window" not in keys
    still = () if everywhere else family.unrotated
    return bases, tuple(kind not in still for kind in kinds), every


def _by_interval(keys: Keys, family: Family, count: int) -> tuple[bool, ...]:
    interval = keys.integer(family.period) if family.period and family.period in keys else 4
    return tuple((i + 1) % interval != 0 for i in range(count))


def _overrides(keys: Keys, count: int) -> dict[int, tuple[tuple[str, Any], ...]]:
    """Keys that single layers set for themselves, by layer index."""
    section = keys.section("per_layer_config")
    if section is None:
        return {}
    widths = ("head_dim", "qk_nope_head_dim", "qk_rope_head_dim")
    found = {}
    for index, own in section.raw.items():
        number = re.fullmatch(r"\d{1,5}", str(index), re.ASCII)
        if not number or int(index) >= count or not isinstance(own, Mapping):
            section.fail(
                str(index), own, f"layer indices from 0 to {count - 1}, each with an object"
            )
        if int(index) in found:
            section.fail(str(index), own, f"layer {int(index)} once")
        found[int(index)] = tuple((name, own[name]) for name in widths if own.get(name) is not None)
    for index, own in found.items():
        for name, value in own:
            if isinstance(value, bool) or not isinstance(value, int):
                section.fail(f"{index}.{name}", value, "a whole number")
    return found


def _scheme(
    keys: Keys, family: Family, sections: Sections, layer: Layer, implied: Scaling | None
) -> Scheme:
    if layer.kind in WITHOUT_ATTENTION:
        return Scheme()
    section = sections.of(layer.kind) if layer.rotates else None
    if section is None:
        return Scheme(query_scale=query_scale(keys, family, None))
    keys = replace(keys, raw={**keys.raw, **dict(layer.own)})
    rope = _rope(keys, family, section, layer, sections, implied)
    check_finite(rope, _about_base(sections, layer, section, rope))
    rotary = with_axes(rope, family, section) if family.mrope else rope
    return Scheme(rotary=rotary, query_scale=query_scale(keys, family, section))


def _about_base(sections: Sections, layer: Layer, section: Keys, rope: Rope) -> str:
    """The base as the config names it, and the section that it is stretched by."""
    names = sections.said_bases(layer.kind, section) if layer.base is None else {}
    base = next(iter(names), sections.family.per_layer if layer.base is not None else "rope_theta")
    beside = section.path.rstrip(".")
    return f"{base} = {rope.base!r}, {beside}" if beside not in base else f"{base} = {rope.base!r}"


def _rope(
    keys: Keys,
    family: Family,
    section: Keys,
    layer: Layer,
    sections: Sections,
    implied: Scaling | None,
) -> Rope:
    own = layer.base
    base = sections.base(layer.kind, section) if own is None or family.switched else own
    if own not in (None, base):
        keys.disagree({family.per_layer: own, "rope_theta": base})
    part = turning(keys, family, section, layer.kind, layer.share)
    scaling = None
    if layer.scaled:
        also = family.extra | (MROPE_KEYS if family.mrope else frozenset())
        also |= SCALE_KEYS if family.query_scale == "mistral" else frozenset()
        scaling = read_scaling(section, _head(keys, family, part.rotary_dim), also)
        if scaling is not None and implied is not None:
            expected = f"no method next to what implies {implied}"
            section.fail("rope_type", method_name(section), expected)
        scaling = scaling or implied
    with about(section.path.rstrip(".")):
        return Rope(
            part.head_dim,
            base,
            part.pairing,
            part.rotary_dim,
            scaling,
            placement="trailing" if part.trailing else "leading",
            direction=family.direction,
        )


def _head(keys: Keys, family: Family, width: int) -> Head:
    names = ("max_position_embeddings", "original_max_position_embeddings")
    lengths = [keys.integer(name, low=2) if name in keys else None for name in names]
    return Head(width, lengths[0], lengths[1], family.softmax, family.yarn_lists)
