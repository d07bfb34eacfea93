"""Loaded transformers models under a posenc rotation: context extension without editing them."""

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from posenc.contracts import RotaryEncoding, Scheme
from posenc.interop.live.changes import (
    direction,
    pairing_changes,
    pairings,
    replace_attribute,
    restore_attribute,
    scale_changes,
)
from posenc.interop.live.fitting import check_fits, check_is_value, check_only_rotates
from posenc.interop.live.functions import applied_in, normed_after
from posenc.interop.live.guard import CacheGuard, stamp_cache, stamp_of
from posenc.interop.live.modules import Form, SwappedForward, layer_types, probe, rotary_modules
from posenc.interop.live.move import move_keys
from posenc.interop.model_scheme import ModelScheme
from posenc.interop.rotations import rope_of

__all__ = ["RopeSwap", "set_rope"]

Ropes = dict[str | None, Any]


def set_rope(
    model: nn.Module, rope: RotaryEncoding | Mapping[str, RotaryEncoding] | ModelScheme | Scheme
) -> "RopeSwap":
    """Let a loaded model rotate by `rope` from now on, or inside a `with` block.

    >>> rope = Rope(128, base=500_000.0, scaling=Yarn(factor=4.0, original_length=8192))
    >>> with set_rope(model, rope):
    ...     model.generate(**inputs)
    >>> swap = set_rope(model, rope); ...; swap.undo()

    A model with one rotation for each layer type (Gemma 3) takes `{"full_attention": rope}`; types
    that are not named keep theirs. Weights stay as they are: for weights of the other pairing give
    a rope of that pairing. `Rope(..., angle_dtype=torch.float32)` gives the rounded angles of
    transformers bit for bit.

    A cache filled under one rotation is refused under another, before and after the swap;
    `swap.move_cache(cache)` turns its keys. A rope that depends on length holds for the one it was
    given (`rope.at_length(n)`). Of a Scheme or ModelScheme only the rotation is set: other parts must
    be what the model's config says already. Raises ValueError where they are not, where the model's
    rotary module has a form that is not known, or turns other channels than `rope`.
    """
    modules = rotary_modules(model)
    _check_alike(model, modules)
    first = next(iter(modules.values()))
    ropes = _by_layer_type(model, rope, layer_types(first))
    forms = {kind: probe(first, kind) for kind in ropes}
    for kind, form in forms.items():
        check_fits(model, ropes[kind], form, kind)
    return RopeSwap(model, modules, ropes, forms)


class RopeSwap:
    """A swap in place; a context manager that undoes it."""

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        ropes: Ropes,
        forms: Mapping[str | None, Form],
    ) -> None:
        self.model, self.ropes = model, ropes
        self.form, rope = next(iter(forms.values())), next(iter(ropes.values()))
        changes = pairing_changes(model, rope.pairing, self.form) + scale_changes(model, ropes)
        self.guards: list[CacheGuard] = []
        own = direction(model, self.form)
        made = {kind: (_turning(ropes[kind], own), form) for kind, form in forms.items()}
        for name, module in modules.items():
            forward = SwappedForward(module.forward, made)
            changes.append((module, "forward", forward))
            owner = model.get_submodule(name.rpartition(".")[0])
            self.guards.append(CacheGuard(owner, module, forward, self.rotation))
        self.changes = [(*change, replace_attribute(*change)) for change in changes]

    @property
    def rotation(self) -> Any:
        """The value in force: a rope, or one for each layer type."""
        return self.ropes.get(None, self.ropes)

    def __repr__(self) -> str:
        state = "" if self.changes else ", undone"
        return f"RopeSwap({type(self.model).__name__}, {self.rotation}{state})"

    def undo(self) -> None:
        """Give the model back its own rotation. A second call does nothing."""
        if any(vars(module).get(name) is not new for module, name, new, _ in self.changes):
            raise ValueError("a newer swap is in place on this model: undo that one first")
        for module, name, _, old in reversed(self.changes):
            restore_attribute(module, name, old)
        for guard in self.guards:
            guard.release()
        self.changes, self.guards = [], []

    def move_cache(self, cache: Any, positions: Tensor | None = None) -> None:
        """Turn the keys that another swap left in a cache, so that decoding goes on under this one.

        `positions` `[K]` or `[B, K]` are those of the cached tokens, by default 0 … K-1. Keys of
        upper layers were computed from what the old rotation attended to: the result is what a cache
        can give, not a fresh prefill.
        """
        stamp = stamp_of(cache)
        if stamp is None or not self.guards or self.guards[0].stamp is None:
            raise ValueError("only a cache filled under set_rope can be moved, to a swap in place")
        if any(normed_after(module) for module, _, _ in applied_in(self.model)):
            raise ValueError(
                f"{type(self.model).__name__} norms keys after it rotates them: what it caches "
                "cannot be turned any more; start a new cache"
            )
        config: Any = self.model.config
        move_keys(
            cache,
            positions,
            stamp.rotation,
            self.rotation,
            layer_types=None if None in self.ropes else config.get_text_config().layer_types,
            pairing=pairings(self.model, self.form)[1],
            latent_dim=getattr(config, "kv_lora_rank", None),
        )
        stamp_cache(cache, self.guards[0].stamp)

    def __enter__(self) -> "RopeSwap":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def _by_layer_type(model: nn.Module, rope: Any, kinds: list[str]) -> Ropes:
    """The ropes to set, by layer type; the type is None where all layers share one rotation."""
    if isinstance(rope, Scheme | ModelScheme):
        check_only_rotates(model, rope)
        rope = rope.rotary if isinstance(rope, Scheme) else _of_layers(model, rope, kinds)
    if not isinstance(rope, Mapping):
        rope = {None: rope}
    known = kinds or [None]
    if not rope or not set(rope) <= set(known):
        raise ValueError(
            f"{type(model).__name__} has {'layer types ' + ', '.join(kinds) if kinds else 'one rope'}"
            f", got {'one for ' + ', '.join(map(str, rope)) if None not in rope else 'a single one'}"
        )
    for kind, value in rope.items():
        if not isinstance(value, RotaryEncoding):
            named = "" if kind is None else f" for {kind}"
            raise TypeError(f"a rope is needed{named}, got {value!r}")
        check_is_value(value)
    if len({value.pairing for value in rope.values()}) > 1:
        raise ValueError("the ropes of one model must share one pairing")
    return dict(rope)


def _of_layers(model: nn.Module, scheme: ModelScheme, kinds: list[str]) -> Any:
    if not kinds:
        ropes = {layer.rotary for layer in scheme.layers if layer.rotary is not None}
        if len(ropes) != 1:
            raise ValueError(f"the scheme has {len(ropes)} ropes, {type(model).__name__} takes one")
        return ropes.pop()
    config: Any = model.config
    found: Ropes = {}
    for index, (kind, layer) in enumerate(
        zip(config.get_text_config().layer_types, scheme.layers, strict=True)
    ):
        if layer.rotary is None:
            continue
        first = found.setdefault(kind, layer.rotary)
        if first != layer.rotary:
            raise ValueError(
                f"{type(model).__name__} has one rotation for all {kind} layers: layer {index} of "
                f"the scheme has {layer.rotary}, an earlier one {first}"
            )
    return found


def _check_alike(model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    """One value can stand for several modules only where they are alike."""
    if not modules:
        raise ValueError(f"{type(model).__name__} has no rotary module that takes position_ids")
    first, *others = modules.values()
    for other in others:
        mine, theirs = dict(first.named_buffers()), dict(other.named_buffers())
        alike = type(other) is type(first) and mine.keys() == theirs.keys()
        if not alike or not all(torch.equal(mine[name], theirs[name]) for name in mine):
            raise ValueError(
                f"{type(model).__name__} has rotary modules that differ: {', '.join(modules)}. "
                "Set the rope of each part: set_rope(model.part, rope)"
            )


def _turning(rope: Any, own: int) -> Any:
    """The value behind the tables of a model whose functions turn the way `own` by themselves."""
    if getattr(rope_of(rope), "direction", 1) != own:
        raise ValueError(
            f"the model turns pairs by {own} · p·θ, and its code fixes that: got {rope}"
        )
    return rope if own == 1 else _forward(rope)


def _forward(rope: Any) -> Any:
    """The same value with a rope that turns forward at its core, however it is wrapped."""
    inner = getattr(rope, "rope", None)
    if inner is None:
        return replace(rope, direction=1)
    return replace(rope, rope=_forward(inner))
