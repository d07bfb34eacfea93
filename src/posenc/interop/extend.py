"""A config for longer texts: the scaling method written into it, and every number explained."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posenc.frequencies import Spectrum
from posenc.interop.hf import FAMILIES, ConfigError, config_from_scheme, scheme_from_config
from posenc.interop.model_scheme import ModelScheme, described
from posenc.rotary import Rope
from posenc.scaling import NTK, DynamicNTK, Linear, Llama3, Scaling, Yarn
from posenc.scaling.yarn import ramp_ends

__all__ = ["EXTENSIONS", "Extension", "extend_config"]

LENGTH = "max_position_embeddings"
SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config", "decoder_config")

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
    original = model.original_length or model.max_length
    if original is None:
        raise ConfigError(f"the config does not say the trained length ({LENGTH})")
    if to <= original:
        raise ConfigError(f"the model was trained at {original} tokens: {to} is no extension")
    scaling = EXTENSIONS[method](to / original, original)
    ropes = {index: _ropes(model, index, scaling) for index in _reaching(model)}
    if not ropes:
        raise ConfigError(f"no layer of this {model.model_type} rotates and sees the whole text")
    for old, _ in ropes.values():
        if (
            old.scaling is not None
            and type(old.scaling) is not type(scaling)
            and not replace_scaling
        ):
            raise ConfigError(
                f"the model is scaled already, by {old.scaling}: another method starts again from "
                f"the original length {original} (--replace, replace_scaling=True)"
            )
    written = _written(raw, model, ropes, to)
    _check_says(written, model, ropes)
    old, new = next(iter(ropes.values()))
    return Extension(written, tuple(_explained(old, new, model, original, to)))


def _reaching(model: ModelScheme) -> list[int]:
    """The layers that rotate and see the whole text."""
    windows = model.windows or (None,) * len(model.layers)
    rotating = [scheme.rotary is not None for scheme in model.layers]
    far = [i for i, window in enumerate(windows) if rotating[i] and window is None]
    return far or [i for i, rotates in enumerate(rotating) if rotates]


def _ropes(model: ModelScheme, layer: int, scaling: Scaling) -> tuple[Rope, Rope]:
    rotary: Any = model.layers[layer].rotary
    rope = getattr(rotary, "rope", rotary)  # M-RoPE shares out the pairs of a rope
    if not isinstance(rope, Rope):
        raise ConfigError(f"layer {layer} turns by {rotary!r}, which no method extends")
    return rope, replace(rope, scaling=scaling)


def _written(
    raw: Mapping[str, Any], model: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]], to: int
) -> dict[str, Any]:
    name = next((n for n in SECTIONS if isinstance(raw.get(n), Mapping)), None)
    section = dict(raw if name is None else raw[name])
    form = "current" if "rope_parameters" in section else "legacy"
    for layer, (old, new) in ropes.items():
        kind = model.layer_types[layer] if any(model.layer_types) else None
        keys = config_from_scheme(replace(new, pairing=old.pairing), form=form)
        _merge(section, keys, kind)
        new_length = keys.get(LENGTH, to)  # dynamic scaling starts at the maximum: it stays
        section[FAMILIES[model.model_type].aliases.get(LENGTH, LENGTH)] = new_length
    return section if name is None else {**raw, name: section}


def _merge(section: dict[str, Any], keys: Mapping[str, Any], kind: str | None) -> None:
    """Put the keys of a method where the config keeps them, for all layers or one type."""
    if "rope_theta" in keys:  # the form before transformers 5
        section |= {"rope_theta": keys["rope_theta"], "rope_scaling": keys["rope_scaling"]}
        return
    old, new = section.get("rope_parameters") or {}, dict(keys["rope_parameters"])
    typed = kind is not None and isinstance(old.get(kind), Mapping)
    beside = old[kind] if typed else old
    kept = ("mrope_section", "mrope_interleaved", "partial_rotary_factor")
    new |= {key: beside[key] for key in kept if key in beside}
    section["rope_parameters"] = {**old, kind: new} if typed else new
    if "rope_theta" in section:
        section["rope_theta"] = new["rope_theta"]


def _check_says(
    written: Mapping[str, Any], model: ModelScheme, ropes: Mapping[int, tuple[Rope, Rope]]
) -> None:
    """Read the new config back: extended layers turn as meant, the others as before."""
    said = scheme_from_config(written)
    for index, (before, after) in enumerate(zip(model.layers, said.layers, strict=True)):
        rotary: Any = after.rotary
        if index not in ropes:
            if described(after) != described(before):
                raise ConfigError(f"the config cannot say this: layer {index} would change as well")
            continue
        meant = ropes[index][1].frequencies()
        got = getattr(rotary, "rope", rotary).frequencies()
        if not meant.inv_freq.allclose(got.inv_freq, rtol=1e-12):
            raise ConfigError(f"the config cannot say this: layer {index} would be {rotary!r}")


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
    return [
        f"pairs up to {low:g} of {width // 2} turn more than {scaling.beta_fast:g} times in "
        f"{original} tokens and keep their speed; from {high:g} on they turn less than "
        f"{scaling.beta_slow:g} time and are divided by {scaling.factor:g}; a ramp between",
        f"attention factor {new.frequencies().attention_factor:.4f} = 0.1·ln {scaling.factor:g} + 1, "
        "on cos and sin; code that forgets it flattens attention",
    ]


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
