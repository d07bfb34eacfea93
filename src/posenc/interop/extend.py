"""A config for longer texts: the scaling method written into it, and every number explained."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from posenc.interop.extend_explained import LENGTH, about_readers, explained
from posenc.interop.hf import FAMILIES, ConfigError, config_from_scheme, scheme_from_config
from posenc.interop.keys import Keys
from posenc.interop.model_scheme import ModelScheme, described
from posenc.interop.reach import about_windows, reaching
from posenc.interop.rotations import rope_of
from posenc.interop.scaling_keys import METHODS, method_name
from posenc.interop.text_section import text_section, with_section
from posenc.query_scale import StepLogScale
from posenc.rotary import Rope
from posenc.scaling import NTK, DynamicNTK, Linear, Llama3, Proportional, Scaling, Yarn

__all__ = ["EXTENSIONS", "Extension", "extend_config"]

TYPE_KEYS = ("type", "rope_type")
SAY_IT = "say it (original_length=, --original-length)"
SHARES = frozenset({"partial_rotary_factor", "rotary_pct", "rope_pct", "rope_percent"})

# What --method takes: from the factor and the trained length to the method.
EXTENSIONS: Mapping[str, Callable[[float, int], Scaling]] = {
    "yarn": Yarn,
    "linear": lambda factor, length: Linear(factor),
    "ntk": lambda factor, length: NTK(factor),
    "dynamic": DynamicNTK,
    "llama3": Llama3,
}


@dataclass(frozen=True)
class Extension:
    """A new config, and a line about each number in it."""

    config: dict[str, Any]
    explained: tuple[str, ...]


def extend_config(
    raw: Mapping[str, Any],
    *,
    to: int,
    method: str = "yarn",
    replace_scaling: bool = False,
    original_length: int | None = None,
) -> Extension:
    """A copy of a config for texts of `to` tokens; everything else in it stays.

    >>> extend_config(json.loads(text), to=131_072).config["rope_parameters"]
    {'rope_theta': 1000000.0, 'rope_type': 'yarn', 'factor': 4.0, ...}

    The new config is read back and must say what was meant. Layers with a sliding window keep their
    rotation, since they never see farther, unless one section says the rotation of all layers, as in
    gpt-oss and Gemma 2: then theirs changes as well, and a line says so.

    `original_length` is the length that the model was trained at, for a config that does not say it
    (linear scaling) or whose maximum is a longer one. Raises ConfigError where the config says
    another, where the model is scaled by another method already (`replace_scaling` starts again from
    the trained length), rotates nothing, or reaches `to` as it is.
    """
    if method not in EXTENSIONS:
        raise ConfigError(f"method {method!r} is unknown: expected {', '.join(EXTENSIONS)}")
    _check_length(original_length)
    model = scheme_from_config(raw)
    ropes = {index: _rope(model, index) for index in reaching(model)}
    if not ropes:
        raise ConfigError(f"no layer of this {model.model_type} rotates and sees the whole text")
    original = _original(model, ropes, original_length)
    if to <= original:
        raise ConfigError(f"the model was trained at {original} tokens: {to} is no extension")
    scaling = EXTENSIONS[method](to / original, original)
    _check_method(ropes, scaling, original, replace_scaling)
    extended = {index: (rope, _extended(rope, scaling)) for index, rope in ropes.items()}
    written = _written(raw, model, extended, to)
    said = scheme_from_config(written)
    extended |= _sharing(model, said, extended)
    _check_says(said, model, extended)
    old, new = next(iter(extended.values()))
    lines = explained(old, new, original, to, model.max_length)
    about = (*about_windows(model, extended, original), *about_readers(model.model_type))
    return Extension(written, (*lines, *about))


def _check_length(given: object) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 2):
        raise ConfigError(f"original_length must be an int of at least 2, got {given!r}")


def _rope(model: ModelScheme, layer: int) -> Rope:
    rotary = model.layers[layer].rotary
    rope = rope_of(rotary)
    if not isinstance(rope, Rope):
        raise ConfigError(f"layer {layer} turns by {rotary!r}, which no method extends")
    return rope


def _is_longer(scaling: Scaling | None) -> bool:
    """Whether a method reaches beyond the trained length; Gemma 4's only says which pairs turn."""
    return scaling is not None and not (isinstance(scaling, Proportional) and scaling.factor == 1)


def _original(model: ModelScheme, ropes: Mapping[int, Rope], given: int | None) -> int:
    """The trained length: what the method in use says, else what is given, else the maximum."""
    scalings = [rope.scaling for rope in ropes.values() if _is_longer(rope.scaling)]
    lengths = {getattr(scaling, "original_length", None) for scaling in scalings}
    if not scalings:
        lengths = {given or model.max_length}
    if len(lengths) > 1:
        listed = ", ".join(sorted(map(str, lengths)))
        raise ConfigError(f"the layers were trained at different lengths: {listed}")
    said = lengths.pop()
    length = given if said is None else said
    if length is None and scalings:
        raise ConfigError(
            f"the model is scaled already, by {scalings[0]}, and its config does not say from which "
            f"trained length: {SAY_IT}"
        )
    if length is None:
        raise ConfigError(f"the config does not say the trained length ({LENGTH}): {SAY_IT}")
    if given not in (None, length):
        raise ConfigError(
            f"original_length = {given} was given, but the config says {length}, by {scalings[0]}"
        )
    return length


def _check_method(
    ropes: Mapping[int, Rope], scaling: Scaling, original: int, replace_scaling: bool
) -> None:
    """Raise where another method is in use, unless it is to be replaced and can be."""
    for rope in ropes.values():
        old = rope.scaling
        if isinstance(old, Proportional) and not isinstance(scaling, Linear):
            raise ConfigError(
                f"{old} says which pairs turn, and no other method does: only 'linear' divides them"
            )
        goes_on = old is None or _same_method(old, scaling)
        if not goes_on and not replace_scaling:
            raise ConfigError(
                f"the model is scaled already, by {old}: another method starts again from "
                f"the original length {original} (--replace, replace_scaling=True)"
            )


def _same_method(old: Scaling | None, new: Scaling) -> bool:
    """Whether only the factor changes; Gemma 4's method has one like that of linear scaling."""
    return type(old) is type(new) or (isinstance(old, Proportional) and isinstance(new, Linear))


def _extended(rope: Rope, scaling: Scaling) -> Rope:
    """The rope scaled anew; of the method in use only the factor changes, its options stay."""
    old: Any = rope.scaling
    if not _same_method(old, scaling):
        return replace(rope, scaling=scaling)
    factor: float = getattr(scaling, "factor")  # noqa: B009 - every extension has one
    return replace(rope, scaling=replace(cast("Any", old), factor=factor))


def _written(
    raw: Mapping[str, Any], model: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]], to: int
) -> dict[str, Any]:
    path, section = text_section(raw)
    section = dict(section)
    family = FAMILIES[model.model_type]
    for layer, (old, new) in ropes.items():
        kind = model.layer_types[layer] if any(model.layer_types) else None
        base = family.theta_keys.get(kind or "", "rope_theta")
        if (
            base != "rope_theta"
        ):  # ModernBERT's global_rope_theta: one section cannot say both types
            section["rope_parameters"] = {kind: {}, **(section.get("rope_parameters") or {})}
        keys = config_from_scheme(new, form="current" if "rope_parameters" in section else "legacy")
        keys = _with_beta(keys, model, layer)
        _merge(section, keys, kind, old)
        if base in section:  # where it is not rope_theta, there is one in the section as well
            section[base] = keys.get("rope_parameters", keys)["rope_theta"]
        new_length = keys.get(LENGTH, to)  # dynamic scaling starts at the maximum: it stays
        section[family.aliases.get(LENGTH, LENGTH)] = new_length
    return with_section(raw, path, section)


def _with_beta(keys: dict[str, Any], model: ModelScheme, layer: int) -> dict[str, Any]:
    """Mistral keeps the scale of its queries among the keys of the rotation."""
    scale = model.layers[layer].query_scale
    if FAMILIES[model.model_type].query_scale != "mistral" or not isinstance(scale, StepLogScale):
        return keys
    name = "rope_parameters" if "rope_parameters" in keys else "rope_scaling"
    beta = {"llama_4_scaling_beta": scale.coefficient}
    return {**keys, name: {**(keys[name] or {}), **beta}}


def _merge(section: dict[str, Any], keys: Mapping[str, Any], kind: str | None, old: Rope) -> None:
    """Put the keys of a method where the config keeps them, for all layers or one type."""
    current = "rope_parameters" in keys
    name = "rope_parameters" if current else "rope_scaling"  # the form before transformers 5
    there = section.get(name) or {}
    typed = kind is not None and isinstance(there.get(kind), Mapping)
    beside = there[kind] if typed else there
    new = {**_kept(beside, old), **(keys[name] or {})}
    if "partial_rotary_factor" not in beside and SHARES & section.keys():
        new.pop("partial_rotary_factor", None)
    if not current:
        named = [key for key in TYPE_KEYS if key in beside] or ["type"]
        method = new.pop("type", "default")
        new |= dict.fromkeys(named, method)
    base = keys["rope_parameters"]["rope_theta"] if current else keys["rope_theta"]
    if current or "rope_theta" in beside:
        new["rope_theta"] = base
    plain = not current and set(new) <= set(TYPE_KEYS) and not there
    section[name] = None if plain else {**there, kind: new} if typed else new
    if "rope_theta" in section or not (current or typed):
        section["rope_theta"] = base


def _kept(beside: Mapping[str, Any], old: Rope) -> dict[str, Any]:
    """What a section says of other things than the method that it had: sections, shares, betas."""
    known = set(TYPE_KEYS) | {LENGTH}
    if old.scaling is not None:
        known |= METHODS[method_name(Keys(beside))].keys
    return {key: value for key, value in beside.items() if key not in known}


def _sharing(
    model: ModelScheme, said: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]]
) -> dict[int, tuple[Rope, Rope]]:
    """Layers with a window that turn by the very rope of the others, where one section says both."""
    meant = dict(ropes.values())
    shared = {}
    for index, (before, after) in enumerate(zip(model.layers, said.layers, strict=True)):
        old, new = rope_of(before.rotary), rope_of(after.rotary)
        if index not in ropes and old in meant and _same_speed(meant[old], new):
            shared[index] = old, meant[old]
    return shared


def _check_says(
    said: ModelScheme, model: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]]
) -> None:
    """What was read back: extended layers turn as meant, the rest of the model is as before."""
    about_model = ("layer_types", "windows", "softmax_scale", "additive", "encoder")
    for name in about_model:
        if getattr(said, name) != getattr(model, name):
            raise ConfigError(f"the config cannot say this: its {name} would change as well")
    for index, (before, after) in enumerate(zip(model.layers, said.layers, strict=True)):
        if index not in ropes:
            if described(after) != described(before):
                raise ConfigError(f"the config cannot say this: layer {index} would change as well")
            continue
        shape = [described(replace(x, rotary=_without_speed(x.rotary))) for x in (before, after)]
        if shape[0] != shape[1] or not _same_speed(ropes[index][1], rope_of(after.rotary)):
            raise ConfigError(f"the config cannot say this: layer {index} would be {after!r}")


def _without_speed(rotary: Any) -> Any:
    """A rotation without what an extension changes: which channels turn, by which coordinate."""
    rope = rope_of(rotary)
    plain = replace(rope, base=2.0, scaling=None)
    return plain if rope is rotary else replace(rotary, rope=plain)


def _same_speed(meant: Rope, said: Rope) -> bool:
    a, b = meant.frequencies(), said.frequencies()
    return (
        a.inv_freq.shape == b.inv_freq.shape
        and a.inv_freq.allclose(b.inv_freq, rtol=1e-12, atol=0)
        and math.isclose(a.attention_factor, b.attention_factor, rel_tol=1e-12)
        and math.isclose(a.softmax_scale, b.softmax_scale, rel_tol=1e-12)
    )
