"""Biases of two and three coordinates from a config: Swin, Swin v2, LeViT, BEiT, LayoutLM's boxes.

What is described here are the biases. Windows are cut and shifted by the model; positions inside one
are `posenc.positions.grid(h, w)`.
"""

from typing import Any

import torch

from posenc.bias import AxesBias, BeitBias, SwinBias, SwinV2Bias, T5Bias
from posenc.contracts import LogitBias, Scheme
from posenc.interop.alibi import MAX_HEADS
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import MAX_SIZE, Keys
from posenc.interop.layers import MAX_LAYERS, num_layers

__all__ = ["MAX_SIDE", "WINDOWED", "layout_layers", "patches", "window_layers"]

MAX_SIDE, MAX_BUCKETS, MAX_DISTANCE = 256, 1024, 1 << 16
HEADS = {"num_attention_heads": "num_heads"}


def swin(**options: Any) -> Family:
    return Family(position="window", options=options, aliases=HEADS)


BOXES = (
    "embeddings of boxes are added too, which a scheme does not say",
    "positions have three coordinates: (order, left edge, lower edge)",
)
SHRINKING = (
    "after each stage but the last comes an attention whose queries are every second cell: "
    "q_pos = 2 * grid(h, w)"
)
BEIT = Family(position="window", options={"class_token": True})

WINDOWED: dict[str, Family] = {
    **dict.fromkeys(("swin", "donut-swin", "maskformer-swin"), swin()),
    "clap_audio_model": Family(position="window"),
    "swinv2": swin(continuous=True, halves=True, pretrained="pretrained_window_sizes"),
    "swin2sr": swin(continuous=True),
    **dict.fromkeys(("beit", "data2vec-vision"), BEIT),
    "levit": Family(position="window", options={"shrinks": True}, notes=(SHRINKING,)),
    **dict.fromkeys(("layoutlmv2", "layoutxlm"), Family(position="layout", notes=BOXES)),
    "layoutlmv3": Family(position="layout", options={"padding": True, "scaled": True}, notes=BOXES),
}


def window_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """A table (or an MLP) for each layer, or one that all share."""
    with torch.random.fork_rng(devices=[]):  # to read a config draws no random numbers
        if family.options.get("class_token"):
            return _beit(keys)
        if family.options.get("shrinks"):
            return _levit(keys)
        return _stages(keys, family)


def _stages(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """Swin: every stage has its depth and its heads; v2 has smaller windows where images are."""
    if keys.flag("use_absolute_embeddings", default=False):
        keys.fail("use_absolute_embeddings", True, "false: a table that is added is not read here")
    depths = _integers(keys, "depths", None, MAX_LAYERS)
    heads = _integers(keys, "num_attention_heads", len(depths), MAX_HEADS)
    side = keys.integer("window_size", high=MAX_SIDE)
    layers: list[Scheme] = []
    for stage, (depth, num_heads) in enumerate(zip(depths, heads, strict=True)):
        if not family.options.get("continuous"):
            layers += [Scheme(bias=SwinBias(num_heads, window=side)) for _ in range(depth)]
            continue
        height, width = patches(keys)
        halvings = stage if family.options.get("halves") else 0
        window = min(height >> halvings, side), min(width >> halvings, side)
        pretrained = _pretrained(keys, family, len(depths))[stage]
        with about("window_size"):
            layers += [
                Scheme(bias=SwinV2Bias(num_heads, window=window, pretrained_window=pretrained))
                for _ in range(depth)
            ]
    return tuple(layers)


def _pretrained(keys: Keys, family: Family, stages: int) -> tuple[int | None, ...]:
    """The windows by which offsets are measured; 0 is the window itself."""
    key = family.options.get("pretrained")
    if key is None or key not in keys:
        return (None,) * stages
    return tuple(side or None for side in _integers(keys, key, stages, MAX_SIDE, low=0))


def _beit(keys: Keys) -> tuple[Scheme, ...]:
    count, heads = num_layers(keys), keys.integer("num_attention_heads", high=MAX_HEADS)
    own, shared, added = (
        keys.flag(name, default=False)
        for name in (
            "use_relative_position_bias",
            "use_shared_relative_position_bias",
            "use_absolute_position_embeddings",
        )
    )
    if added:
        keys.fail(
            "use_absolute_position_embeddings",
            True,
            "false: a table that is added is not read here",
        )
    if own and shared:
        keys.fail("use_shared_relative_position_bias", True, "false beside a bias for each layer")
    if not own and not shared:
        return (Scheme(),) * count
    window = patches(keys)
    if shared:
        return (Scheme(bias=BeitBias(heads, window=window)),) * count
    return tuple(Scheme(bias=BeitBias(heads, window=window)) for _ in range(count))


def _levit(keys: Keys) -> tuple[Scheme, ...]:
    """Attention of each stage, and one that halves the sides after each stage but the last."""
    depths = _integers(keys, "depths", None, MAX_LAYERS)
    heads = _integers(keys, "num_attention_heads", len(depths), MAX_HEADS)
    widths = _integers(keys, "hidden_sizes", len(depths), MAX_SIZE)
    key_dim = _integers(keys, "key_dim", len(depths), MAX_SIZE)[0]
    height, width = patches(keys)
    layers: list[Scheme] = []
    for stage, (depth, num_heads) in enumerate(zip(depths, heads, strict=True)):
        counts = [num_heads] * depth
        if stage + 1 < len(depths):
            counts.append(widths[stage] // key_dim)
        with about("hidden_sizes"):
            layers += [
                Scheme(bias=SwinBias(count, window=(height, width), symmetric=True))
                for count in counts
            ]
        height, width = (height + 1) // 2, (width + 1) // 2
    return tuple(layers)


def layout_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """LayoutLM: T5's buckets of text order and of two edges of the boxes, shared by all layers."""
    count, heads = num_layers(keys), keys.integer("num_attention_heads", high=MAX_HEADS)
    order = keys.flag("has_relative_attention_bias", default=True)
    boxes = keys.flag("has_spatial_attention_bias", default=True)
    scaled = bool(family.options.get("scaled"))
    if not order and (scaled or not boxes):  # v3 reads boxes beside text order alone
        return (Scheme(),) * count
    if not order or not boxes:
        key = "has_relative_attention_bias" if not order else "has_spatial_attention_bias"
        keys.fail(key, False, "true, or both false")
    channels = keys.per_head("hidden_size", heads)

    def buckets(bins: str, distance: str) -> LogitBias:
        with about(bins):
            return T5Bias(
                heads,
                num_buckets=keys.integer(bins, high=MAX_BUCKETS),
                max_distance=keys.integer(distance, high=MAX_DISTANCE),
            )

    with torch.random.fork_rng(devices=[]):
        parts = [
            buckets("rel_pos_bins", "max_rel_pos"),
            buckets("rel_2d_pos_bins", "max_rel_2d_pos"),
            buckets("rel_2d_pos_bins", "max_rel_2d_pos"),
        ]
    scale = channels**-0.5 if scaled else 1.0
    return (Scheme(bias=AxesBias(parts, scale=scale)),) * count


def patches(keys: Keys, image: str = "image_size") -> tuple[int, int]:
    """How many patches an image has, down and across."""
    sizes, patch = (_pair(keys, name) for name in (image, "patch_size"))
    sides = sizes[0] // patch[0], sizes[1] // patch[1]
    if not all(1 <= side <= MAX_SIDE for side in sides):
        keys.fail(image, keys.get(image), f"1 to {MAX_SIDE} patches of patch_size")
    return sides


def _pair(keys: Keys, name: str) -> tuple[int, int]:
    """(height, width), from one number or from two."""
    if isinstance(keys.get(name), list | tuple):
        height, width = _integers(keys, name, 2, 1 << 16)
        return height, width
    side = keys.integer(name, high=1 << 16)
    return side, side


def _integers(
    keys: Keys, name: str, count: int | None, high: int, *, low: int = 1
) -> tuple[int, ...]:
    """A list of whole numbers from low to high, of this many where `count` is given."""
    listed = keys.get(name)
    if count is None:
        count = len(listed) if isinstance(listed, list | tuple) else 1
    values = keys.sequence(name, count, "stage")
    whole = all(isinstance(x, int) and not isinstance(x, bool) and low <= x <= high for x in values)
    if not values or not whole:
        keys.fail(name, list(values), f"whole numbers from {low} to {high}")
    return values
