"""A config for longer texts: the scaling method written into it, and every number explained."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from posenc.frequencies import Spectrum
from posenc.interop.hf import FAMILIES, ConfigError, config_from_scheme, scheme_from_config
from posenc.interop.keys import Keys
from posenc.interop.model_scheme import ModelScheme, described
from posenc.interop.rotations import rope_of
from posenc.interop.scaling_keys import METHODS, method_name
from posenc.interop.text_section import text_section, with_section
from posenc.query_scale import StepLogScale
from posenc.rotary import Rope
from posenc.scaling import NTK, DynamicNTK, Linear, Llama3, Scaling, Yarn
from posenc.scaling.yarn import ramp_ends

__all__ = ["EXTENSIONS", "Extension", "extend_config"]

LENGTH = "max_position_embeddings"
TYPE_KEYS = ("type", "rope_type")
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
    raw: Mapping[str, Any], *, to: int, method: str = "yarn", replace_scaling: bool = False
) -> Extension:
    """A copy of a config for texts of `to` tokens; everything else in it stays.

    >>> extend_config(json.loads(text), to=131_072).config["rope_parameters"]
    {'rope_theta': 1000000.0, 'rope_type': 'yarn', 'factor': 4.0, ...}

    The new config is read back and must say what was meant. Layers with a sliding window keep their
    rotation: they never see farther. Raises ConfigError where the model is scaled by another method
    already (`replace_scaling` starts again from the trained length), rotates nothing, or reaches `to`
    as it is.
    """
    if method not in EXTENSIONS:
        raise ConfigError(f"method {method!r} is unknown: expected {', '.join(EXTENSIONS)}")
    model = scheme_from_config(raw)
    ropes = {index: _rope(model, index) for index in _reaching(model)}
    if not ropes:
        raise ConfigError(f"no layer of this {model.model_type} rotates and sees the whole text")
    original = _original(model, ropes)
    if to <= original:
        raise ConfigError(f"the model was trained at {original} tokens: {to} is no extension")
    extended = {
        index: (rope, _extended(rope, EXTENSIONS[method](to / original, original), replace_scaling))
        for index, rope in ropes.items()
    }
    written = _written(raw, model, extended, to)
    _check_says(written, model, extended)
    old, new = next(iter(extended.values()))
    return Extension(written, tuple(_explained(old, new, model, original, to)))


def _reaching(model: ModelScheme) -> list[int]:
    """The layers that rotate and see the whole text."""
    windows = model.windows or (None,) * len(model.layers)
    rotating = [scheme.rotary is not None for scheme in model.layers]
    far = [i for i, window in enumerate(windows) if rotating[i] and window is None]
    return far or [i for i, rotates in enumerate(rotating) if rotates]


def _rope(model: ModelScheme, layer: int) -> Rope:
    rotary = model.layers[layer].rotary
    rope = rope_of(rotary)
    if not isinstance(rope, Rope):
        raise ConfigError(f"layer {layer} turns by {rotary!r}, which no method extends")
    return rope


def _original(model: ModelScheme, ropes: Mapping[int, Rope]) -> int:
    """The trained length: the maximum of a model that is not scaled, else what its method says."""
    scalings = [rope.scaling for rope in ropes.values() if rope.scaling is not None]
    lengths = {getattr(scaling, "original_length", None) for scaling in scalings}
    if not scalings:
        lengths = {model.max_length}
    if len(lengths) > 1:
        listed = ", ".join(sorted(map(str, lengths)))
        raise ConfigError(f"the layers were trained at different lengths: {listed}")
    length = lengths.pop()
    if length is None and scalings:
        raise ConfigError(
            f"the model is scaled already, by {scalings[0]}, and its config does not say from which "
            f"trained length: start from a config without it, its {LENGTH} that length"
        )
    if length is None:
        raise ConfigError(f"the config does not say the trained length ({LENGTH})")
    return length


def _extended(rope: Rope, scaling: Scaling, replace_scaling: bool) -> Rope:
    """The rope scaled anew; of the method in use only the factor changes, its options stay."""
    old: Any = rope.scaling
    factor: float = getattr(scaling, "factor")  # noqa: B009 - every extension has one
    if type(old) is type(scaling):
        return replace(rope, scaling=replace(cast("Any", old), factor=factor))
    if old is not None and not replace_scaling:
        raise ConfigError(
            f"the model is scaled already, by {old}: another method starts again from "
            f"the original length {old.original_length} (--replace, replace_scaling=True)"
        )
    return replace(rope, scaling=scaling)


def _written(
    raw: Mapping[str, Any], model: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]], to: int
) -> dict[str, Any]:
    path, section = text_section(raw)
    section = dict(section)
    form = "current" if "rope_parameters" in section else "legacy"
    for layer, (old, new) in ropes.items():
        kind = model.layer_types[layer] if any(model.layer_types) else None
        keys = config_from_scheme(new, form=form)
        keys = _with_beta(keys, model, layer)
        _merge(section, keys, kind, old)
        new_length = keys.get(LENGTH, to)  # dynamic scaling starts at the maximum: it stays
        section[FAMILIES[model.model_type].aliases.get(LENGTH, LENGTH)] = new_length
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


def _check_says(
    written: Mapping[str, Any], model: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]]
) -> None:
    """Read the new config back: extended layers turn as meant, the rest of the model is as before."""
    said = scheme_from_config(written)
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


def _explained(old: Rope, new: Rope, model: ModelScheme, original: int, to: int) -> list[str]:
    factor: float = getattr(new.scaling, "factor")  # noqa: B009 - every extension has one
    first = f"factor {factor:g} = {to} / {original}, new length / trained length"
    explain = _EXPLAIN[type(new.scaling)]
    lines = [first, *explain(replace(old, scaling=None), new, original, to)]
    if not isinstance(new.scaling, DynamicNTK):
        lines.append(f"{LENGTH} {model.max_length} -> {to}")
    return lines


def _explain_yarn(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    scaling, width = new.scaling, plain.rotary_dim or plain.head_dim
    assert isinstance(scaling, Yarn)
    spectrum = Spectrum(1 / plain.frequencies().inv_freq.abs(), plain.base, width)
    low, high = ramp_ends(scaling, spectrum)
    said = [
        f"pairs up to {low:g} of {width // 2} turn more than {scaling.beta_fast:g} times in "
        f"{original} tokens and keep their speed; from {high:g} on they turn less than "
        f"{scaling.beta_slow:g} time and are divided by {scaling.factor:g}; a ramp between",
        f"attention factor {new.frequencies().attention_factor:.4f} = {_amplitude(scaling)}, "
        "on cos and sin; code that forgets it flattens attention",
    ]
    if scaling.scale_softmax:
        square = f"(0.1·{scaling.mscale_all_dim:g}·ln {scaling.factor:g} + 1)²"
        said.append(f"softmax scale times {new.frequencies().softmax_scale:.4f} = {square}")
    return said


def _amplitude(scaling: Yarn) -> str:
    """Where YaRN's attention factor comes from."""
    plain = f"·ln {scaling.factor:g} + 1"
    if scaling.attention_factor is not None:
        formula = 0.1 * math.log(scaling.factor) + 1
        return f"attention_factor, which stays as the config gives it (0.1{plain} = {formula:.4f})"
    if scaling.mscale and scaling.mscale_all_dim:
        return f"(0.1·{scaling.mscale:g}{plain}) / (0.1·{scaling.mscale_all_dim:g}{plain})"
    return f"0.1{plain}"


def _explain_linear(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    return [f"every angle is divided by {to / original:g}: needs fine-tuning to work well"]


def _explain_ntk(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    stretched = plain.base * _bloc97(to / original, plain)
    return [
        f"rope_theta {plain.base:g} -> {stretched:g} = base · factor^(d/(d-2)): the fastest pair "
        f"keeps its speed, the slowest is divided by {to / original:g}"
    ]


def _explain_dynamic(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    factor = to / original
    longest = plain.base * _bloc97(factor * factor - factor + 1, plain)
    return [
        f"{LENGTH} stays {original}: there dynamic scaling starts; at {to} tokens the base is "
        f"{longest:g}. Keys cached earlier were rotated by a smaller one"
    ]


def _explain_llama3(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    scaling = new.scaling
    assert isinstance(scaling, Llama3)
    return [
        f"wavelengths below {original / scaling.high_freq_factor:g} tokens stay, above "
        f"{original / scaling.low_freq_factor:g} they are stretched by {scaling.factor:g}"
    ]


_EXPLAIN: Mapping[type, Callable[[Rope, Rope, int, int], list[str]]] = {
    Yarn: _explain_yarn,
    Linear: _explain_linear,
    NTK: _explain_ntk,
    DynamicNTK: _explain_dynamic,
    Llama3: _explain_llama3,
}


def _bloc97(stretch: float, rope: Rope) -> float:
    width = rope.rotary_dim or rope.head_dim
    return math.pow(stretch, width / (width - 2))
