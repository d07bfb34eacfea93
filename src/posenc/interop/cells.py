"""Tables of image cells from a config: ViT, CLIP, DINOv2, SigLIP and their kin; spectrograms; videos.

Options say how many rows there are: `image` (and `patch`) are keys of sizes, or `rows` is a key that
counts cells, `side` one that counts the cells of a side, or `sides` two such. `prefix` class tokens
stand before the cells, `suffix` tokens after them: numbers, or keys. `switch` is a key that is true
where the model has the table, and a key in `off` must be false.
"""

from dataclasses import replace
from typing import Any

from posenc.contracts import Scheme
from posenc.interop.families import Family
from posenc.interop.keys import MAX_SIZE, Keys
from posenc.interop.layers import num_layers
from posenc.interop.model_scheme import LearnedAxes, LearnedPositions
from posenc.interop.windows import MAX_SIDE, patches

__all__ = ["CELLS", "axes_table", "cells_layers", "cells_table"]

RASTER = "the added table has a row for each cell in raster order, resampled for other images"
BUCKETS = (
    "the added table has a row for each cell of a square; cells of other images are looked up by "
    "their place as a share of the image, none is resampled"
)


def cells(*notes: str, **options: Any) -> Family:
    return Family(position="cells", table=options, notes=notes or (RASTER,))


def many(names: str, family: Family) -> dict[str, Family]:
    return dict.fromkeys(names.split(), family)


PRETRAINED = {"image": "pretrain_image_size", "prefix": 1}
SQUARE_OF_PIXELS = {"image": "max_image_size", "prefix": 1}
ROWS_AND_COLUMNS = ("patches carry their row and column, counted from 1; 0 is padding",)

CELLS: dict[str, Family] = {
    **many(
        "altclip_vision_model blip_2_vision_model blip_vision_model bridgetower_vision_model "
        "chinese_clip_vision_model clip_vision_model clipseg_vision_model dinov2 "
        "dinov2_with_registers flava_image_model git_vision_model instructblip_vision_model "
        "instructblipvideo_vision_model kosmos_2_vision_model metaclip_2_vision_model "
        "owlv2_vision_model owlvit_vision_model rf_detr_dinov2 tipsv2_vision_model "
        "unlimited_ocr_vision_encoder vit vit_msn xclip_vision_model",
        cells(prefix=1),
    ),
    **many(
        "eomt granite_docling_vision groupvit_vision_model ijepa "
        "janus_vision_model ovis2_vision phi4_multimodal_vision siglip_vision_model videomt",
        cells(),
    ),
    **many(
        "idefics2_vision idefics3_vision minicpm_ocr_vision minicpmv4_6_vision minicpmv4_7_vision "
        "smolvlm_vision",
        cells(BUCKETS),
    ),
    **many("siglip2_vision_model cosmos3_edge_vision", cells(rows="num_patches")),
    "glm_image_vision": replace(cells(), aliases={"num_hidden_layers": "depth"}),
    "idefics_vision": replace(cells(prefix=1), aliases={"hidden_size": "embed_dim"}),
    "molmo2_vision": cells(rows="num_position_embeddings"),
    **many("internvl_vision qianfan_ocr_vision",
           cells(prefix=1, switch="use_absolute_position_embeddings")),
    **many("hunyuan_vl_vision hy_v4_vl_vision",
           cells(RASTER, "row 0, of a class token, is never read", **SQUARE_OF_PIXELS)),
    "lw_detr_vit": cells(**PRETRAINED, switch="use_absolute_position_embeddings"),
    "radio": cells("the added table is cropped to an image's shape, then resampled: see its code",
                   image="max_img_size"),
    "aimv2_vision_model": cells(off="is_native"),
    "dpt": cells(prefix=1, off="is_hybrid"),
    "mgp-str": cells(prefix=1, off="distilled"),
    "deit": cells(prefix=2),
    "pixio": cells(prefix="n_cls_tokens"),
    "yolos": cells(
        RASTER, "rows of detection tokens stand after the cells; with use_mid_position_embeddings "
        "each layer but the last adds a table of its own too", prefix=1,
        suffix="num_detection_tokens",
    ),
    "vitpose_backbone": cells(
        "row 0, of a class token that there is not, is added to every cell: encode(−1) too",
        prefix=1,
    ),
    "timesformer": cells(RASTER, "a table of num_frames rows is added along time", prefix=1),
    "vivit": cells(prefix=1, tubelets=True),
    "audio-spectrogram-transformer": cells(
        "cells are frequency × time, frequency slowest", prefix=2, spectrogram=True
    ),
    "pix2struct_vision_model": Family(
        position="axes", table={"rows": "seq_len", "combine": "added"}, notes=ROWS_AND_COLUMNS
    ),
    "kosmos_2_5_vision_model": Family(
        position="axes", table={"rows": "max_num_patches", "combine": "added"},
        notes=ROWS_AND_COLUMNS,
    ),
    "reformer": Family(
        position="axes", table={"shape": "axial_pos_shape", "dims": "axial_pos_embds_dim",
                                "switch": "axial_pos_embds"},
        notes=("positions are unravel(at, axial_pos_shape) for the added table",),
    ),
}  # fmt: skip


def cells_layers(keys: Keys) -> tuple[Scheme, ...]:
    """Nothing within attention."""
    return (Scheme(),) * num_layers(keys)


def cells_table(keys: Keys, family: Family) -> LearnedPositions | None:
    """The table that is added, or None where the family, or its config, has none."""
    options = family.table
    if not options and family.position != "cells":
        return None
    off = options.get("off")
    if off is not None and keys.flag(off, default=False):
        keys.fail(off, True, "false: what such a model adds instead is not read")
    switch = options.get("switch")
    if switch is not None and not keys.flag(switch, default=True):
        return None
    width = keys.integer("hidden_size", high=MAX_SIZE)
    prefix, suffix = (_count(keys, options.get(name, 0)) for name in ("prefix", "suffix"))
    return LearnedPositions(_num_cells(keys, options) + suffix, width, prefix)


def axes_table(keys: Keys, family: Family) -> LearnedAxes | LearnedPositions:
    """Reformer's, Pix2Struct's: a table for each coordinate; or one for all where switched off."""
    options, width = family.table, keys.integer("hidden_size", high=MAX_SIZE)
    if "rows" in options:
        rows = keys.integer(options["rows"])
        return LearnedAxes((rows, rows), (width, width), "added")
    if not keys.flag(options["switch"], default=True):
        return LearnedPositions(keys.integer("max_position_embeddings"), width)
    sizes, widths = (_pair(keys, options[name]) for name in ("shape", "dims"))
    if sum(widths) != width:
        keys.fail(options["dims"], list(widths), f"two widths that sum to hidden_size = {width}")
    return LearnedAxes(sizes, widths)


def _num_cells(keys: Keys, options: Any) -> int:
    if "rows" in options:
        return keys.integer(options["rows"])
    if "side" in options:
        return keys.integer(options["side"], high=MAX_SIDE) ** 2
    if "sides" in options:
        height, width = (keys.integer(name, high=MAX_SIDE) for name in options["sides"])
        return height * width
    if options.get("tubelets"):
        return _tubelets(keys)
    if options.get("spectrogram"):
        return _spectrogram(keys)
    height, width = patches(keys, options.get("image", "image_size"))
    return height * width


def _tubelets(keys: Keys) -> int:
    """Video cut into boxes of frames, rows and columns; frames are slowest."""
    image, frames = keys.integer("image_size", high=1 << 16), keys.integer("num_frames")
    sizes = keys.sequence("tubelet_size", 3, "axis")
    if not all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in sizes):
        keys.fail("tubelet_size", list(sizes), "whole numbers above 0")
    counts = [whole // size for whole, size in zip((frames, image, image), sizes, strict=True)]
    if min(counts) < 1:
        keys.fail("tubelet_size", list(sizes), f"at most num_frames = {frames} and image_size")
    return counts[0] * counts[1] * counts[2]


def _spectrogram(keys: Keys) -> int:
    """Patches that may overlap: one each stride, as long as a whole one fits."""
    patch, count = keys.integer("patch_size", high=1 << 16), 1
    for whole, stride in (("num_mel_bins", "frequency_stride"), ("max_length", "time_stride")):
        length = keys.integer(whole, low=patch)
        count *= (length - patch) // keys.integer(stride) + 1
    return count


def _count(keys: Keys, said: int | str) -> int:
    return keys.integer(said, low=0, high=1 << 16) if isinstance(said, str) else said


def _pair(keys: Keys, name: str) -> tuple[int, int]:
    first, second = keys.sequence(name, 2, "axis")
    for value in (first, second):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            keys.fail(name, [first, second], "two whole numbers above 0")
    return first, second
