"""Where the language model's part of a config is: the one rule for reading, extending, converting."""

from collections.abc import Mapping
from typing import Any

from posenc.interop.cells import CELLS
from posenc.interop.decomposed import DECOMPOSED
from posenc.interop.errors import ConfigError
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.other_families import OTHER
from posenc.interop.refused import REFUSED
from posenc.interop.relative import RELATIVE
from posenc.interop.remote_families import REMOTE
from posenc.interop.rope_families import ROPE
from posenc.interop.vision import VISION
from posenc.interop.windows import WINDOWED

__all__ = ["FAMILIES", "language_model", "text_section", "two_sections", "with_section"]

FAMILIES: Mapping[str, Family] = {
    **ROPE, **REMOTE, **OTHER, **VISION, **WINDOWED, **RELATIVE, **DECOMPOSED,
    **CELLS, **REFUSED,
}  # fmt: skip

# Where a model of several parts keeps its language model.
_SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config", "decoder_config")
_PAIRS = (("encoder", "decoder"), ("encoder_config", "decoder_config"))


def text_section(raw: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The path of keys to the language model's section, and that section; the config where flat.

    >>> text_section({"thinker_config": {"text_config": {"model_type": "qwen2"}}})
    (('thinker_config', 'text_config'), {'model_type': 'qwen2'})

    Of an encoder with a decoder it is the decoder's. A config that names no known family is taken
    as flat: whoever reads one has said its family by hand.
    """
    keys = Keys(raw)
    try:
        pair = two_sections(keys, keys.text("model_type"))
        keys = keys if pair is None else keys.section(pair[1]) or keys
        keys, _ = language_model(keys, None)
    except ConfigError:
        return (), raw
    return tuple(keys.path.split(".")[:-1]), keys.raw


def with_section(
    raw: Mapping[str, Any], path: tuple[str, ...], section: Mapping[str, Any]
) -> dict[str, Any]:
    """A copy of a config with another object at the path that `text_section` gave."""
    if not path:
        return dict(section)
    first, *rest = path
    return {**raw, first: with_section(raw[first], tuple(rest), section)}


def language_model(keys: Keys, model_type: str | None) -> tuple[Keys, str]:
    """The section of the language model, and its family."""
    for _ in range(4):  # thinker_config.text_config is as deep as models go
        model_type = model_type or keys.text("model_type")
        if model_type is not None and model_type in FAMILIES:
            return keys, model_type
        section = next((keys.section(name) for name in _SECTIONS if name in keys), None)
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


def two_sections(keys: Keys, model_type: str | None) -> tuple[str, str] | None:
    """The names of an encoder's and a decoder's section, where a config has both."""
    for names in _PAIRS:
        if model_type not in FAMILIES and all(isinstance(keys.raw.get(x), Mapping) for x in names):
            return names
    return None


def _text_type(model_type: str | None) -> str:
    return f"{model_type}_text"
