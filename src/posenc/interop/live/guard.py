"""Keys cached under one rotation never meet queries under another.

transformers' caches hold rotated keys and nothing that says how they were rotated. While a swap is
in place, the module that owns the rotation marks every cache that it fills, and refuses others.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

__all__ = ["CacheGuard", "Stamp", "caches_in", "stamp_cache", "stamp_of"]

ATTRIBUTE = "_posenc_rotation"


class Stamp:
    """The rotation that a cache holds keys of; copies of a cache share it."""

    def __init__(self, rotation: Any) -> None:
        self.rotation = rotation

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stamp":
        return self


class CacheGuard:
    """Hooks on one module: caches filled by it are marked, caches with other keys are refused.

    It acts while its swap is the newest one. After `release` it stays until the last cache that it
    marked is gone, so that keys of a swap do not meet the model's own rotation either.
    """

    def __init__(self, owner: nn.Module, rotary: nn.Module, forward: Any, rotation: Any) -> None:
        self.rotary, self.forward = rotary, forward
        self.stamp: Stamp | None = Stamp(rotation)
        self.marked = weakref.ref(self.stamp)
        self.hooks = [
            owner.register_forward_pre_hook(self._check, with_kwargs=True),
            owner.register_forward_hook(self._mark, with_kwargs=True),
        ]

    def release(self) -> None:
        """The swap is undone: what is left to do is to refuse the caches that it marked."""
        self.stamp = None
        self._remove_when_idle()

    def _check(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        del module
        in_force = vars(self.rotary).get("forward")
        for cache in caches_in([*args, *kwargs.values()]):
            found = stamp_of(cache)
            if self.stamp is not None and in_force is self.forward:
                _admit(cache, found, self.stamp)
            elif found is not None and found is self.marked() and in_force is None:
                raise ValueError(
                    f"the cache holds keys of {found.rotation}, which was undone: queries of the "
                    "model's own rotation would meet them as noise; start a new cache"
                )
        self._remove_when_idle()

    def _mark(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        del module, args, kwargs
        if self.stamp is None or vars(self.rotary).get("forward") is not self.forward:
            return
        for cache in caches_in(output.values() if isinstance(output, Mapping) else [output]):
            if stamp_of(cache) is None:  # made inside this call
                stamp_cache(cache, self.stamp)

    def _remove_when_idle(self) -> None:
        if self.stamp is None and self.marked() is None:
            for hook in self.hooks:
                hook.remove()


def stamp_cache(cache: Any, stamp: Stamp) -> None:
    """Mark a cache."""
    setattr(cache, ATTRIBUTE, stamp)


def stamp_of(cache: Any) -> Stamp | None:
    """The mark of a cache."""
    return getattr(cache, ATTRIBUTE, None)


def caches_in(values: Any) -> Iterator[Any]:
    """The key-value caches among the arguments or outputs of a module."""
    for value in values:
        if isinstance(value, tuple):
            yield from caches_in(value)
        elif hasattr(value, "get_seq_length"):
            yield value


def _admit(cache: Any, found: Stamp | None, stamp: Stamp) -> None:
    if found is stamp:
        return
    if (found is None or found.rotation != stamp.rotation) and _holds_keys(cache):
        held = "the model's own rotation" if found is None else str(found.rotation)
        raise ValueError(
            f"the cache holds keys of {held}, but queries come under {stamp.rotation}: scores of "
            "the two mean nothing; start a new cache, or move this one with move_cache(cache)"
        )
    stamp_cache(cache, stamp)


def _holds_keys(cache: Any) -> bool:
    try:
        return bool(cache.get_seq_length() > 0)
    except ValueError:  # it holds the states of linear attention, and no keys
        return False
