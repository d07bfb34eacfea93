"""Vision encoders that rotate by rows and columns, from their configs (`part="vision_config"`)."""

from collections.abc import Mapping
from typing import Any

from posenc.contracts import Scheme
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
_COUNTS = ("num_hidden_layers", "depth", "num_layers")


def axial(**options: Any) -> Family:
    """Two coordinates, each over its own half of the head, unless the options say otherwise."""
    return Family(position="axial", options=options)


def refused(why: str) -> Family:
    return Family(position="axial", refuse=why)


_PLAIN = """
cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision
glm4v_moe_vision glm4v_vision glm5_next_vision glm_ocr_vision lfm3_vl_vision mlcd_vision_model
paddleocr_vl_vision qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision
qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision qwen3_vl_vision
qwen4_exp_vision video_llama_3_vision
"""
_COLUMNS_FIRST: dict[str, Any] = {"axis_order": (1, 0)}

VISION: dict[str, Family] = {
    **dict.fromkeys(_PLAIN.split(), axial()),
    "sam3_vit_model": axial(pairing="adjacent", **_COLUMNS_FIRST),
    "inkling2_vision": axial(pairing="adjacent", **_COLUMNS_FIRST),
    "kimi_k25_vision": axial(order="alternating", **_COLUMNS_FIRST),
    "step3p5_vision": axial(**_COLUMNS_FIRST),
    "muse_glimmer_vision": axial(**_COLUMNS_FIRST),
    "muse_spark_vision": axial(**_COLUMNS_FIRST),
    "pixtral": axial(spectrum="dealt"),
    "minimax_m3_vl_vision": axial(split=3),
    "llama4_vision_model": refused("vision: two rotations side by side, counted from 1"),
    "gemma4_vision": refused("vision: each axis turns halves of its own part of the head"),
    "efficientloftr": refused("vision: it rotates before the heads are split"),
    "vjepa2": refused("vision: its cosines and sines do not keep lengths"),
    **dict.fromkeys(
        ("dinov3_vit", "sapiens2", "eomt_dinov3"),
        refused("vision: coordinates are patch centres from −1 to 1, times 2π (positions.centred)"),
    ),
    **dict.fromkeys(
        ("sam2_video", "sam3_tracker_video", "edgetam_video"),
        refused("vision: the memory's keys repeat, and some do not turn"),
    ),
}


def axial_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """One rotation for all layers."""
    section = keys.section("rope_parameters") or Keys(
        {}, f"{keys.path}rope_parameters.", read=keys.read
    )
    for key, value in section.raw.items():
        known: Mapping[str, tuple[Any, ...]] = {"rope_type": ("axial", "default")}
        if key != "rope_theta" and value not in (None, *known.get(key, ())):
            section.fail(
                key, value, f"rope_theta alone; vision is not scaled ({', '.join(METHODS)})"
            )
    base = 10_000.0
    if "rope_theta" in section:
        base = section.number("rope_theta", above=0)
    elif "rope_theta" in keys:
        base = keys.number("rope_theta", above=0)
    else:
        keys.read.defaults[f"{section.path}rope_theta"] = base
    with about(f"{keys.path}head_dim"):
        rope = AxialRope(_head_dim(keys), base, **family.options)
    check_finite(rope, f"{keys.path}rope_theta")
    return (Scheme(rotary=rope),) * keys.integer(_first(keys, _COUNTS), high=MAX_LAYERS)


def _head_dim(keys: Keys) -> int:
    if "head_dim" in keys:
        return keys.integer("head_dim", low=2, high=MAX_HEAD_DIM)
    name = _first(keys, _WIDTHS)
    width, heads = keys.integer(name), keys.integer(_first(keys, _HEADS))
    if width % heads or width // heads > MAX_HEAD_DIM:
        keys.fail(name, width, f"a multiple of the number of heads, {heads}")
    return width // heads


def _first(keys: Keys, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in keys), names[-1])
