"""Whether a live model can turn as it is asked to, and is asked for no more than that."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from posenc.contracts import Scheme
from posenc.interop.live.changes import own_ropes, own_scheme
from posenc.interop.live.modules import Form
from posenc.interop.model_scheme import ModelScheme, described
from posenc.interop.rotations import rope_of
from posenc.rotary import XPos

__all__ = ["check_fits", "check_is_value", "check_only_rotates"]

_PARTS = ("additive", "bias", "relative", "query_scale")
_OF_MODELS = ("additive", "windows", "softmax_scale", "encoder")


def check_only_rotates(model: nn.Module, scheme: Scheme | ModelScheme) -> None:
    """Raise where a scheme has parts, beside rotations, that the model would not get from a swap.

    Parts that its own config says are there already: a scheme read from a config passes.
    """
    own = own_scheme(model)
    name = type(model).__name__
    if isinstance(scheme, Scheme):
        layers: Sequence[Scheme] = (scheme,) * (len(own.layers) if own else 1)
        _check_layers(name, layers, own)
        return
    _check_layers(name, scheme.layers, own)
    _check_rotating(name, scheme.layers, own)
    for field in _OF_MODELS:
        asked = getattr(scheme, field)
        if asked is not None and asked != () and asked != getattr(own, field, None):
            raise ValueError(f"only the rotation of {name} is set, not its {field}: got {asked!r}")


def check_is_value(rope: Any) -> None:
    """Raise for rotations that no table of cos and sin for queries and keys alike can say."""
    if isinstance(rope, nn.Module):
        raise ValueError(f"{type(rope).__name__} learns: a swap takes a value, a Rope or an MRope")
    if isinstance(rope, XPos):
        raise ValueError(
            f"{type(rope).__name__} gives queries and keys other amplitudes, but the model turns "
            "both by one table"
        )


def check_fits(model: nn.Module, rope: Any, form: Form, kind: str | None) -> None:
    """Raise where `rope` turns other channels than the model, or by other coordinates."""
    named = "" if kind is None else f" in {kind} layers"
    turned = rope.frequencies().inv_freq.numel()
    if turned != form.num_pairs:
        raise ValueError(
            f"the model turns {2 * form.num_pairs} channels of a head{named}, but {rope} turns "
            f"{2 * turned}"
        )
    axes = getattr(rope, "num_axes", 1)
    if axes > 1 < form.num_axes != axes:
        raise ValueError(f"the model gives tokens {form.num_axes} coordinates, {rope} reads {axes}")
    core, own = rope_of(rope), {_place(rope_of(x)) for x in own_ropes(model)}
    if core.head_dim != 2 * turned and own and _place(core) not in own:
        raise ValueError(
            f"the model turns the {own.pop()} channels of a head{named}, but {rope} the "
            f"{_place(core)} ones"
        )


def _place(rope: Any) -> str:
    return getattr(rope, "placement", "leading")


def _check_layers(name: str, layers: Sequence[Scheme], own: ModelScheme | None) -> None:
    if own is not None and len(own.layers) != len(layers):
        raise ValueError(f"{name} has {len(own.layers)} layers, the scheme {len(layers)}")
    for index, layer in enumerate(layers):
        mine = own.layers[index] if own else None
        for field in _PARTS:
            asked = getattr(layer, field)
            if asked is not None and not _has(mine, field, asked):
                raise ValueError(
                    f"only the rotation of {name} is set, not its {field}: layer {index} of the "
                    f"scheme has {asked!r}"
                )


def _check_rotating(name: str, layers: Sequence[Scheme], own: ModelScheme | None) -> None:
    """Which layers rotate is in the model's code: a swap starts and stops none."""
    asked = [layer.rotary is not None for layer in layers]
    mine = [x.rotary is not None for x in own.layers] if own else [True] * len(asked)
    differ = [
        index for index, pair in enumerate(zip(asked, mine, strict=True)) if len(set(pair)) > 1
    ]
    if differ:
        raise ValueError(f"{name} rotates in other layers than the scheme: they differ in {differ}")


def _has(scheme: Scheme | None, field: str, asked: Any) -> bool:
    if scheme is None:
        return False
    mine, theirs = (replace(Scheme(), **{field: x}) for x in (getattr(scheme, field), asked))
    return described(mine) == described(theirs)
