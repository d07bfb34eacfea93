"""Reading the config of a model, in the forms that transformers has had and that others use."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from posenc.contracts import Scheme
from posenc.interop.cells import CELLS, cells_table
from posenc.interop.config_files import HasDict, config_path, read_object
from posenc.interop.decomposed import DECOMPOSED
from posenc.interop.dialects import DIALECTS
from posenc.interop.errors import ConfigError
from posenc.interop.families import Family, class_defaults
from posenc.interop.keys import Keys, shown
from posenc.interop.layers import windows
from posenc.interop.model_scheme import LearnedAxes, LearnedPositions, ModelScheme
from posenc.interop.other_families import OTHER
from posenc.interop.other_positions import Parts, other_parts
from posenc.interop.refused import REFUSED
from posenc.interop.relative import RELATIVE
from posenc.interop.remote_families import REMOTE
from posenc.interop.rope_config import rope_layers
from posenc.interop.rope_families import ROPE
from posenc.interop.vision import VISION, axial_layers
from posenc.interop.windows import WINDOWED
from posenc.interop.write import config_from_scheme

__all__ = [
    "FAMILIES",
    "ConfigError",
    "LearnedAxes",
    "LearnedPositions",
    "ModelScheme",
    "config_from_scheme",
    "scheme_from_config",
]

FAMILIES: Mapping[str, Family] = {
    **ROPE, **REMOTE, **OTHER, **VISION, **WINDOWED, **RELATIVE, **DECOMPOSED,
    **CELLS, **REFUSED,
}  # fmt: skip

# Where a model of several parts keeps its language model.
_TEXT_SECTIONS = (
    "text_config",
    "language_config",
    "llm_config",
    "thinker_config",
    "decoder_config",
)
_TWO_SECTIONS = (("encoder", "decoder"), ("encoder_config", "decoder_config"))
_ABOUT_POSITION = re.compile(r"rope|rotary|alibi|ntk")


def scheme_from_config(
    config: Mapping[str, Any] | HasDict | str | Path,
    *,
    model_type: str | None = None,
    part: str | None = None,
) -> ModelScheme:
    """How a model encodes position, from its config: an object, a config.json or its folder.

    `scheme_from_config(model.config)` reads the config object of a loaded model.

    >>> model = scheme_from_config({
    ...     "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    ...     "num_hidden_layers": 32, "max_position_embeddings": 8192, "rope_theta": 500000.0})
    >>> model.scheme.rotary.base
    500000.0

    Also reads Meta's params.json and, with the gguf package, the header of a .gguf file.
    `model_type` overrules the config's own; `part` names a nested object to read, where a model
    has several ("vision_config", "encoder_config"). Raises ConfigError where the config is not
    understood to the last key about positions: the key, its value, what was expected.
    """
    if not isinstance(config, str | Path):
        return _from_object(_object(config), model_type, part)
    path = config_path(Path(config))
    if path.suffix == ".gguf":
        from posenc.interop.gguf import scheme_from_gguf  # noqa: PLC0415  an optional package

        return scheme_from_gguf(path)
    return _from_object(read_object(path), model_type, part)


def _from_object(raw: Mapping[str, Any], model_type: str | None, part: str | None) -> ModelScheme:
    if "model_type" not in raw and model_type is None and "dim" in raw:
        from posenc.interop.meta import scheme_from_params  # noqa: PLC0415

        return scheme_from_params(raw)
    return _read(_part(Keys(raw), part), model_type)


def _object(raw: object) -> Mapping[str, Any]:
    if isinstance(raw, HasDict) and not isinstance(raw, type):
        raw = raw.to_dict()
    if not isinstance(raw, Mapping):
        raise ConfigError(f"a config is an object, got {shown(raw)}")
    return raw


def _part(keys: Keys, part: str | None) -> Keys:
    for name in part.split(".") if part else ():
        section = keys.section(name)
        if section is None:
            keys.missing(name, f"part={part!r} was asked for")
        keys = section
    return keys


def _read(keys: Keys, model_type: str | None) -> ModelScheme:
    """The language model, or the decoder with its encoder where a config has both as sections."""
    known = model_type or keys.text("model_type")
    for names in _TWO_SECTIONS:
        if known not in FAMILIES and all(isinstance(keys.raw.get(x), Mapping) for x in names):
            encoder, decoder = (_from_keys(_part(keys, name), None) for name in names)
            return replace(decoder, encoder=encoder, used_keys=tuple(keys.read.used))
    return _from_keys(keys, model_type)


def _from_keys(keys: Keys, model_type: str | None) -> ModelScheme:
    keys, model_type = _language_model(keys, model_type)
    family = FAMILIES[model_type]
    if family.refuse:
        raise ConfigError(
            f"{keys.path}model_type = {model_type!r} is not supported: {family.refuse}"
        )
    fallback = class_defaults(model_type) if keys.path else {}
    keys = replace(keys, aliases=family.aliases, fallback=fallback)
    scaling = None
    if family.dialect:
        said = DIALECTS[family.dialect](keys, family)
        keys, family, scaling = said.keys, said.family, said.scaling
    if family.position == "rope":
        layers, kinds = rope_layers(keys, family, scaling)
        parts = Parts(layers, softmax_scale=_softmax_scale(keys, family))
    elif family.position == "axial":
        parts, kinds = Parts(axial_layers(keys, family), cells_table(keys, family)), ()
    else:
        parts, kinds = other_parts(keys, family, model_type), ()
    for note in family.notes:
        keys.note(note)
    max_length = parts.max_length or _max_length(keys)
    made = windows(keys, family, kinds)
    _check_all_read(keys, family)
    return ModelScheme(
        model_type,
        parts.layers,
        parts.additive,
        kinds,
        made,
        parts.softmax_scale,
        max_length,
        _original_length(parts.layers, max_length),
        parts.encoder,
        tuple(keys.read.used),
        MappingProxyType(dict(keys.read.defaults)),
        tuple(keys.read.notes),
    )


def _language_model(keys: Keys, model_type: str | None) -> tuple[Keys, str]:
    """The section of the language model, and its family."""
    for _ in range(4):  # thinker_config.text_config is as deep as models go
        model_type = model_type or keys.text("model_type")
        if model_type is not None and model_type in FAMILIES:
            return keys, model_type
        section = next((keys.section(name) for name in _TEXT_SECTIONS if name in keys), None)
        if section is None:
            break
        keys, model_type = section, section.text("model_type") or _text_type(model_type)
    if model_type is None:
        keys.missing("model_type", "it names the family")
    flat = _text_type(model_type)  # Qwen2-VL's first configs have no text_config
    if flat in FAMILIES:
        return keys, flat
    return keys.fail("model_type", model_type, f"a family that is known here; {_instead(keys)}")


def _instead(keys: Keys) -> str:
    """What may be asked for of a config of several parts, or of a family that has no name here."""
    said = {
        name: section.get("model_type")
        for name, section in keys.raw.items()
        if isinstance(section, Mapping)
    }
    known = {
        name: kind for name, kind in said.items() if isinstance(kind, str) and kind in FAMILIES
    }
    if known:
        listed = ", ".join(f"part={name!r} ({kind})" for name, kind in known.items())
        return f"of its parts these are: {listed}"
    return "model_type= of a known one reads the config like that one"


def _text_type(model_type: str | None) -> str:
    return f"{model_type}_text"


def _softmax_scale(keys: Keys, family: Family) -> float | None:
    if not family.scale_key or family.scale_key not in keys:
        return None
    value = keys.number(family.scale_key, above=0)
    return value if "multiplier" in family.scale_key else value**-0.5


def _max_length(keys: Keys) -> int | None:
    names = ("max_position_embeddings", "model_max_length", "seq_length", "max_seq_len")
    name = next((name for name in names if name in keys), None)
    return None if name is None else keys.integer(name)


def _original_length(layers: tuple[Scheme, ...], max_length: int | None) -> int | None:
    """The trained length, where the scaling of the layers says it, or none of them is scaled."""
    scalings = [getattr(x.rotary, "scaling", None) for x in layers]
    lengths = {getattr(scaling, "original_length", None) for scaling in scalings if scaling}
    if not any(scalings):
        return max_length
    return lengths.pop() if len(lengths) == 1 else None


def _check_all_read(keys: Keys, family: Family) -> None:
    """A key about positions that nothing has read means that this reader knows less than the code."""
    known = {*family.theta_keys.values(), family.per_layer, family.period}
    for key, value in keys.raw.items():
        read = f"{keys.path}{key}" in keys.read.used or key in known
        if read or value is None or value is False or value in ([], {}):
            continue
        if isinstance(key, str) and _ABOUT_POSITION.search(key):
            keys.fail(key, value, "no such key: nothing of this family is known to read it")
