"""Tables of window offsets: Swin and its kin, BEiT, LeViT. What softmax makes of a bias is compared.

With queries of zero the scores of an attention module are its bias, in every model's own code.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from conformance.check import Check
from conformance.theirs import config_of, filled, load, read
from posenc import BeitBias, SwinBias, SwinV2Bias
from posenc.positions import grid, with_class_token
from support import assert_roundings, random

__all__ = ["window_checks"]

WINDOWS = ((7, 7), (4, 4), (2, 3), (3, 5))


@dataclass(frozen=True)
class Swin:
    """A model with windows: its attention class takes (config, width, heads, window, …)."""

    folder: str
    file: str
    attention: str
    model: str
    config: str
    keys: dict[str, Any] = field(default_factory=dict)


SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 2, "window_size": 4, "depths": [1, 2],
                         "num_heads": [2, 4], "embed_dim": 8}  # fmt: skip
AUDIO: dict[str, Any] = {"spec_size": 32, "num_mel_bins": 8, "patch_size": 2, "patch_stride": [2, 2],
                         "window_size": 4, "depths": [1, 2], "num_attention_heads": [2, 4],
                         "patch_embeds_hidden_size": 8, "hidden_size": 16}  # fmt: skip
KINDS = {
    "swin": Swin("swin", "", "SwinRelativePositionBias", "SwinModel", "SwinConfig", SMALL),
    "clap": Swin("clap", "", "ClapAudioSelfAttention", "ClapAudioModel", "ClapAudioConfig", AUDIO),
    "donut": Swin("donut", "donut_swin", "DonutSwinSelfAttention", "DonutSwinModel",
                  "DonutSwinConfig", SMALL),
    "maskformer": Swin("maskformer", "maskformer_swin", "MaskFormerSwinSelfAttention",
                       "MaskFormerSwinModel", "MaskFormerSwinConfig", SMALL),
    "swinv2": Swin("swinv2", "", "Swinv2SelfAttention", "Swinv2Model", "Swinv2Config",
                   SMALL | {"pretrained_window_sizes": [0, 3]}),
    "swin2sr": Swin("swin2sr", "", "Swin2SRSelfAttention", "Swin2SRModel", "Swin2SRConfig", SMALL),
}  # fmt: skip
CONTINUOUS = ("swinv2", "swin2sr")


def window_bias(name: str) -> None:
    """Of every layer of a small model, and of windows that are not square."""
    kind = KINDS[name]
    theirs, config = load(kind.folder, kind.file), config_of(kind.config, **kind.keys)
    model = getattr(theirs, kind.model)(config)
    found = [x for x in model.modules() if type(x).__name__ == kind.attention]
    layers = read(config).layers
    assert len(found) == len(layers) == 3
    for module, scheme in zip(found, layers, strict=True):
        same(module, scheme.bias)
    for window in WINDOWS:
        if name == "swin":
            same(theirs.SwinRelativePositionBias(3, window), SwinBias(3, window=window))
            continue
        form = SwinV2Bias if name in CONTINUOUS else SwinBias
        module = getattr(theirs, kind.attention)(config, 12, 3, window)
        same(module, form(3, window=window))
    if name in CONTINUOUS:
        module = getattr(theirs, kind.attention)(config, 12, 3, (8, 8), [6, 6])
        same(module, SwinV2Bias(3, window=8, pretrained_window=6))


def same(module: Any, bias: Any) -> None:
    filled(module)
    if isinstance(bias, SwinV2Bias):
        first, _, last = module.continuous_position_bias_mlp
        bias.double().load_state_dict({
            "hidden.weight": first.weight, "hidden.bias": first.bias, "out.weight": last.weight
        })  # fmt: skip
    else:
        bias.double().weight.data = module.relative_position_bias_table.data
    cells = grid(*bias.window)
    ours = bias.dense(cells, cells, dtype=torch.float64)
    if "query" not in dict(module.named_children()):
        assert torch.equal(module(), ours)
        return
    # float32 coordinates of theirs pass a sum of 512 units
    roundings = 4 if isinstance(bias, SwinV2Bias) else 1
    assert_roundings(weights(module, len(cells)).float(), ours.softmax(-1).detach(), roundings)


def weights(module: Any, num_tokens: int) -> Tensor:
    """Attention weights where all queries are zero."""
    for parameter in module.query.parameters():
        parameter.data.zero_()
    hidden = random(1, num_tokens, module.all_head_size)
    return module(hidden, output_attentions=True)[1]


def one_cell_wide(name: str) -> None:
    kind = KINDS[name]
    module = getattr(load(kind.folder), kind.attention)(config_of(kind.config), 12, 3, (5, 1))
    assert weights(filled(module), 5).isnan().any()
    cells = grid(5, 1)
    assert SwinV2Bias(3, window=(5, 1)).dense(cells, cells).isfinite().all()


# --- BEiT ----------------------------------------------------------------------------------------

BEIT = {
    "beit": ("beit", "beit", "Beit"),
    "data2vec": ("data2vec", "data2vec_vision", "Data2VecVision"),
}


def beit_module(name: str, image: tuple[int, int]) -> tuple[Any, Any]:
    """Their bias for an image of 16-pixel patches, and ours of the same weights."""
    folder, file, prefix = BEIT[name]
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
    config = config_of(f"{prefix}Config", image_size=image[0] * 16, patch_size=16, **sizes,
                       use_relative_position_bias=True)  # fmt: skip
    bias: Any = read(config).layers[1].bias
    if image[0] != image[1]:
        config.image_size = (image[0] * 16, image[1] * 16)
        bias = BeitBias(3, window=image)
    module = getattr(load(folder, file), f"{prefix}RelativePositionBias")
    theirs = filled(module(config) if name == "beit" else module(config, image)).float()
    bias.weight.data = theirs.relative_position_bias_table.data
    return theirs, bias


def cells_of(window: tuple[int, int]) -> Tensor:
    return with_class_token(grid(*window))


def beit_bias(name: str) -> None:
    for side in (4, 7):
        theirs, bias = beit_module(name, (side, side))
        cells = cells_of(bias.window)
        assert torch.equal(theirs(bias.window), bias.dense(cells, cells))


def beit_at_another_window(name: str) -> None:
    theirs, bias = beit_module(name, (4, 4))
    for window in ((6, 6), (6, 5), (3, 4)):
        cells = cells_of(window)
        ours = bias.resized(window, kernel="bilinear").dense(cells, cells, dtype=torch.float64)
        assert_roundings(theirs(window), ours, 4)  # float32 weights of theirs


def beit_in_a_window_that_is_not_square(name: str) -> None:
    theirs, bias = beit_module(name, (3, 5))
    index = theirs.generate_relative_position_index((3, 5))
    cells = cells_of((3, 5))
    ours = bias.dense(cells, cells)
    assert torch.equal(bias.weight[index].permute(2, 0, 1)[None], ours)  # what was trained
    assert (theirs((3, 5)) - ours).abs().max() > 0.1


# --- LeViT ---------------------------------------------------------------------------------------


def levit_bias() -> None:
    """Every attention of a model in the order of its layers, the shrinking ones among them."""
    config = config_of("LevitConfig", image_size=112, depths=[1, 2, 1], hidden_sizes=[32, 64, 96],
                       num_attention_heads=[2, 4, 6])  # fmt: skip
    layers = read(config).layers
    model = load("levit").LevitModel(config)
    found = [x for x in model.modules() if hasattr(x, "attention_biases")]
    assert len(found) == len(layers) == 6
    for module, scheme in zip(found, layers, strict=True):
        bias: Any = scheme.bias
        theirs = filled(module).float()
        bias.weight.data = theirs.attention_biases.data.T
        cells = grid(*bias.window)
        queries = cells
        if hasattr(theirs, "resolution_out"):
            queries = grid(theirs.resolution_out, theirs.resolution_out) * 2
        made = theirs.get_attention_biases(torch.device("cpu"))
        assert torch.equal(made, bias.dense(queries, cells)[0])


def window_checks() -> list[Check]:
    return [
        *(Check(name, "`SwinV2Bias`" if name in CONTINUOUS else "`SwinBias`",
                lambda name=name: window_bias(name)) for name in KINDS),
        *(Check(f"{name}: one cell wide", "`SwinV2Bias`, finite",
                lambda name=name: one_cell_wide(name),
                f"theirs: 0/0 is no number (modeling_{name}.py:{line})")
          for name, line in (("swinv2", 472), ("swin2sr", 311))),
        *(Check(name, "`BeitBias`", lambda name=name: beit_bias(name)) for name in BEIT),
        *(Check(f"{name}: another window", '`BeitBias.resized(window, kernel="bilinear")`',
                lambda name=name: beit_at_another_window(name)) for name in BEIT),
        *(Check(f"{name}: not square", "`BeitBias`",
                lambda name=name: beit_in_a_window_that_is_not_square(name),
                "theirs: the table is resized even to its own window, with height and width "
                f"exchanged ({place})")
          for name, place in (("beit", "modeling_beit.py:237"),
                              ("data2vec", "modeling_data2vec_vision.py:548"))),
        Check("levit", "`SwinBias(symmetric=True)`, shrinking attention among them", levit_bias),
    ]  # fmt: skip
