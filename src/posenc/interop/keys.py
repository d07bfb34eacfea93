"""Looking things up in a config, strictly: values are checked, and what was read is remembered."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from posenc.interop.errors import ConfigError

__all__ = ["MAX_SIZE", "Keys", "Read", "shown"]

MAX_SIZE = 1 << 24  # no width, count or length of a real model comes near: a larger one is a typo


@dataclass
class Read:
    """What was read so far, shared by all sections of one config."""

    used: dict[str, None] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Keys:
    """One section of a config. A key that is null counts as absent; nothing is ever written.

    `aliases` are a family's own names, general name -> its name. `fallback` holds what the
    family's own code takes for a missing key: to use it is recorded, not silent.
    """

    raw: Mapping[str, Any]
    path: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    fallback: Mapping[str, Any] = field(default_factory=dict)
    read: Read = field(default_factory=Read)

    def __contains__(self, key: str) -> bool:
        given = [self.raw.get(name) for name in self._names(key) if name in self.raw]
        return any(x is not None for x in given) or (not given and key in self.fallback)

    def fail(self, key: str, value: object, expected: str) -> NoReturn:
        """A ConfigError that names the key, what it holds and what was expected."""
        named = self.path + self.named(key)
        raise ConfigError(f"{named} = {shown(value)}: expected {expected}")

    def missing(self, key: str, why: str) -> NoReturn:
        raise ConfigError(f"{self.path}{self.named(key)} is missing: {why}")

    def named(self, key: str) -> str:
        """The name that this config has for a key; the family's own where it has none."""
        names = self._names(key)
        return next((name for name in names if self.raw.get(name) is not None), names[0])

    def get(self, key: str) -> Any:
        """The value as it stands, from the config or the family's default, or None."""
        names = [name for name in self._names(key) if self.raw.get(name) is not None]
        for name in names:
            self.read.used[self.path + name] = None
        if len(names) > 1 and self.raw[names[0]] != self.raw[names[1]]:
            self.disagree({name: self.raw[name] for name in names})
        if names:
            return self.raw[names[0]]
        if key not in self.fallback or any(name in self.raw for name in self._names(key)):
            return None  # null is an answer too: the class's default is for keys left out
        self.read.defaults[self.path + key] = self.fallback[key]
        return self.fallback[key]

    def disagree(self, values: Mapping[str, object]) -> NoReturn:
        """A ConfigError for keys that say different things."""
        said = " but ".join(f"{self.path}{key} = {shown(value)}" for key, value in values.items())
        raise ConfigError(f"{said}: expected keys that agree")

    def number(self, key: str, *, low: float | None = None, above: float | None = None) -> float:
        """A finite number, no bool and no string."""
        value = self._present(key)
        bound = f" of at least {low:g}" if low is not None else ""
        bound += f" above {above:g}" if above is not None else ""
        real = isinstance(value, int | float) and not isinstance(value, bool)
        inside = real and _finite(value)
        if (
            not inside
            or (low is not None and value < low)
            or (above is not None and value <= above)
        ):
            self.fail(key, value, f"a finite number{bound}")
        return float(value)

    def integer(self, key: str, *, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number from low to high; 8192.0 is one, "8192" and true are none."""
        value = self._present(key)
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if not whole or isinstance(value, bool) or not low <= value <= high:
            self.fail(key, value, f"a whole number from {low} to {high}")
        return int(value)

    def per_head(
        self, width: str, heads: int, named: str = "num_attention_heads",
        *, low: int = 1, high: int = MAX_SIZE,
    ) -> int:  # fmt: skip
        """Channels of one head: the key `width` shared out to so many heads, which `named` says."""
        channels = self.integer(width)
        if channels % heads or not low <= channels // heads <= high:
            shares = f"{self.named(named)} = {heads}"
            self.fail(width, channels, f"a multiple of {shares}, by {low} to {high}")
        return channels // heads

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value

    def text(self, key: str, choices: Iterable[str] = ()) -> str | None:
        """A string, one of `choices` where there are any; None where absent."""
        value = self.get(key)
        choices = tuple(choices)
        if value is None or (isinstance(value, str) and (not choices or value in choices)):
            return value
        return self.fail(key, value, f"one of {', '.join(choices)}" if choices else "a string")

    def numbers(self, key: str, count: int, what: str) -> tuple[float, ...]:
        """A list of so many finite numbers."""
        values = self.sequence(key, count, what)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
                self.fail(key, value, "a list of finite numbers")
        return tuple(values)

    def sequence(self, key: str, count: int, what: str) -> tuple[Any, ...]:
        values = self._present(key)
        if not isinstance(values, list | tuple):
            self.fail(key, values, f"a list of {count} entries, one for each {what}")
        if len(values) != count:
            self.fail(key, values, f"{count} entries, one for each {what}, not {len(values)}")
        return tuple(values)

    def section(self, key: str) -> "Keys | None":
        """A nested object, with this one's record; None where absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(key, value, "an object")
        return Keys(value, f"{self.path}{key}.", read=self.read)

    def note(self, text: str) -> None:
        """What the scheme cannot say of this model, for people."""
        self.read.notes[text] = None

    def _present(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            self.missing(key, "it has no published default")
        return value

    def _names(self, key: str) -> tuple[str, ...]:
        alias = self.aliases.get(key)
        return (key,) if alias is None else (alias, key)


def shown(value: object) -> str:
    """A value for an error message, short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]} … {text[-15:]}"


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False
