"""From the keys of `rope_parameters` (or the older `rope_scaling`) to a scaling method.

One entry of METHODS per name that configs use. A key that the method does not know is an error:
a config that says more than is read would be read wrongly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posenc.interop.errors import about
from posenc.interop.keys import Keys
from posenc.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    Scaling,
    Yarn,
)

__all__ = ["COMMON", "METHODS", "Head", "method_name", "read_scaling"]

# Keys that say which rotation is scaled, not how.
COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True)
class Head:
    """What a method needs to know of the head and of the model."""

    rotary_dim: int
    max_length: int | None = None
    original_length: int | None = None  # from a key outside the section, where there is one
    scale_softmax: bool = False  # whether mscale_all_dim reaches the softmax scale: DeepSeek's MLA
    yarn_lists: bool = False  # whether "yarn" with lists is LongRoPE under YaRN's rule: Phi-3


@dataclass(frozen=True)
class Method:
    keys: frozenset[str]
    read: Callable[[Keys, Head], Scaling | None]


def method_name(keys: Keys, default: str = "default") -> str:
    """The method of a section under its general name; `type` is the older name of `rope_type`."""
    names = {key: keys.text(key, METHODS) for key in ("rope_type", "type") if key in keys}
    general = {key: _GENERAL.get(name or "", name) for key, name in names.items()}
    if len(set(general.values())) > 1:
        keys.disagree(names)
    return next(iter(general.values()), None) or default


def read_scaling(keys: Keys, head: Head, also: frozenset[str] = frozenset()) -> Scaling | None:
    """The method of a section, None for plain rotation. `also` are keys that others read."""
    name = method_name(keys)
    method = METHODS[name]
    if name == "yarn" and head.yarn_lists and "short_factor" in keys:
        method = METHODS["longrope"]
    known = method.keys | COMMON | also
    for key, value in keys.raw.items():
        if key not in known and value is not None:
            keys.fail(key, value, f"no such key with {name!r}, which reads {_listed(method.keys)}")
    with about(f"{keys.path.rstrip('.') or 'config'} ({name})"):
        return method.read(keys, head)


def _default(keys: Keys, head: Head) -> None:
    del keys, head


def _linear(keys: Keys, head: Head) -> Linear:
    del head
    return Linear(keys.number("factor", low=1))


def _dynamic(keys: Keys, head: Head) -> DynamicNTK | NTK:
    if "alpha" in keys:  # HunYuan writes "dynamic" for a base that is stretched once and for all
        if "factor" in keys and keys.number("factor") != 1:
            keys.fail("factor", keys.get("factor"), "1, next to alpha, which does the stretching")
        return NTK(keys.number("alpha", low=1))
    trained = _original(keys, head) or head.max_length
    if trained is None:
        keys.missing("max_position_embeddings", "dynamic scaling starts at that length")
    if head.max_length not in (None, trained):
        keys.fail(
            "original_max_position_embeddings", trained,
            f"max_position_embeddings = {head.max_length}, where dynamic scaling starts",
        )  # fmt: skip
    return DynamicNTK(keys.number("factor", low=1), trained)


def _yarn(keys: Keys, head: Head) -> Yarn:
    original = _required_original(keys, head)
    options: dict[str, Any] = {
        name: keys.number(name)
        for name in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim")
        if name in keys
    }
    keys.flag("finetuned", default=False)  # how the checkpoint came about; it changes no number
    if "max_position_embeddings" in keys:
        length = keys.integer("max_position_embeddings")
        if head.max_length not in (None, length):
            expected = f"the max_position_embeddings = {head.max_length} outside this section"
            keys.fail("max_position_embeddings", length, expected)
    scale_softmax = head.scale_softmax and bool(options.get("mscale_all_dim"))
    return Yarn(
        _factor(keys, head, original),
        original,
        truncate=keys.flag("truncate", default=True),
        scale_softmax=scale_softmax,
        **options,
    )


def _longrope(keys: Keys, head: Head) -> LongRope:
    original = _required_original(keys, head)
    pairs = head.rotary_dim // 2
    what = f"pair of rotary_dim {head.rotary_dim}"
    rule = "yarn" if method_name(keys) == "yarn" else "sqrt"
    attention: dict[str, Any] = {
        field: keys.number(key, above=0)
        for key, field in _AMPLITUDES.items()
        if key in keys
    }  # fmt: skip
    factor = _factor(keys, head, original)
    ratio = max(1.0, (head.max_length or original) / original)
    if not attention and ratio not in (1, factor):
        keys.fail(
            "factor", factor,
            f"max_position_embeddings / original_max_position_embeddings = {ratio:g}: the "
            "attention factor would be one or the other",
        )  # fmt: skip
    return LongRope(
        keys.numbers("short_factor", pairs, what),
        keys.numbers("long_factor", pairs, what),
        factor,
        original,
        attention_rule=rule,
        **attention,
    )


def _llama3(keys: Keys, head: Head) -> Llama3:
    return Llama3(
        keys.number("factor", low=1),
        _required_original(keys, head),
        keys.number("low_freq_factor", above=0),
        keys.number("high_freq_factor", above=0),
    )


def _proportional(keys: Keys, head: Head) -> Proportional:
    del head
    share = "partial_rotary_factor"
    fraction = keys.number(share, low=0) if share in keys else 1
    if fraction > 1:
        keys.fail(share, fraction, "a share of the pairs, from 0 to 1")
    factor = keys.number("factor", low=1) if "factor" in keys else 1.0
    return Proportional(fraction, factor)


def _original(keys: Keys, head: Head) -> int | None:
    name = "original_max_position_embeddings"
    inside = keys.integer(name, low=2) if name in keys else None
    outside = head.original_length
    if inside is not None and outside not in (None, inside):
        keys.fail(name, inside, f"the {name} = {outside} outside this section")
    return inside if inside is not None else outside


def _required_original(keys: Keys, head: Head) -> int:
    """The trained length: transformers would take the extended one, vLLM refuses; so do we."""
    original = _original(keys, head)
    if original is None:
        keys.missing(
            "original_max_position_embeddings", f"{method_name(keys)} needs the trained length"
        )
    return original


def _factor(keys: Keys, head: Head, original: int) -> float:
    """`factor`, or the ratio of the two lengths where the config leaves it out."""
    if "factor" in keys:
        return keys.number("factor", low=1)
    if head.max_length is None:
        keys.missing("factor", "there is no max_position_embeddings to take it from")
    ratio = max(1.0, head.max_length / original)
    keys.read.defaults[f"{keys.path}factor"] = ratio
    return ratio


def _listed(keys: frozenset[str]) -> str:
    return ", ".join(sorted(keys)) or "no further key"


_AMPLITUDES: Mapping[str, str] = {
    "attention_factor": "attention_factor",
    "short_mscale": "short_attention_factor",
    "long_mscale": "long_attention_factor",
}
_LENGTH = "original_max_position_embeddings"
_YARN_KEYS = frozenset(
    {"factor", _LENGTH, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
    | {"truncate", "finetuned", "max_position_embeddings"}
)
_LONGROPE_KEYS = frozenset({"factor", _LENGTH, "short_factor", "long_factor", *_AMPLITUDES})
_LLAMA3_KEYS = frozenset({"factor", _LENGTH, "low_freq_factor", "high_freq_factor"})

METHODS: Mapping[str, Method] = {
    "default": Method(frozenset(), _default),
    "mrope": Method(frozenset(), _default),  # Qwen2-VL's older name for plain rotation by sections
    "linear": Method(frozenset({"factor"}), _linear),
    "dynamic": Method(frozenset({"factor", _LENGTH}), _dynamic),
    "xdrope": Method(frozenset({"factor", _LENGTH}), _dynamic),  # HunyuanOCR's, by sections
    "yarn": Method(_YARN_KEYS, _yarn),
    "longrope": Method(_LONGROPE_KEYS, _longrope),
    "su": Method(_LONGROPE_KEYS, _longrope),  # Phi-3's older name
    "llama3": Method(_LLAMA3_KEYS, _llama3),
    "proportional": Method(frozenset({"factor"}), _proportional),
}
_GENERAL = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}
