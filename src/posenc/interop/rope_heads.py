"""How wide a head is, and how many of its channels turn. All keys that say so must agree."""

from dataclasses import dataclass, replace

from posenc.contracts import Pairing
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.scaling_keys import method_name

__all__ = ["MAX_HEAD_DIM", "Turning", "head_dim", "turning"]

MAX_HEAD_DIM = 1 << 16

_FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rope_percent", "rotary_percent")


@dataclass(frozen=True)
class Turning:
    """The part of a head that turns."""

    head_dim: int
    rotary_dim: int
    pairing: Pairing
    trailing: bool


def turning(
    keys: Keys, family: Family, section: Keys, kind: str | None, share: float | None
) -> Turning:
    """What turns in a layer; `share` is its entry of partial_rotary_factors, if there is a list."""
    if family.mla:
        return _decoupled(keys, family, section)
    channels = head_dim(keys, family, kind)
    width = _width(keys, family, section, channels, share)
    return Turning(channels, width, family.pairing, family.trailing)


def head_dim(keys: Keys, family: Family, kind: str | None = None) -> int:
    """Channels of one head: the key, the family's published width, or hidden size / heads."""
    wide = family.wide.get(kind or "")
    if wide is not None and "per_layer_config" not in keys:
        return (
            keys.integer("global_head_dim", low=2, high=MAX_HEAD_DIM)
            if ("global_head_dim" in keys)
            else _published(keys, "global_head_dim", wide)
        )
    if "head_dim" in keys:
        return keys.integer("head_dim", low=2, high=MAX_HEAD_DIM)
    if family.head_dim is not None:
        return _published(keys, "head_dim", family.head_dim)
    heads = keys.integer("num_attention_heads")
    return keys.per_head("hidden_size", heads, low=2, high=MAX_HEAD_DIM)


def _published(keys: Keys, name: str, value: int) -> int:
    keys.read.defaults[f"{keys.path}{name}"] = value
    return value


def _decoupled(keys: Keys, family: Family, section: Keys) -> Turning:
    """DeepSeek's heads: the slice that turns stands behind the rest."""
    if family.types and "per_layer_config" not in keys:
        keys.missing("per_layer_config", "layer types of this family have heads of their own")
    nope = keys.integer("qk_nope_head_dim", low=0, high=MAX_HEAD_DIM)
    width = keys.integer("qk_rope_head_dim", low=2, high=MAX_HEAD_DIM)
    channels = nope + width
    proportional = method_name(section) == "proportional"  # there the factor is about pairs
    for name, fraction in ({} if proportional else _fractions(keys, section)).items():
        of = {channels, keys.raw.get("head_dim")}
        if width not in {int(fraction * x) for x in of if isinstance(x, int)}:
            section.fail(name, fraction, f"qk_rope_head_dim / head = {width} / {channels}")
    if width % 2:
        keys.fail("qk_rope_head_dim", width, "an even number: channels turn in pairs")
    adjacent = family.pairing == "adjacent"
    said = keys.flag("rope_interleave", default=adjacent)
    if said != adjacent and not family.interleave:
        expected = (
            f"{adjacent}: this family's code pairs {family.pairing} channels and reads no key"
        )
        keys.fail("rope_interleave", said, expected)
    return Turning(channels, width, "adjacent" if said else "half", trailing=True)


def _width(
    keys: Keys, family: Family, section: Keys, channels: int, share: float | None
) -> int:  # fmt: skip
    said = _fractions(keys, section)
    if share is not None:
        said["partial_rotary_factors"] = share
    if method_name(section) == "proportional":
        return channels
    for name in family.required:
        if name not in keys:
            keys.missing(name, "this family's code has no default for it")
    most = float(MAX_HEAD_DIM)  # what is larger is refused below, and may be too large for an int
    widths = {name: int(channels * min(fraction, most)) for name, fraction in said.items()}
    names = ("rotary_dim", "qk_rope_head_dim") if family.trailing else ("rotary_dim",)
    for name in names:
        if name in keys:
            widths[name] = keys.integer(name, low=2, high=MAX_HEAD_DIM)
    if not widths and family.fraction not in (None, 1.0):
        keys.read.defaults[f"{section.path}partial_rotary_factor"] = family.fraction
        widths["partial_rotary_factor"] = int(channels * family.fraction)
    name, width = next(iter(widths.items()), ("head_dim", channels))
    shown = {key: said.get(key, keys.raw.get(key)) for key in widths}
    if len(set(widths.values())) > 1:
        keys.disagree(shown)
    value = shown.get(name, channels)
    if family.fraction is None and width != channels:
        section.fail(name, value, f"all {channels} channels: this family does not read the key")
    if width % 2 or not 2 <= width <= channels:
        expected = f"an even number of rotated channels, 2 to {channels}; this gives {width}"
        section.fail(name, value, expected)
    return width


def _fractions(keys: Keys, section: Keys) -> dict[str, float]:
    """Every key that gives the rotated share of the head, in the section or beside it."""
    said: dict[str, float] = {}
    if "partial_rotary_factor" in section:
        said["partial_rotary_factor"] = section.number("partial_rotary_factor", low=0)
    for name in _FRACTIONS:
        if name not in keys:
            continue
        value = keys.number(name, low=0)
        if said.get(name, value) != value:
            replace(keys, path="").disagree({section.path + name: said[name], name: value})
        said[name] = value
    return said
