"""From a rotation back to the keys that transformers and vLLM read. Nothing is rounded: what is
read back is equal."""

import math
from typing import Any, Literal

from posenc.contracts import Scheme
from posenc.interop.errors import ConfigError
from posenc.interop.families import Family
from posenc.interop.model_scheme import ModelScheme
from posenc.interop.scaling_write import write_scaling
from posenc.query_scale import StepLogScale
from posenc.rotary import MRope, Rope
from posenc.scaling import DynamicNTK, Proportional

__all__ = ["config_from_scheme"]

Form = Literal["current", "legacy"]
_COMMON = ("", "falcon", "dbrx")  # dialects whose code reads the common keys as well
_LENGTH = "max_position_embeddings"


def config_from_scheme(
    scheme: ModelScheme | Scheme | Rope | MRope, *, form: Form = "current"
) -> dict[str, Any]:
    """The keys that say this, to be merged into a model's config.

    >>> config_from_scheme(Rope(128, base=500_000.0))
    {'head_dim': 128, 'rope_parameters': {'rope_theta': 500000.0, 'rope_type': 'default'}}

    `form="legacy"` writes `rope_theta` and `rope_scaling`, for versions before transformers 5. A
    ModelScheme is written with its model_type and its layers, so that the result can be read by
    itself; Falcon's needs `hidden_size` and `num_attention_heads` too, for its class takes no
    head_dim. What configs have no name for is written as what equals it: NTK as another base
    (HunYuan's as alpha), NTKByParts as YaRN with an attention factor of 1. Pairing is not in any
    config: the family fixes it, and one that does not fit the family's is an error, as is all else
    that the keys cannot say. Precision (`angle_dtype`) is not a matter of configs and is left out.
    """
    if form not in ("current", "legacy"):
        raise ValueError(f"form must be 'current' or 'legacy', got {form!r}")
    if isinstance(scheme, ModelScheme):
        return _model(scheme, form)
    rotary = scheme.rotary if isinstance(scheme, Scheme) else scheme
    return _keys_of(_rotation(rotary), None, form)


def _model(model: ModelScheme, form: Form) -> dict[str, Any]:
    from posenc.interop.hf import FAMILIES  # noqa: PLC0415  hf.py imports this file

    family = FAMILIES[model.model_type]
    rotations = dict.fromkeys(_rotation(x.rotary) for x in model.layers if x.rotary is not None)
    if not rotations or family.position != "rope" or family.dialect not in _COMMON:
        raise ConfigError(
            f"only rotations in the common keys are written; this {model.model_type} has "
            f"{'keys of its own' if rotations else 'none'}"
        )
    written: dict[str, Any] = {"model_type": model.model_type}
    written[family.aliases.get("num_hidden_layers", "num_hidden_layers")] = len(model.layers)
    if model.max_length is not None:
        written[family.aliases.get(_LENGTH, _LENGTH)] = model.max_length
    written |= _layer_types(model, family)
    written |= _switches(model, family) | _scales(model, family)
    if len(rotations) == 1 and not family.types:
        keys = _keys_of(next(iter(rotations)), family, form)
    else:
        keys = _by_type(model, family, form)
    return written | _with_beta(model, family, keys)


def _layer_types(model: ModelScheme, family: Family) -> dict[str, Any]:
    """The type of each layer, under the key that the family's class takes."""
    if not any(model.layer_types):
        return {}
    key = family.types_key or family.aliases.get("layer_types", "layer_types")
    if key == "attn_layer_indices":
        full = [i for i, kind in enumerate(model.layer_types) if kind == "full_attention"]
        return {key: full}
    return {key: list(model.layer_types)}


def _switches(model: ModelScheme, family: Family) -> dict[str, Any]:
    """Keys that switch rotation on, for the model or for single layers."""
    written: dict[str, Any] = {}
    if family.only_if is not None:
        written[family.only_if[0]] = family.only_if[1]
    if family.per_layer == "no_rope_layers":
        written["no_rope_layers"] = [int(x.rotary is not None) for x in model.layers]
    if family.per_layer == "layer_rope_theta":
        written["layer_rope_theta"] = [
            0 if x.rotary is None else _rope(x.rotary).base for x in model.layers
        ]
    if any(model.windows):
        written["sliding_window"] = next(width for width in model.windows if width)
    return written


def _scales(model: ModelScheme, family: Family) -> dict[str, Any]:
    """The softmax scale where the config fixes it, and queries scaled by position."""
    written: dict[str, Any] = {}
    if model.softmax_scale is not None:
        scale = model.softmax_scale
        direct = "multiplier" in family.scale_key
        written[family.scale_key] = scale if direct else _whole(scale**-2, scale)
    if family.query_scale == "llama4":
        scales = [x.query_scale for x in model.layers if x.query_scale is not None]
        written["attn_temperature_tuning"] = bool(scales)
        if scales and isinstance(scales[0], StepLogScale):
            written |= {"attn_scale": scales[0].coefficient, "floor_scale": scales[0].step}
    if family.query_scale == "mistral_large4":
        heads = {getattr(x.query_scale, "num_heads", None) for x in model.layers}
        if len(heads) != 1 or None in heads:
            raise ConfigError("every layer of this family has a LearnedLogScale of the same heads")
        written["num_attention_heads"] = heads.pop()
    return written


def _whole(value: float, scale: float) -> float:
    """The whole number whose root this scale is, where there is one."""
    return round(value) if round(value) ** -0.5 == scale else value


def _with_beta(model: ModelScheme, family: Family, keys: dict[str, Any]) -> dict[str, Any]:
    """Mistral keeps the scale of its queries in the rope section."""
    scale = next((x.query_scale for x in model.layers if x.query_scale is not None), None)
    if family.query_scale == "mistral" and isinstance(scale, StepLogScale):
        section = keys["rope_parameters"] if "rope_parameters" in keys else keys["rope_scaling"]
        section["llama_4_scaling_beta"] = scale.coefficient
    return keys


def _by_type(model: ModelScheme, family: Family, form: Form) -> dict[str, Any]:
    """One section for each layer type; all layers of a type must agree."""
    if form == "legacy":
        raise ConfigError("form='legacy' has one rope_scaling for all layers; these differ")
    sections: dict[str, Any] = {}
    written: dict[str, Any] = {}
    own: dict[str, dict[str, int]] = {}
    for index, (kind, scheme) in enumerate(zip(model.layer_types, model.layers, strict=True)):
        label = family.type_of.get(kind or "", kind)
        section = None
        if scheme.rotary is not None:
            keys = _keys_of(_rotation(scheme.rotary), family, form)
            section = keys.pop("rope_parameters")
            for name, value in keys.items():
                if written.setdefault(name, value) != value:
                    own.setdefault(str(index), {})[name] = value
        elif kind not in family.types:
            continue  # a layer without attention, or one whose type never rotates
        if label is None or sections.setdefault(label, section) != section:
            raise ConfigError(f"layers of type {label!r} differ, and no key tells them apart")
    written["rope_parameters"] = sections
    return written | ({"per_layer_config": own} if own else {})


def _keys_of(rotation: Rope | MRope, known: Family | None, form: Form) -> dict[str, Any]:
    """The width of the head and the section of one rotation; its family where that is known."""
    rope = _rope(rotation)
    section, base = write_scaling(rope, known)
    family = known or Family()
    written = _head(rope, family)
    if "rotary_dim" in family.required:  # GPT-J's code knows no other key, and one base
        if (section, base) != ({"rope_type": "default"}, family.theta):
            raise ConfigError(f"this family rotates with base {family.theta} alone, got {rope}")
        return written | {"rotary_dim": rope.rotary_dim}
    section |= _axes(rotation) | (
        {} if (share := _fraction(rope, family)) is None else {"partial_rotary_factor": share}
    )
    if isinstance(rope.scaling, DynamicNTK):  # the length it starts at is the model's
        written[family.aliases.get(_LENGTH, _LENGTH)] = rope.scaling.original_length
    if form == "current":
        return written | {"rope_parameters": {"rope_theta": base, **section}}
    proportional = isinstance(rope.scaling, Proportional)
    if not proportional and "partial_rotary_factor" in section:
        written["partial_rotary_factor"] = section.pop("partial_rotary_factor")
    kind = section.pop("rope_type")
    scaling = None if kind == "default" and not section else {"type": kind, **section}
    return written | {"rope_theta": base, "rope_scaling": scaling}


def _head(rope: Rope, family: Family) -> dict[str, Any]:
    width = rope.rotary_dim or rope.head_dim
    if family.head_dim_computed:
        return {}
    if rope.placement == "leading" or family.trailing:
        return {family.aliases.get("head_dim", "head_dim"): rope.head_dim}
    written: dict[str, Any] = {
        "qk_nope_head_dim": rope.head_dim - width, "qk_rope_head_dim": width,
    }  # fmt: skip
    if family.interleave and rope.pairing != family.pairing:
        written["rope_interleave"] = rope.pairing == "adjacent"
    return written


def _fraction(rope: Rope, family: Family) -> float | None:
    """A share whose product with head_dim truncates to exactly the width; None to leave it out."""
    width = rope.rotary_dim or rope.head_dim
    decoupled = rope.placement == "trailing" and not family.trailing
    whole = width == rope.head_dim and (family.fraction or 1.0) == 1.0
    if decoupled or whole or isinstance(rope.scaling, Proportional):
        return None
    share = width / rope.head_dim
    while int(rope.head_dim * share) < width:
        share = math.nextafter(share, 2.0)
    return share


def _axes(rotation: Rope | MRope) -> dict[str, Any]:
    """The sections of a rotation with several coordinates."""
    if isinstance(rotation, Rope):
        return {}
    if not isinstance(rotation.order, str):
        raise ConfigError(f"no config says which coordinate turns each pair: {rotation}")
    sections = list(rotation.sections)
    if rotation.order == "alternating":  # ERNIE counts rows, columns, then time
        sections = [*sections[1:], sections[0]]
    interleaved = {"mrope_interleaved": True} if rotation.order == "interleaved" else {}
    return {"mrope_section": sections, **interleaved}


def _rotation(rotary: object) -> Rope | MRope:
    if isinstance(rotary, Rope) or (isinstance(rotary, MRope) and isinstance(rotary.rope, Rope)):
        return rotary
    raise ConfigError(f"only a Rope or an MRope of one can be written, got {rotary!r}")


def _rope(rotary: object) -> Rope:
    rotation = _rotation(rotary)
    inner = rotation.rope if isinstance(rotation, MRope) else rotation
    assert isinstance(inner, Rope)
    return inner
