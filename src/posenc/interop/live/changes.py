"""What a swap of rotations changes in a live model besides the angles."""

import types
from collections.abc import Mapping
from typing import Any

from torch import nn

from posenc.contracts import Pairing
from posenc.interop.hf import ConfigError, scheme_from_config
from posenc.interop.live.functions import (
    Apply,
    applied_in,
    direction_of,
    normed_after,
    other_pairing,
    pairing_of,
    unwrapped,
    with_globals,
)
from posenc.interop.live.modules import Form
from posenc.interop.model_scheme import ModelScheme

__all__ = [
    "Change",
    "direction",
    "pairing_changes",
    "pairings",
    "replace_attribute",
    "restore_attribute",
]
__all__ += ["scale_changes"]

SWAPPED = "_posenc_pairing_swapped"  # marks on modules, for swaps inside swaps
SCALED = "_posenc_softmax_scale"

Change = tuple[nn.Module, str, Any]  # a module, the name of an attribute, its new value


def replace_attribute(module: nn.Module, name: str, new: Any) -> Any:
    """Set an attribute of this one instance; returns what stood there, for `restore_attribute`."""
    old = vars(module).get(name)
    vars(module)[name] = new
    return old


def restore_attribute(module: nn.Module, name: str, old: Any) -> None:
    """Undo `replace_attribute`; None where the instance had no such attribute of its own."""
    if old is None:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = old


def pairings(model: nn.Module, form: Form) -> tuple[Pairing, Pairing]:
    """The pairing that the model's functions take, and the one in which they return keys."""
    found = {kinds for _, _, function in applied_in(model) if (kinds := pairing_of(function, form))}
    interleave = getattr(getattr(model, "config", None), "rope_interleave", None)
    if interleave is not None:  # DeepSeek: both functions are there, a key of the config decides
        found = {kinds for kinds in found if (kinds[0] == "adjacent") == interleave}
    if len(found) == 1:
        return found.pop()
    named: set[Pairing] = {rope.pairing for rope in own_ropes(model)}
    if len(named) == 1:
        pairing = named.pop()
        return pairing, pairing
    raise ValueError(
        f"{type(model).__name__}: which channels it turns together cannot be told from its functions "
        f"({sorted(found)}) or its config"
    )


def direction(model: nn.Module, form: Form) -> int:
    """Which way the model's functions turn pairs; 1 where none is called in a way that is known."""
    found = {way for _, _, function in applied_in(model) if (way := direction_of(function, form))}
    if len(found) > 1:
        raise ValueError(f"{type(model).__name__} turns pairs both ways: set_rope has one for all")
    return found.pop() if found else 1


def pairing_changes(model: nn.Module, pairing: Pairing, form: Form) -> list[Change]:
    """Forwards that take queries and keys in another pairing than they do now; often none."""
    own, _ = pairings(model, form)
    if own == pairing:  # an outer swap may have changed it
        swapped = {module for module, _, _ in applied_in(model) if vars(module).get(SWAPPED)}
        return [change for module in swapped for change in _back(module)]
    functions: dict[nn.Module, dict[str, Apply]] = {}
    for module, name, function in applied_in(model):
        kinds = pairing_of(function, form)
        if kinds is not None and kinds[0] == own:
            back = normed_after(module)
            functions.setdefault(module, {})[name] = other_pairing(function, form, own, back=back)
    if not functions:
        raise ValueError(
            f"{type(model).__name__} turns pairs ({own}) in a way that cannot be wrapped: "
            f"convert its weights to {own} first (posenc convert), then set a rope of that pairing"
        )
    changes: list[Change] = []
    for module, changed in functions.items():
        if vars(module).get(SWAPPED):
            continue
        _check_own_forward(module)
        forward = with_globals(type(module).forward, changed)
        changes.append((module, _called(module), types.MethodType(forward, module)))
        changes.append((module, SWAPPED, True))
    return changes


def _back(module: nn.Module) -> list[Change]:
    forward = types.MethodType(type(module).forward, module)
    return [(module, _called(module), forward), (module, SWAPPED, False)]


def _called(module: nn.Module) -> str:
    """The attribute that holds a module's forward; a hook of accelerate calls it by another name."""
    return "_old_forward" if {"_hf_hook", "_old_forward"} <= vars(module).keys() else "forward"


def _check_own_forward(module: nn.Module) -> None:
    """Raise where the forward is no longer the one of the module's class."""
    held = vars(module).get(_called(module))
    hooked = _called(module) != "forward" and unwrapped(held) is unwrapped(type(module).forward)
    if held is not None and not hooked:
        raise ValueError(f"the forward of {type(module).__name__} was replaced already")


def scale_changes(model: nn.Module, ropes: Mapping[str | None, Any]) -> list[Change]:
    """The softmax scale of attention modules, where the new rotation asks for another one."""
    wanted = {rope.frequencies().softmax_scale for rope in ropes.values()}
    modules = {id(module): module for module, _, _ in applied_in(model)}.values()
    held = {vars(module)[SCALED] for module in modules if SCALED in vars(module)}
    held = held or {rope.frequencies().softmax_scale for rope in own_ropes(model)} or {1.0}
    if wanted == held:
        return []
    scaled = [module for module in modules if isinstance(getattr(module, "scaling", None), float)]
    if len(wanted) != 1 or len(held) != 1 or not scaled:
        raise ValueError(
            f"the rope multiplies the softmax scale by {sorted(wanted)}, the model has "
            f"{sorted(held)}, and its attention has no scale that could be changed"
        )
    new = wanted.pop()
    ratio = new / held.pop()
    changes: list[Change] = [(module, "scaling", module.scaling * ratio) for module in scaled]
    return changes + [(module, SCALED, new) for module in scaled]


def own_scheme(model: nn.Module) -> ModelScheme | None:
    """What the model's config says, or None where it cannot be read."""
    config: Any = getattr(model, "config", None)
    try:
        return None if config is None else scheme_from_config(config.to_dict())
    except ConfigError:
        return None


def own_ropes(model: nn.Module) -> list[Any]:
    """The rotations that the model's config says, or none where it cannot be read."""
    scheme = own_scheme(model)
    return [] if scheme is None else [x.rotary for x in scheme.layers if x.rotary is not None]
