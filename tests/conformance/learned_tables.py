"""Learned tables of transformers beside this library: which row a position reads, and other grids.

The model's own module runs with random vectors, and the table here is given the same ones.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from conformance.check import Check
from posenc import AxialLearned, Learned, resize_grid
from posenc.positions import from_padding_mask, grid, sequence, unravel
from support import assert_roundings, random

__all__ = ["axial_table_checks", "resized_checks", "table_checks"]

ROWS, DIM, PAD, CACHED = 16, 3, 1, 3
IDS = torch.tensor([[5, 6, 7, 8, 1, 1], [1, 1, 5, 6, 7, 8], [5, 1, 6, 1, 7, 8]])
MASKS = (IDS != PAD).to(torch.int64)


def module(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def sharing(own: nn.Module, **how: Any) -> Learned:
    """A table with the vectors of theirs, drawn anew; all rows, of padding too, are told apart."""
    weight: Any = own.weight
    weight.data.copy_(random(*weight.shape, dtype=torch.float32))
    offset = how.get("offset", 0) or (how["padding_idx"] + 1 if "padding_idx" in how else 0)
    table = Learned(len(weight) - offset, weight.shape[1], **how)
    table.weight = weight
    return table


def counts_storage(name: str, prefix: str, offset: int, *, by_shape: bool) -> None:
    """Padding is counted like any token."""
    cls = getattr(module(name), f"{prefix}")
    made = cls(ROWS, DIM)
    table = sharing(made, offset=offset)
    given = IDS.shape if by_shape else IDS
    for start in (0, CACHED):
        theirs = made(given, start).reshape(-1, 6, DIM)
        assert torch.equal(theirs[0], table.encode(sequence(6, start=start)))


def counts_real_tokens(name: str, cls: str) -> None:
    made = getattr(module(name), cls)(ROWS, DIM)
    table = sharing(made, offset=2)
    positions = from_padding_mask(MASKS)
    assert torch.equal(made(MASKS), table.encode(positions))
    assert torch.equal(made(MASKS, CACHED), table.encode(positions[:, CACHED:]))


def prophetnet_counts_from_one() -> None:
    config = SimpleNamespace(max_position_embeddings=ROWS, hidden_size=DIM, pad_token_id=0)
    made = module("prophetnet").ProphetNetPositionalEmbeddings(config)
    table = sharing(made, padding_idx=0)
    theirs, _ = made(MASKS.shape, "cpu", MASKS)
    assert torch.equal(theirs, table.encode(from_padding_mask(MASKS)))


def prophetnet_clamps() -> None:
    """Position 15 of a table of 15 reads position 14; here it is an error."""
    config = SimpleNamespace(max_position_embeddings=ROWS, hidden_size=DIM, pad_token_id=0)
    made = module("prophetnet").ProphetNetPositionalEmbeddings(config)
    table = sharing(made, padding_idx=0)
    theirs, _ = made((1, ROWS), "cpu", torch.ones(1, ROWS, dtype=torch.int64))
    assert torch.equal(theirs[0, ROWS - 2], theirs[0, ROWS - 1])
    try:
        table.encode(sequence(ROWS))
    except ValueError:
        return
    raise AssertionError("expected an error for a position past the table")


def whisper_decoder() -> None:
    made = module("whisper").WhisperPositionalEmbedding(ROWS, DIM)
    table = sharing(made)
    for start in (0, CACHED):
        assert torch.equal(made(IDS, start), table.encode(sequence(6, start=start)))


def two_rows_that_nothing_reads(name: str) -> None:
    config = getattr(transformers, f"{name.capitalize()}Config")(
        hidden_size=4, num_attention_heads=2, vocab_size=10, max_position_embeddings=ROWS
    )
    made = getattr(module(name), f"{name.capitalize()}Embeddings")(config)
    table = sharing(made.position_embeddings, offset=2)
    theirs = made.position_embeddings(made.position_ids[0])
    assert torch.equal(theirs, table.encode(sequence(ROWS)))


def position_functions() -> Iterator[Callable[..., Tensor]]:
    """Every create_position_ids_from_input_ids of the library, as (ids, padding_idx, cached)."""
    models = Path(transformers.__file__).parent / "models"
    name = "create_position_ids_from_input_ids"
    for path in sorted(models.glob("*/modeling_*.py")):
        text = path.read_text("utf-8")
        if f"def {name}" not in text:
            continue
        made = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for owner in [
            made,
            *(getattr(made, x, None) for x in re.findall(r"^class (\w+)", text, re.M)),
        ]:
            found = vars(owner).get(name) if owner is not None else None
            if isinstance(found, staticmethod):
                yield found.__func__
            elif found is not None:
                yield found if owner is made else found.__get__(SimpleNamespace(padding_idx=PAD))


def every_rule_of_roberta() -> None:
    """Real tokens are counted from padding_idx + 1, padding stays at padding_idx."""
    expected = from_padding_mask(MASKS) + PAD + 1
    count = 0
    for made in position_functions():
        count += 1
        assert torch.equal(made(IDS, PAD), expected)
    assert count >= 29


def table_checks() -> list[Check]:
    """Every case of a table of one coordinate."""
    offset = {"bart": "Bart", "mbart": "MBart", "mvp": "Mvp", "plbart": "PLBart", "trocr": "TrOCR",
              "pp_formulanet": "PPFormulaNet"}  # fmt: skip
    plain = {"blenderbot": "Blenderbot", "blenderbot_small": "BlenderbotSmall",
             "bigbird_pegasus": "BigBirdPegasus", "led": "LED"}  # fmt: skip
    suffix = "LearnedPositionalEmbedding"
    counted = "at `from_padding_mask`"
    return [
        *(
            Check(name, "`Learned(n, d, offset=2)`",
                  lambda x=name, y=cls: counts_storage(x, y + suffix, 2, by_shape=False))
            for name, cls in offset.items()
        ),
        *(
            Check(name, "`Learned(n, d)`",
                  lambda x=name, y=cls: counts_storage(x, y + suffix, 0, by_shape=True))
            for name, cls in plain.items()
        ),
        *(
            Check(name, f"`Learned(n, d, offset=2)` {counted}",
                  lambda x=name, y=cls: counts_real_tokens(x, y + suffix))
            for name, cls in (("opt", "OPT"), ("biogpt", "BioGpt"))
        ),
        Check("prophetnet", f"`Learned(n, d, padding_idx=0)` {counted}",
              prophetnet_counts_from_one),
        Check("prophetnet, past its table", "an error", prophetnet_clamps,
              "theirs: a position past the table reads the last row (modeling_prophetnet.py:378)"),
        Check("whisper_decoder", "`Learned(n, d)`", whisper_decoder),
        *(
            Check(name, "`Learned(n, d, offset=2)`", lambda x=name: two_rows_that_nothing_reads(x))
            for name in ("mra", "yoso", "nystromformer")
        ),
        Check("create_position_ids_from_input_ids, of every class that has it",
              f"`Learned(n, d, padding_idx=1)` {counted}", every_rule_of_roberta),
    ]  # fmt: skip


# Tables of several coordinates --------------------------------------------------------------------

DETR = {"detr": "Detr", "conditional_detr": "ConditionalDetr", "deformable_detr": "DeformableDetr",
        "maskformer": "MaskFormerDetr"}  # fmt: skip


def detr(name: str) -> None:
    made = getattr(module(name), f"{DETR[name]}LearnedPositionEmbedding")(DIM)
    table = AxialLearned((50, 50), (DIM, DIM), axis_order=(1, 0))
    table.table0, table.table1 = made.row_embeddings.weight, made.column_embeddings.weight
    theirs = made(torch.Size((1, DIM, 3, 4)), "cpu", torch.float32)
    assert torch.equal(theirs[0].flatten(1).T, table.encode(grid(3, 4)))


def reformer() -> None:
    config = SimpleNamespace(
        axial_pos_shape=(4, 6), axial_pos_embds_dim=(2, 3), hidden_dropout_prob=0.0, hidden_size=5,
        attn_layers=["local"], local_attn_chunk_length=4, lsh_attn_chunk_length=4,
    )  # fmt: skip
    made = module("reformer").AxialPositionEmbeddings(config).eval()
    table = AxialLearned((4, 6), (2, 3))
    for axis, weight in enumerate(made.weights):
        weight.data.copy_(random(*weight.shape, seed=axis, dtype=torch.float32))
        table.tables[axis].data.copy_(weight.reshape(table.tables[axis].shape))
    for at in (sequence(24)[None], torch.tensor([[0, 7, 13]])):
        assert torch.equal(made(at), table.encode(unravel(at, (4, 6))))


def axial_table_checks() -> list[Check]:
    """Every case of a table of several coordinates."""
    return [
        *(
            Check(name, "`AxialLearned((50, 50), (d, d), axis_order=(1, 0))` at `grid`",
                  lambda x=name: detr(x))
            for name in DETR
        ),
        Check("reformer_axial", "`AxialLearned(shape, dims)` at `unravel`", reformer),
    ]  # fmt: skip


# Tables of cells at another size ------------------------------------------------------------------

SIDE, PATCH = 5, 4
GRIDS = ((7, 3), (4, 4), (9, 11), (2, 5))

# name -> class; a table has so many class tokens before its cells
WITH_CLASS = {
    "beit": "BeitEmbeddings", "blip": "BlipVisionEmbeddings", "blip_2": "Blip2VisionEmbeddings",
    "clip": "CLIPVisionEmbeddings", "altclip": "AltCLIPVisionEmbeddings",
    "bridgetower": "BridgeTowerVisionEmbeddings", "chinese_clip": "ChineseCLIPVisionEmbeddings",
    "clipseg": "CLIPSegVisionEmbeddings", "data2vec": "Data2VecVisionEmbeddings",
    "dinov2": "Dinov2Embeddings", "donut": "DonutSwinEmbeddings",
    "maskformer": "MaskFormerSwinEmbeddings", "swinv2": "Swinv2Embeddings",
    "dinov2_with_registers": "Dinov2WithRegistersEmbeddings",
    "flava": "FlavaImageEmbeddings", "git": "GitVisionEmbeddings",
    "instructblip": "InstructBlipVisionEmbeddings",
    "instructblipvideo": "InstructBlipVideoVisionEmbeddings",
    "internvl": "InternVLVisionEmbeddings", "kosmos2": "Kosmos2VisionEmbeddings",
    "metaclip_2": "MetaClip2VisionEmbeddings", "mlcd": "MLCDVisionEmbeddings",
    "owlvit": "OwlViTVisionEmbeddings", "owlv2": "Owlv2VisionEmbeddings",
    "qianfan_ocr": "QianfanOCRVisionEmbeddings", "rf_detr": "RfDetrDinov2Embeddings",
    "tipsv2": "Tipsv2VisionEmbeddings", "unlimited_ocr": "UnlimitedOcrVisionEmbeddings",
    "vit": "ViTEmbeddings", "vit_mae": "ViTMAEEmbeddings", "vit_msn": "ViTMSNEmbeddings",
    "vivit": "VivitEmbeddings", "x_clip": "XCLIPVisionEmbeddings",
}  # fmt: skip
CELLS_ALONE = {
    "granite_docling": "GraniteDoclingVisionEmbeddings",
    "groupvit": "GroupViTVisionEmbeddings", "ijepa": "IJepaEmbeddings",
    "janus": "JanusVisionEmbeddings",
    "phi4_multimodal": "Phi4MultimodalVisionEmbeddings", "siglip": "SiglipVisionEmbeddings",
    "step3p7": "Step3p7VisionEmbeddings", "swin": "SwinEmbeddings",
    "videoprism": "VideoPrismSpatialEmbeddings",
}  # fmt: skip
TOKENS: dict[str, tuple[str, int]] = {
    **{name: (cls, 1) for name, cls in WITH_CLASS.items()},
    **{name: (cls, 0) for name, cls in CELLS_ALONE.items()},
    "deit": ("DeiTEmbeddings", 2),
    "pixio": ("PixioEmbeddings", 8),
}
FOLDER = {"data2vec": "data2vec.modeling_data2vec_vision", "donut": "donut.modeling_donut_swin",
          "maskformer": "maskformer.modeling_maskformer_swin"}  # fmt: skip
PAIR = ("videoprism", "vivit", "internvl", "qianfan_ocr")
A_PARAMETER = ("blip", "blip_2", "instructblip", "instructblipvideo")
SMOOTH: dict[str, Any] = {"antialias": True}
KERNELS: dict[str, dict[str, Any]] = {
    "dinov2_with_registers": SMOOTH, "rf_detr": SMOOTH, "unlimited_ocr": SMOOTH,
    "step3p7": {"kernel": "bilinear"},
    "tipsv2": {"kernel": "bilinear", **SMOOTH}, "videoprism": {"kernel": "bilinear", **SMOOTH},
    "siglip2": {"kernel": "bilinear", **SMOOTH},
}  # fmt: skip


def resized(name: str) -> None:
    cls, num_prefix = TOKENS[name]
    folder = FOLDER.get(name, f"{name}.modeling_{name}")
    owner = getattr(importlib.import_module(f"transformers.models.{folder}"), cls)
    table = random(num_prefix + SIDE * SIDE, DIM, dtype=torch.float32)
    size = (PATCH, PATCH) if name in PAIR else PATCH
    bare = SimpleNamespace(
        position_embeddings=table[None], patch_size=size, n_cls_tokens=num_prefix, training=False,
        position_embedding=table[None] if name in A_PARAMETER else SimpleNamespace(weight=table),
        patch_embeddings=SimpleNamespace(patch_size=(PATCH, PATCH), num_patches=0),
        config=SimpleNamespace(patch_size=PATCH),
    )  # fmt: skip
    for height, width in GRIDS:
        embedded = torch.zeros(1, num_prefix + height * width, DIM)
        made = owner.interpolate_pos_encoding(bare, embedded, height * PATCH, width * PATCH)
        assert_resized(table, (height, width), made[0], name, num_prefix)


def assert_resized(
    table: Tensor, size: tuple[int, int], theirs: Tensor, name: str, num_prefix: int = 0
) -> None:
    """Theirs sum up to 16 products in float32; ours are float64, rounded once."""
    ours = resize_grid(table, size, num_prefix=num_prefix, **KERNELS.get(name, {}))
    assert torch.equal(theirs[:num_prefix], ours[:num_prefix])
    assert_roundings(theirs, ours.double(), 8)


def siglip2() -> None:
    table = random(SIDE * SIDE, DIM, dtype=torch.float32)
    image = table.reshape(SIDE, SIDE, DIM)
    resize = module("siglip2").Siglip2VisionEmbeddings.resize_positional_embeddings
    made = resize(image, torch.tensor(GRIDS), 99)
    for size, theirs in zip(GRIDS, made, strict=True):
        assert_resized(table, size, theirs[: size[0] * size[1]], "siglip2")


def pvt_does_not_resize() -> None:
    """A table of 4 × 4 cells at 2 × 8 is read in storage order; at 3 × 5 it cannot be reshaped."""
    table = random(1, 16, DIM, dtype=torch.float32)
    bare = SimpleNamespace(config=SimpleNamespace(image_size=224), position_embeddings=table)
    resize = module("pvt").PvtPatchEmbeddings.interpolate_pos_encoding
    assert torch.equal(resize(bare, table, 2, 8), table)
    wanted = resize_grid(table[0], (2, 8), kernel="bilinear")
    assert (wanted - table[0]).abs().max() > 0.1
    try:
        resize(bare, table, 3, 5)
    except RuntimeError:
        return
    raise AssertionError("it resizes now")


def resized_checks() -> list[Check]:
    """Every model that resamples a square table of cells for another image."""
    return [
        *(Check(name, kernel_of(name), lambda x=name: resized(x)) for name in sorted(TOKENS)),
        Check("siglip2", kernel_of("siglip2"), siglip2),
        Check("pvt", '`resize_grid(t, size, kernel="bilinear")`', pvt_does_not_resize,
              "theirs: the table is reshaped to the new grid before it is resampled, so rows and "
              "columns mix, or the shapes do not fit (modeling_pvt.py:78)"),
    ]  # fmt: skip


def kernel_of(name: str) -> str:
    """The call that gives a model's vectors."""
    how = {"num_prefix": TOKENS.get(name, ("", 0))[1], **KERNELS.get(name, {})}
    told = [f"{key}={value!r}".replace("'", '"') for key, value in how.items() if value]
    return f"`resize_grid({', '.join(['t, size', *told])})`"
