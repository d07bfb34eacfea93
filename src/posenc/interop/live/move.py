"""Keys in a transformers cache, turned from one rotation to another."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor
from torch.nn import functional

from posenc.contracts import Pairing
from posenc.positions import sequence
from posenc.rotary import Rope, rerotate

__all__ = ["move_keys"]


def move_keys(
    cache: Any,
    positions: Tensor | None,
    old: Any,
    new: Any,
    *,
    layer_types: Sequence[str] | None,
    pairing: Pairing,
    latent_dim: int | None = None,
) -> None:
    """Turn every layer's keys from `old` to `new`: a Rope, or one for each layer type.

    `pairing` is the order that cached keys have, which is the model's own whatever its weights have.
    `latent_dim` is the width of the latents that DeepSeek caches in the place of keys.
    """
    for index, layer in enumerate(cache.layers):
        keys = getattr(layer, "keys", None)
        if keys is None or not keys.numel():
            continue
        if "Quantized" in type(layer).__name__:
            raise ValueError(f"layer {index} of the cache is quantised: its keys cannot be turned")
        kind = layer_types[index] if layer_types else None
        before, after = (_rope(value, kind, pairing) for value in (old, new))
        if before != after:
            _turn(layer, positions, before, after, latent_dim)


def _turn(layer: Any, positions: Tensor | None, old: Rope, new: Rope, latent: int | None) -> None:
    name: Literal["keys", "values"] = "keys"
    width = old.rotary_dim or old.head_dim
    if latent and layer.keys.shape[1] == 1 and layer.keys.shape[-1] == latent:
        name = "values"  # the one rotated key of all heads lies where values usually do
        old, new = (replace(x, head_dim=width, placement="leading") for x in (old, new))
    stored = getattr(layer, name)
    if stored.shape[-1] != old.head_dim:
        raise ValueError(
            f"the cache holds keys of {stored.shape[-1]} channels, the rope is for heads of "
            f"{old.head_dim}: set a rope with the head_dim of the whole key"
        )
    turned = rerotate(stored, _positions(layer, stored, positions), old, new)
    stored.copy_(turned)  # in place: a compiled model reads a static cache at its address


def _rope(rotation: Any, kind: str | None, pairing: Pairing) -> Rope:
    rope = rotation[kind] if isinstance(rotation, dict) else rotation
    if not isinstance(rope, Rope):
        raise ValueError(f"only keys of a Rope can be turned, got {rope}")
    return replace(rope, pairing=pairing)


def _positions(layer: Any, keys: Tensor, positions: Tensor | None) -> Tensor:
    """The positions of the stored keys: a sliding window holds the last ones."""
    num_keys, seen = keys.shape[2], int(layer.get_seq_length())
    if positions is None:
        return sequence(num_keys, start=max(seen - num_keys, 0), device=keys.device)
    given = positions.to(keys.device)[..., -num_keys:]
    room = num_keys - given.shape[-1]  # a static cache has room behind its keys
    return functional.pad(given, (0, room)) if room > 0 else given
