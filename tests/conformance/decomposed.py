"""Decomposed relative positions of SAM, ViTDet and their kin, in windows and over whole images."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from conformance.check import Check
from conformance.theirs import attends, config_of, filled, load, read, tokens
from posenc import Block, Decomposed, Scheme
from posenc.positions import grid
from support import assert_roundings, random

__all__ = ["decomposed_checks"]

SIZES: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2,
                         "image_size": 112, "patch_size": 16}  # fmt: skip


@dataclass(frozen=True)
class Kin:
    """A model with such attention: its config and, of its layers, windows of 4 × 4 in the first."""

    attention: str
    config: str
    folder: str = ""
    keys: dict[str, Any] = field(
        default_factory=lambda: {"window_size": 4, "global_attn_indexes": [1]}
    )
    takes_window: bool = True


VITDET_KEYS = {
    "use_relative_position_embeddings": True,
    "window_block_indices": [0],
    "window_size": 4,
}
KIN = {
    "vitdet": Kin("VitDetAttention", "VitDetConfig", keys=VITDET_KEYS),
    "sam": Kin("SamVisionAttention", "SamVisionConfig"),
    "sam_hq": Kin("SamHQVisionAttention", "SamHQVisionConfig"),
    "got_ocr2": Kin("GotOcr2VisionAttention", "GotOcr2VisionConfig"),
    "deepseek_ocr2": Kin("DeepseekOcr2SamVisionAttention", "DeepseekOcr2SamVisionConfig"),
    "pp_formulanet": Kin("PPFormulaNetVisionAttention", "PPFormulaNetVisionConfig"),
    "slanext": Kin("SLANeXtVisionAttention", "SLANeXtVisionConfig"),
    "unlimited_ocr": Kin("UnlimitedOcrSamVisionAttention", "UnlimitedOcrSamVisionConfig"),
    "seggpt": Kin(
        "SegGptAttention", "SegGptConfig", keys={"image_size": [112, 64]}, takes_window=False
    ),
}


def config_for(name: str) -> Any:
    kin = KIN[name]
    try:
        return config_of(kin.config, **{**SIZES, **kin.keys})
    except AttributeError:  # a part of a larger model, not exported
        module = load(name)
        return getattr(module, kin.config)(**{**SIZES, **kin.keys})


def attention_of(name: str, config: Any, window: tuple[int, int], is_whole: bool) -> Any:
    made = getattr(load(name), KIN[name].attention)
    if name == "vitdet":
        module = made(config, input_size=window)
    elif name == "seggpt":
        module = made(config)
    else:
        module = made(config, 0 if is_whole else window[0])
    filled(module).proj = nn.Identity()
    return module


def loaded(relative: Any, module: Any) -> Decomposed:
    assert isinstance(relative, Decomposed)
    relative.double().row_vectors.data = module.rel_pos_h.data
    relative.column_vectors.data = module.rel_pos_w.data
    return relative


def decomposed(name: str) -> None:
    """A layer of windows and a whole one; then the whole one over an image of another size."""
    config = config_for(name)
    windows = [(7, 4)] * 2 if name == "seggpt" else [(4, 4), (7, 7)]
    layers = read(config).layers
    assert [layer.relative and layer.relative.window for layer in layers] == windows
    for index, window in enumerate(windows):
        module = attention_of(name, config, window, is_whole=index == 1)
        relative = loaded(layers[index].relative, module)
        same_attention(module, relative, window)
        for other in ((9, 5), (3, 8)):
            same_attention(module, relative.resized(other), other, roundings=2)


def same_attention(
    module: Any, relative: Decomposed, size: tuple[int, int], roundings: float = 1
) -> None:
    height, width = size
    x = tokens(height * width, 24).view(2, height, width, 24)
    their = module(x)
    their = (their[0] if isinstance(their, tuple) else their).flatten(1, 2)
    heads = module.qkv(x).view(2, height * width, 3, 3, 8).permute(2, 0, 3, 1, 4)
    cells = grid(height, width)
    scheme = Scheme(relative=relative)
    attends(their, heads.unbind(0), roundings, scheme=scheme, q_pos=cells, k_pos=cells)


def fewer_queries_than_keys(name: str) -> None:
    """MViT pools: theirs counts the cells of the smaller side in steps of the larger."""
    made = load(name)
    for num_q, num_k, rows in ((7, 7, 13), (8, 4, 15), (5, 7, 9)):
        table = random(rows, 4)
        if name == "vitdet":
            vectors = made.get_rel_pos(num_q, num_k, table)
        else:
            vectors = getattr(made, KIN[name].attention).get_rel_pos(None, num_q, num_k, table)
        longest = max(num_q, num_k)
        part = Decomposed(4, window=((rows + 1) // 2, 1)).double()
        part.row_vectors.data, part.column_vectors.data = table, torch.zeros(1, 4).double()
        part = part.resized((longest, 1))
        queries = torch.arange(num_q) * max(num_k / num_q, 1.0)
        keys = torch.arange(num_k) * longest // num_k
        middle = (num_k - 1) * longest // num_k - (longest - 1)  # of theirs, where keys are fewer
        q_pos, k_pos = (in_a_column(x) for x in (queries.floor().long(), keys - middle))
        q = torch.eye(4, dtype=torch.float64)
        for channel in range(4):  # of a query that is 1 there and 0 elsewhere
            alike = q[channel].expand(1, 1, num_q, 4)
            ours = part.key_logits(alike, alike, Block(q_pos, k_pos))[0, 0]
            assert_roundings(vectors[..., channel].float(), ours.detach(), 1)


def in_a_column(x: Tensor) -> Tensor:
    return torch.stack((x, torch.zeros_like(x)), -1)


def decomposed_checks() -> list[Check]:
    return [
        *(Check(name, "`Decomposed`, and `resized` for other images",
                lambda name=name: decomposed(name)) for name in KIN),
        *(Check(f"{name}: pooled", "`Decomposed`, at positions in steps of the larger side",
                lambda name=name: fewer_queries_than_keys(name)) for name in KIN),
    ]  # fmt: skip
