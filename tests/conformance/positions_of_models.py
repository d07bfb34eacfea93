"""Positions that transformers gives to text, images and videos, beside posenc's."""

import importlib
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.vision_utils import get_vision_position_ids

from conformance.check import Check
from posenc.positions import Image, Text, Video, grid, multimodal, volume

__all__ = ["CHECKS", "IDS", "their_positions"]

PARTS = {
    "text": [Text(3)],
    "image": [Text(4), Image(4, 6), Text(4), Image(2, 1), Text(1)],
    "video": [Text(3), Video(2, 2, 3), Text(2)],
    "frames": [Text(2), Image(2, 2), Text(2), Image(2, 2), Text(1)],
}
TIMED, BY_FRAME = ("text", "image", "video"), ("text", "image", "frames")
IDS = {
    "cohere_compass": ("CohereCompass", BY_FRAME),
    "cosmos3_edge": ("Cosmos3Edge", BY_FRAME),
    "cosmos3_omni": ("Cosmos3Omni", BY_FRAME),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoe", ("text", "image")),
    "glm46v": ("Glm46V", BY_FRAME),
    "glm4v": ("Glm4v", BY_FRAME),
    "glm4v_moe": ("Glm4vMoe", BY_FRAME),
    "glm_ocr": ("GlmOcr", BY_FRAME),
    "paddleocr_vl": ("PaddleOCRVL", TIMED),
    "qwen2_5_vl": ("Qwen2_5_VL", TIMED),
    "qwen2_vl": ("Qwen2VL", TIMED),
    "qwen3_5": ("Qwen3_5", BY_FRAME),
    "qwen3_5_moe": ("Qwen3_5Moe", BY_FRAME),
    "qwen3_vl": ("Qwen3VL", BY_FRAME),
    "qwen3_vl_moe": ("Qwen3VLMoe", BY_FRAME),
    "qwen4_exp": ("Qwen4Exp", BY_FRAME),
    "hy_v4_vl": ("HYV4VL", ("text", "image", "video")),
}
ROW_ENDS = ("hy_v4_vl",)  # a newline token ends every row of a grid


def their_positions(name: str, parts: list[Any], kind: str, **seconds: Any) -> Tensor:
    """`[T, 3]` from the model's own get_rope_index, without building the model."""
    extra = int(name in ROW_ENDS)
    modeling = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    made = getattr(modeling, f"{IDS[name][0]}Model")
    model = made.__new__(made)
    config = model.__dict__["config"] = getattr(transformers, f"{IDS[name][0]}Config")()
    merge = getattr(config.vision_config, "spatial_merge_size", 2)
    kinds, images, videos = [], [], []
    for part in parts:
        if isinstance(part, Text):
            kinds += [0] * part.num_tokens
            continue
        frames = getattr(part, "frames", 1)
        is_video = isinstance(part, Video) or kind == "frames"
        kinds += [1 + is_video] * (frames * part.height * (part.width + extra))
        cells = [frames, part.height * merge, part.width * merge]
        (videos if is_video else images).append(cells)
    if kind == "frames":  # theirs is one video, which they take apart
        videos = [[len(videos), *videos[0][1:]]]
    ids = torch.zeros(1, len(kinds), dtype=torch.int64)
    grids = {"image_grid_thw": images, "video_grid_thw": videos}
    given = {key: torch.tensor(grid) if grid else None for key, grid in grids.items()}
    made_ids, _ = model.get_rope_index(
        ids, mm_token_type_ids=torch.tensor([kinds]).int(), **given, **seconds
    )
    return made_ids[:, 0].T


def multimodal_equals_transformers(name: str) -> None:
    for kind in IDS[name][1]:
        parts, clock = PARTS[kind], None
        if (name, kind) == ("qwen2_5_vl", "video"):  # its default: a frame a second
            parts, clock = [Text(3), Video(2, 2, 3, 1.0), Text(2)], 4
        meant = [x for part in parts for x in with_row_ends(part)] if name in ROW_ENDS else parts
        advance = "largest" if name in ROW_ENDS else "grid"
        ours = multimodal(meant, advance=advance, tokens_per_second=clock)
        assert torch.equal(ours, their_positions(name, parts, kind)), kind


def with_row_ends(part: Any) -> list[Any]:
    """Frames one after another, each with a column for the tokens that end its rows."""
    if isinstance(part, Text):
        return [part]
    return [Image(part.height, part.width + 1)] * getattr(part, "frames", 1)


def grids_equal_transformers() -> None:
    for merge in (1, 2):
        for shape in ((1, 4, 6), (3, 2, 8)):
            theirs = get_vision_position_ids(torch.tensor([shape]), merge, include_temporal=True)
            assert torch.equal(volume(*shape, merge=merge), theirs)
            assert torch.equal(grid(*shape[1:], merge=merge), theirs[: shape[1] * shape[2], 1:])


def said(name: str) -> str:
    if name in ROW_ENDS:
        return "`multimodal`, each frame an `Image` with a column for the tokens that end its rows"
    frames = {TIMED: ", video as `Video`", BY_FRAME: ", each frame as an `Image`"}
    return f"`multimodal(advance='grid')`{frames.get(IDS[name][1], '')}"


CHECKS = [
    *(Check(x, said(x), lambda x=x: multimodal_equals_transformers(x)) for x in IDS),
    Check("hunyuan_vl", "", why="refused: axes are (token, column, row, number of the image), and "
          "text after an image counts each of its tokens (modeling_hunyuan_vl.py:887); "
          "`MRope` takes such positions, no function here makes them"),
    Check("minicpmv4_7", "", why="refused: crops lie on one canvas at their places in the picture "
          "(modeling_minicpmv4_7.py:952); `MRope` takes such positions, no function here makes them"),
    Check("get_vision_position_ids", "`grid` and `volume`, with `merge`", grids_equal_transformers),
    Check("interpolation_weights", "", why="refused: taps for a learned 2-D table at another size; "
          "`Learned` has one axis"),
]  # fmt: skip
