"""Vision encoders that rotate by rows and columns, from their configs (`part="vision_config"`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.contracts import Scheme
from posenc.interop.cells import RASTER
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import MAX_LAYERS
from posenc.interop.rope_config import check_finite
from posenc.interop.rope_heads import MAX_HEAD_DIM
from posenc.interop.scaling_keys import METHODS
from posenc.rotary import AxialRope

__all__ = ["VISION", "axial_layers"]

_WIDTHS = ("embed_dim", "hidden_size")
_HEADS = ("num_attention_heads", "num_heads")
_RATE = "memory_attention_downsample_rate"
# Sizes of the maps that are attended, and training's dropout: nothing about the rotation itself.
_ELSEWHERE = tuple(f"memory_attention_rope_{name}" for name in ("feat_sizes", "k_sizes", "dropout"))
_COUNTS = ("num_hidden_layers", "depth", "num_layers")


def axial(*notes: str, **options: Any) -> Family:
    """Two coordinates, each over its own half of the head, unless the options say otherwise."""
    return Family(position="axial", options=options, notes=notes)


def with_table(family: Family, **table: Any) -> Family:
    """Also a learned table that is added to the cells first (options of cells.py)."""
    return replace(family, table=table, notes=(*family.notes, RASTER))


def refused(why: str) -> Family:
    return Family(position="axial", refuse=why)


FROM_1 = "positions count from 1: grid(height, width) + 1"
AT_REST = "; the class token stands at (0, 0)"
CENTRES = axial(
    "positions are patch centres times 2π: centred(height, width, extent=2 * math.pi); the class "
    "token and registers do not turn"
)
MEMORY = replace(
    axial(
        "this is the memory attention; its cross attention repeats positions for each remembered "
        "frame, and object pointers do not turn",
        pairing="adjacent",
        axis_order=(1, 0),
    ),
    aliases={
        "hidden_size": "memory_attention_hidden_size",
        "num_attention_heads": "memory_attention_num_attention_heads",
        "num_hidden_layers": "memory_attention_num_layers",
    },
)
LOFTR = replace(
    axial(
        f"{FROM_1}; queries and keys turn as one head of hidden_size channels, before they are split",
        pairing="adjacent",
        order="alternating",
    ),
    aliases={"num_hidden_layers": "num_attention_layers"},
    fraction=4.0,
)


_PLAIN = """
dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision glm5_next_vision glm_ocr_vision
lfm3_vl_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision video_llama_3_vision
"""
# Their learned tables: counted by a key, or as many as an image of image_size has cells.
_COUNTED = """
cohere_compass_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder
qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision
"""
_SIZED = "glm4v_moe_vision glm4v_vision paddleocr_vl_vision"
_SIDES = ("pos_emb_height", "pos_emb_width")
_COLUMNS_FIRST: dict[str, Any] = {"axis_order": (1, 0)}

VISION: dict[str, Family] = {
    **dict.fromkeys(_PLAIN.split(), axial()),
    **dict.fromkeys(_COUNTED.split(), with_table(axial(), rows="num_position_embeddings")),
    **dict.fromkeys(_SIZED.split(), with_table(axial(), image="image_size")),
    "sam3_vit_model": replace(
        axial(
            "the added table is repeated over larger images, not resampled",
            pairing="adjacent",
            **_COLUMNS_FIRST,
        ),
        table={"image": "pretrain_image_size"},
    ),
    "inkling2_vision": with_table(
        axial(
            FROM_1 + AT_REST + ", with a vector of its own", pairing="adjacent", **_COLUMNS_FIRST
        ),
        side="posemb_grid_size",
    ),
    "mlcd_vision_model": axial("the class token turns by learned angles of its own, class_pos_emb"),
    "kimi_k25_vision": with_table(
        axial(
            "sinusoids of the frame are added too, after the first",
            order="alternating",
            **_COLUMNS_FIRST,
        ),
        sides=_SIDES,
    ),
    "step3p5_vision": with_table(axial(**_COLUMNS_FIRST), image="image_size"),
    **dict.fromkeys(
        ("muse_glimmer_vision", "muse_spark_vision"),
        with_table(axial(FROM_1, **_COLUMNS_FIRST), sides=_SIDES),
    ),
    "pixtral": axial(spectrum="dealt"),
    "minimax_m3_vl_vision": axial(split=3),
    "llama4_vision_model": with_table(
        axial(FROM_1 + AT_REST + ", last, in the table too", pairing="adjacent", **_COLUMNS_FIRST),
        image="image_size",
        suffix=1,
    ),
    "efficientloftr": LOFTR,
    **dict.fromkeys(("dinov3_vit", "sapiens2", "eomt_dinov3"), replace(CENTRES, theta=100.0)),
    **dict.fromkeys(("sam2_video", "sam3_tracker_video", "edgetam_video"), MEMORY),
    "gemma4_vision": refused(
        "vision: each axis pairs the halves of its own part of the head. No AxialRope does; two "
        "ropes of half the head do, one leading and one trailing"
    ),
    "vjepa2": refused("vision: its cosines and sines do not keep lengths, so it is no rotation"),
}


def axial_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """One rotation for all layers."""
    section = keys.section("rope_parameters") or Keys(
        {}, f"{keys.path}rope_parameters.", read=keys.read
    )
    known: Mapping[str, tuple[Any, ...]] = {"rope_type": ("axial", "default")}
    read = ("rope_theta",) if family.fraction is None else ("rope_theta", "partial_rotary_factor")
    for key, value in section.raw.items():
        if key not in read and value not in (None, *known.get(key, ())):
            section.fail(
                key, value, f"rope_theta alone; vision is not scaled ({', '.join(METHODS)})"
            )
    base = family.theta or 10_000.0
    if "rope_theta" in section:
        base = section.number("rope_theta", above=0)
    elif "rope_theta" in keys:
        base = keys.number("rope_theta", above=0)
    else:
        keys.read.defaults[f"{section.path}rope_theta"] = base
    with about(f"{keys.path}head_dim"):
        rope = AxialRope(_width(keys, family, section), base, **family.options)
    check_finite(rope, f"{keys.path}rope_theta")
    for key in _ELSEWHERE:
        keys.get(key)
    return (Scheme(rotary=rope),) * keys.integer(_first(keys, _COUNTS), high=MAX_LAYERS)


def _width(keys: Keys, family: Family, section: Keys) -> int:
    """Channels that turn together: a head, or all heads as one where a family has a fraction."""
    if family.fraction is None:
        return _head_dim(keys)
    name, fraction = "partial_rotary_factor", family.fraction
    if name in section:
        fraction = section.number(name, above=0)
    else:
        keys.read.defaults[section.path + name] = fraction
    width, hidden = 2 * int(_head_dim(keys) * fraction), keys.integer("hidden_size")
    if width != hidden:
        section.fail(name, fraction, f"a share whose two axes fill hidden_size = {hidden}")
    return width


def _head_dim(keys: Keys) -> int:
    if "head_dim" in keys:
        return keys.integer("head_dim", low=2, high=MAX_HEAD_DIM)
    named = _first(keys, _HEADS)
    heads = keys.integer(named)
    if _RATE in keys:
        heads, named = heads * keys.integer(_RATE), f"{named} · {_RATE}"
    return keys.per_head(_first(keys, _WIDTHS), heads, named, high=MAX_HEAD_DIM)


def _first(keys: Keys, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in keys), names[-1])
