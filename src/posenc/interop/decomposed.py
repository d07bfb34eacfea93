"""SAM, ViTDet and their kin from a config: vectors of rows and columns, in windows or over the image.

What is described are the vectors, and the table that is added before. Windows are cut by the model;
positions inside one are `posenc.positions.grid(h, w)`.
"""

import torch

from posenc.contracts import Scheme
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import listed_layers, num_layers
from posenc.interop.model_scheme import LearnedPositions
from posenc.interop.windows import MAX_SIDE, patches
from posenc.relative import Decomposed

__all__ = ["DECOMPOSED", "decomposed_layers", "decomposed_table"]

RASTER = "the added table has a row for each cell in raster order, resampled for other images"

SAM = Family(
    position="decomposed",
    options={"switch": "use_rel_pos", "on": True, "everywhere": "global_attn_indexes",
             "table": "use_abs_pos"},
    notes=(RASTER,),
)  # fmt: skip
VITDET = Family(
    position="decomposed",
    options={"switch": "use_relative_position_embeddings", "on": False,
             "windowed": "window_block_indices", "table": "use_absolute_position_embeddings",
             "image": "pretrain_image_size", "class_token": True},
    notes=(RASTER,),
)  # fmt: skip
SEGGPT = Family(
    position="decomposed",
    options={"switch": "use_relative_position_embeddings", "on": True,
             "image": "pretrain_image_size", "class_token": True},
    notes=(RASTER,),
)  # fmt: skip

DECOMPOSED: dict[str, Family] = {
    **dict.fromkeys(
        ("sam_vision_model", "sam_hq_vision_model", "got_ocr2_vision", "pp_formulanet_vision",
         "pp_chart2table_vision",
         "slanext_vision", "deepseek_ocr2_sam_vision_model", "unlimited_ocr_sam_vision_model"),
        SAM,
    ),
    "vitdet": VITDET,
    "seggpt": SEGGPT,
}  # fmt: skip


def decomposed_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """Vectors of its own for each layer: of a window, or of the whole image."""
    count, heads = num_layers(keys), keys.integer("num_attention_heads")
    channels = keys.per_head("hidden_size", heads)
    windowed = _windowed(keys, family, count)
    whole, side = patches(keys), None
    if any(windowed):
        side = keys.integer("window_size", low=0, high=MAX_SIDE)
    if not keys.flag(family.options["switch"], default=family.options["on"]):
        return (Scheme(),) * count
    sizes = [(side, side) if inside and side else whole for inside in windowed]
    with about("hidden_size"), torch.random.fork_rng(devices=[]):
        return tuple(Scheme(relative=Decomposed(channels, window=size)) for size in sizes)


def decomposed_table(keys: Keys, family: Family) -> LearnedPositions | None:
    """The table of cells that is added first; a row of a class token may come before it."""
    switch = family.options.get("table")
    if switch is not None and not keys.flag(switch, default=True):
        return None
    height, width = patches(keys, family.options.get("image", "image_size"))
    offset = int(family.options.get("class_token", False))
    return LearnedPositions(height * width, keys.integer("hidden_size"), offset)


def _windowed(keys: Keys, family: Family, count: int) -> tuple[bool, ...]:
    """Whether each layer attends within windows: SAM lists those that do not, ViTDet the others."""
    everywhere, windowed = (family.options.get(name) for name in ("everywhere", "windowed"))
    if everywhere is not None:
        return tuple(not inside for inside in listed_layers(keys, everywhere, count))
    if windowed is None or windowed not in keys:
        return (False,) * count
    return listed_layers(keys, windowed, count)
