"""The rope section of each layer type, wherever a config keeps it.

New configs have `rope_parameters`, flat or one object a layer type; older ones `rope_scaling` and a
base beside it. What is said twice must agree; what is not said comes from the family, recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.scaling_keys import COMMON, METHODS, method_name
from posenc.interop.several_axes import MROPE_KEYS

__all__ = ["Sections"]

# Keys of a flat section: an object under one of them is a mistake, not a layer type.
SCALAR_KEYS = COMMON.union(MROPE_KEYS, *(method.keys for method in METHODS.values()))
_OTHER_BASES = ("rotary_emb_base", "rope_base")  # GPT-NeoX and Qwen 1; Falcon's and others' forks


@dataclass(frozen=True)
class Sections:
    """Sections by layer type. `of` gives the keys of one type, None where it has no rotation."""

    keys: Keys
    family: Family
    given: Keys | None
    nested: bool

    @staticmethod
    def read(keys: Keys, family: Family, kinds: set[str]) -> "Sections":
        new, old = keys.section("rope_parameters"), keys.section("rope_scaling")
        if new is not None and old is not None and _plain(new) != _plain(old):
            keys.disagree({"rope_parameters": dict(new.raw), "rope_scaling": dict(old.raw)})
        given = new if new is not None and new.raw else old
        if given is None or not given.raw:
            return Sections(keys, family, None, False)
        labels = kinds | set(family.types)
        nested = any(
            key in labels or (isinstance(x, Mapping) and key not in SCALAR_KEYS)
            for key, x in given.raw.items()
        )
        if nested:
            _check_nested(given, labels)
        return Sections(keys, family, given, nested)

    def label(self, kind: str | None) -> str | None:
        """The name of a layer type's section, None where all layers share one."""
        if kind is None or not (self.nested or self.family.types):
            return None
        return self.family.type_of.get(kind, kind)

    def of(self, kind: str | None) -> Keys | None:
        label = self.label(kind)
        given, family = self.given, self.family
        if given is None:
            return self._published(label)
        if not self.nested:
            reached = label is None or not family.scaled or label in family.scaled
            return given if reached else self._published(label)
        if label is None or label not in given.raw:
            return self._absent(label)
        return None if given.raw[label] is None else given.section(label)

    def base(self, kind: str | None, section: Keys) -> float:
        """rope_theta, of the section or beside it; else the published default of the family."""
        said = self.said_bases(kind, section)
        if len(set(said.values())) > 1:
            replace(self.keys, path="").disagree(said)
        if said:
            return next(iter(said.values()))
        return self._published_base(self.label(kind), section)

    def said_bases(self, kind: str | None, section: Keys) -> dict[str, float]:
        """The keys that say a base of this layer type, and what they say."""
        label = self.label(kind)
        beside = self.family.theta_keys.get(label or "", "rope_theta")
        said = {}
        if "rope_theta" in section.raw and section.raw["rope_theta"] is not None:
            said[section.path + "rope_theta"] = section.number("rope_theta", above=0)
        for key in (beside, *_OTHER_BASES):
            if key in self.keys and self._speaks(key, label):
                said[self.keys.path + key] = self.keys.number(key, above=0)
        return said

    def _speaks(self, key: str, label: str | None) -> bool:
        """Whether a key beside the sections is about this type: with types, only named keys are."""
        if key == self.family.per_layer and isinstance(self.keys.raw.get(key), list | tuple):
            return False  # one base a layer
        return label is None or not self.family.types or label in self.family.theta_keys

    def _published(self, label: str | None) -> Keys:
        """The section that the family's code takes where the config has none."""
        family = self.family
        section = family.rope if label is None else family.types.get(label, {})
        scaled = {key: value for key, value in section.items() if key != "rope_theta"}
        name = "rope_parameters" if label is None else f"rope_parameters.{label}"
        if scaled.get("rope_type", "default") != "default" or "partial_rotary_factor" in scaled:
            self.keys.read.defaults[self.keys.path + name] = dict(section)
        return Keys(scaled, f"{self.keys.path}{name}.", read=self.keys.read)

    def _published_base(self, label: str | None, section: Keys) -> float:
        family = self.family
        base = (family.types.get(label) or {}).get("rope_theta") if label else None
        if base is None and self.given is None:
            base = family.rope.get("rope_theta")
        base = base if base is not None else family.theta
        if base is None:
            section.missing("rope_theta", "this family has no published default")
        self.keys.read.defaults[f"{section.path}rope_theta"] = base
        return base

    def _absent(self, label: str | None) -> Keys:
        assert self.given is not None
        if label is None or not self.family.types.get(label):
            listed = ", ".join(map(str, self.given.raw))
            self.given.missing(str(label), f"layers have this type, the sections are {listed}")
        return self._published(label)


def _check_nested(given: Keys, labels: set[str]) -> None:
    """Sections of layer types that exist, and nothing beside them but leftovers of a flat form."""
    for key, value in given.raw.items():
        if isinstance(value, Mapping) or (key in labels and value is None):
            if key not in labels:
                given.fail(key, value, f"a layer type of this model: {', '.join(sorted(labels))}")
        elif key in labels:
            given.fail(key, value, "an object, the section of this layer type")
        elif value is not None and (key, value) != ("rope_type", "default"):
            given.fail(key, value, "sections of layer types only, since there are some")


def _plain(section: Keys) -> dict[str, Any]:
    """What a section says about scaling, for comparing an old form with a new one."""
    if any(isinstance(value, Mapping) for value in section.raw.values()):
        return dict(section.raw)
    plain = {k: x for k, x in section.raw.items() if k not in COMMON and x is not None}
    return {**plain, "": method_name(section)}
