"""Reading the config of a model, in the forms that transformers has had and that others use."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from posenc.contracts import Scheme
from posenc.interop.cells import cells_table
from posenc.interop.config_files import HasDict, config_path, read_object
from posenc.interop.dialects import DIALECTS
from posenc.interop.errors import ConfigError
from posenc.interop.families import Family, class_defaults
from posenc.interop.keys import Keys, shown
from posenc.interop.layers import windows
from posenc.interop.model_scheme import LearnedAxes, LearnedPositions, ModelScheme
from posenc.interop.other_positions import Parts, other_parts
from posenc.interop.rope_config import rope_layers
from posenc.interop.rotations import scaling_of
from posenc.interop.text_section import FAMILIES, language_model, two_sections
from posenc.interop.vision import axial_layers
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

_ABOUT_POSITION = re.compile(r"rope|rotary|alibi|ntk|pos[a-z]*_(?:emb|enc)[a-z]*_type")
# Beside a rotation, keys of every other encoding; lengths of tables are none.
_OTHER_POSITION = re.compile(
    r"^(?!max_|original_max_).*(?:pos(?:ition(?:al)?)?_(?:emb|enc)|rel(?:ative)?_(?:pos|att)|sinusoid)"
)
# Values of position_embedding_type that say what a rotating family does anyway.
_ROTATING = {"rope": None, "rotary": None, "rope_gptj": "adjacent"}


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
    names = two_sections(keys, model_type or keys.text("model_type"))
    if names is None:
        return _from_keys(keys, model_type)
    encoder, decoder = (_from_keys(_part(keys, name), None) for name in names)
    return replace(decoder, encoder=encoder, used_keys=tuple(keys.read.used))


def _from_keys(keys: Keys, model_type: str | None) -> ModelScheme:
    keys, model_type = language_model(keys, model_type)
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
    scalings = [scaling for x in layers if (scaling := scaling_of(x.rotary)) is not None]
    lengths = {getattr(scaling, "original_length", None) for scaling in scalings}
    if not scalings:
        return max_length
    return lengths.pop() if len(lengths) == 1 else None


def _check_all_read(keys: Keys, family: Family) -> None:
    """A key about positions that nothing has read means that this reader knows less than the code."""
    known = {*family.theta_keys.values(), family.per_layer, family.period, *family.idle}
    rotates = family.position == "rope"
    for key, value in keys.raw.items():
        read = f"{keys.path}{key}" in keys.read.used or key in known
        if read or value is None or value is False or value in ([], {}):
            continue
        if not isinstance(key, str) or (rotates and _says_rotation(key, value, family)):
            continue
        if _ABOUT_POSITION.search(key) or (rotates and _OTHER_POSITION.search(key)):
            keys.fail(key, value, "no such key: nothing of this family is known to read it")


def _says_rotation(key: str, value: object, family: Family) -> bool:
    """Whether a key names the encoding, and it is the rotation that the family has."""
    if key != "position_embedding_type" or not isinstance(value, str) or value not in _ROTATING:
        return False
    return _ROTATING[value] in (None, family.pairing)
