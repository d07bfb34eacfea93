"""Sinusoids of transformers, their axes, Fourier features and diffusion times, beside this library.

The model's own module or function runs; none of their formulas is written here. Where it computes
in float64 the values are one float32 rounding from ours, element by element. Where it rounds the
frequency and the angle to float32, an element may be off by what that moves it: see `assert_near`.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from conformance.check import Check
from posenc import AxialSinusoidal, FourierBands, RandomFourier, Sinusoidal
from posenc.positions import centred, from_padding_mask, from_pixel_mask, grid, sequence
from support import random

__all__ = ["axial_checks", "fourier_checks", "sinusoid_checks", "timestep_checks"]

LENGTH, DIM, PAD = 64, 32, 1
CACHED = 3  # tokens that are in the cache already
IDS = torch.tensor([[5, 6, 7, 8, 1, 1], [1, 1, 5, 6, 7, 8], [5, 1, 6, 1, 7, 8]])
REAL_CELLS = torch.tensor([[[1] * 4] * 3, [[1, 1, 0, 0], [1, 1, 0, 0], [0] * 4]])


def module(name: str) -> Any:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def options(**keys: Any) -> Any:
    return SimpleNamespace(**keys)


def assert_near(theirs: Tensor, ours: Tensor, angle: Tensor | float = 0.0) -> None:
    """Within one rounding of the value and, for float32 angles, six of the largest angle.

    A frequency is an exponential of a rounded exponent, the angle its product with a position: at
    most six units of 2⁻²⁴ of it; then the sine is rounded. `angle` is 0 where theirs are float64.
    """
    assert theirs.shape == ours.shape, f"shapes {list(theirs.shape)} and {list(ours.shape)}"
    size = max(1.0, float(theirs.abs().max()))
    bound = 2.0**-24 * (2 + 6 * torch.as_tensor(angle).double()) * size
    error = (theirs.double() - ours).abs()
    assert (error <= bound).all(), f"off by {error.max():.3g}, {bound.max():.3g} allowed"


def assert_encodes(
    encoding: Any, positions: Tensor, theirs: Tensor, *, exact: bool = False
) -> None:
    """`theirs` `[..., T, dim]` is what `encoding` says of `positions`."""
    ours = encoding.encode(positions, dtype=torch.float64).reshape(theirs.shape)
    places = positions.double() + getattr(encoding, "offset", 0)
    places = places if getattr(encoding, "num_axes", 1) == 1 else places.abs().amax(-1)
    assert_near(theirs, ours, 0.0 if exact else places.abs().reshape(*theirs.shape[:-1], 1))


def counted(made: Callable[..., Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Positions, and what a module gives for them: from the start and behind a cache."""
    whole, behind = made(0), made(CACHED)
    return [
        (sequence(whole.shape[-2]), whole),
        (sequence(behind.shape[-2], start=CACHED), behind),
    ]


# Sinusoids of one coordinate ----------------------------------------------------------------------

PLAIN = Sinusoidal(DIM, layout="concatenated")
TENSOR2TENSOR = replace(PLAIN, denominator="d-2")
FAIRSEQ = replace(TENSOR2TENSOR, offset=PAD + 1, zero_padding=True)
WRITTEN = {
    "marian": "Marian", "pegasus": "Pegasus", "autoformer": "Autoformer", "informer": "Informer",
    "time_series_transformer": "TimeSeries", "roformer": "RoFormer",
}  # fmt: skip
PADDED = {
    "m2m_100": "M2M100", "nllb_moe": "NllbMoe", "seamless_m4t": "SeamlessM4T",
    "seamless_m4t_v2": "SeamlessM4Tv2", "kosmos2": "Kosmos2Text", "kosmos2_5": "Kosmos2_5Text",
    "speech_to_text": "Speech2Text", "speecht5": "SpeechT5", "trocr": "TrOCR", "fsmt": "",
    "xglm": "XGLM",
}  # fmt: skip


def class_of(name: str, prefix: str) -> Any:
    return getattr(module(name), f"{prefix}SinusoidalPositionalEmbedding")


def written_in_float64(name: str) -> None:
    for dim in (DIM, DIM + 1):
        made = class_of(name, WRITTEN[name])(LENGTH, dim)
        encoding = replace(PLAIN, dim=dim)
        assert_encodes(encoding, sequence(LENGTH), made.create_weight(), exact=True)
        made.weight.data = made.create_weight()
        for at, rows in counted(lambda start, made=made: made(torch.Size((1, 8)), start)):
            assert_encodes(encoding, at, rows.reshape(8, dim), exact=True)


def counts_from_after_the_padding_row(name: str) -> None:
    for dim in (DIM, DIM + 1):
        cls, encoding = class_of(name, PADDED[name]), replace(FAIRSEQ, dim=dim)
        rows = cls.get_embedding(LENGTH, dim, PAD)
        assert not rows[PAD].any()
        at = sequence(LENGTH - PAD - 1)
        assert_encodes(encoding, at, rows[PAD + 1 :])
        made = cls(LENGTH, dim, PAD)
        if name == "fsmt":
            made.make_weight(LENGTH, dim, PAD)
        if name == "xglm":  # is given positions
            assert_encodes(encoding, at[:8], made(at[None, :8])[0])
            continue
        assert_encodes(encoding, from_padding_mask(IDS != PAD), made(IDS))
        behind = made(IDS[:1, :4], cache_length=CACHED)[0]
        assert_encodes(encoding, sequence(4, start=CACHED), behind)


def musicgen(name: str, prefix: str) -> None:
    for dim in (DIM, DIM + 1):
        made, encoding = class_of(name, prefix)(LENGTH, dim), cosines_first(dim)
        assert_encodes(encoding, sequence(LENGTH), made.weights)
        given = torch.zeros(1, 4, 8) if name == "musicgen" else torch.zeros(1, 8, dim)
        for at, rows in counted(lambda start, made=made, given=given: made(given, start)):
            assert_encodes(encoding, at, rows)


def cosines_first(dim: int) -> Sinusoidal:
    return replace(TENSOR2TENSOR, dim=dim, first="cosine")


def rows(encoding: Any, theirs: Callable[[], Tensor], **how: Any) -> Callable[[], None]:
    """A table whose rows are positions 0, 1, 2, …"""

    def run() -> None:
        made = theirs().reshape(-1, encoding.dim)
        assert len(made) >= 4
        assert_encodes(encoding, sequence(len(made)), made, **how)

    return run


def timesfm(name: str, prefix: str) -> None:
    config = options(min_timescale=1, max_timescale=10_000, hidden_size=DIM)
    made = getattr(module(name), f"{prefix}PositionalEmbedding")(config)
    encoding = replace(TENSOR2TENSOR, real_positions=True)
    assert_encodes(encoding, sequence(8), made(seq_length=8)[0])
    packed = torch.tensor([[0.0, 3.0, -2.0]])
    assert_encodes(encoding, packed, made(position=packed))


def pegasus_x() -> None:
    made = module("pegasus_x").PegasusXSinusoidalPositionalEmbedding(DIM)
    for at, found in counted(lambda start: made(torch.zeros(1, 8, DIM), start)):
        assert_encodes(TENSOR2TENSOR, at, found.reshape(8, DIM))


def speecht5_learns_an_amplitude() -> None:
    made = module("speecht5").SpeechT5ScaledPositionalEncoding(0.0, DIM, LENGTH)
    for alpha in (1.0, 0.75):
        made.alpha.data.fill_(alpha)
        encoding = Sinusoidal(DIM, amplitude=alpha)
        assert_encodes(encoding, sequence(8), made(torch.zeros(1, 8, DIM))[0])


def florence2() -> Tensor:
    vision = options(embed_dim=[DIM], max_temporal_embeddings=LENGTH)
    cls = module("florence2").Florence2VisionPositionalEmbeddingCosine1D
    return cls(options(vision_config=vision))(torch.zeros(1, LENGTH, DIM))


def fills(name: str) -> Tensor:
    out = torch.zeros(LENGTH, DIM)
    made = module(name).create_sinusoidal_embeddings(LENGTH, DIM, out)
    return out if made is None else made


def standardised(name: str, prefix: str, count: int) -> Tensor:
    config = options(positional_encoding_type="sincos", d_model=DIM, num_patches=count)
    cls = getattr(module(name), f"{prefix}PositionalEncoding")
    return cls._init_pe(config, count) if name == "patchtst" else cls._init_pe(config)


def is_standardised_over_the_table(name: str, prefix: str) -> None:
    """(pe − mean) / (10 · std) of the whole table: position 3 of 8 is not position 3 of 64."""
    few, many = (standardised(name, prefix, count) for count in (8, LENGTH))
    assert (few - many[:8]).abs().max() > 0.01
    plain = Sinusoidal(DIM).encode(sequence(LENGTH)).double()
    wanted = (plain - plain.mean()) / (10 * plain.std())
    assert (many.double() - wanted).abs().max() < 1e-5


def bros() -> None:
    """Eight coordinates of a box, differences between boxes: real numbers."""
    config = options(dim_bbox_sinusoid_emb_1d=8, dim_bbox=8)
    boxes = random(2, 3, 3, 8, dtype=torch.float32)
    made = module("bros").BrosPositionalEmbedding2D(config)(boxes)
    encoding = AxialSinusoidal(64, 8, layout="concatenated")
    assert_encodes(encoding, boxes.reshape(-1, 8), made.reshape(-1, 64))


def kimi_counts_frames_after_a_still() -> None:
    cls = module("kimi_k25").Kimi_K25VisionPositionEmbeddings
    made = cls.compute_pos_embed(options(num_frames=4, dim=DIM))
    assert_encodes(replace(PLAIN, zero_padding=True), sequence(5, start=-1), made)


def sinusoid_checks() -> list[Check]:
    """Every case of one coordinate."""
    return [
        *(Check(name, said(PLAIN), lambda x=name: written_in_float64(x)) for name in WRITTEN),
        *(
            Check(name, said(FAIRSEQ), lambda x=name: counts_from_after_the_padding_row(x))
            for name in PADDED
        ),
        *(
            Check(name, said(cosines_first(DIM)), lambda x=name, y=prefix: musicgen(x, y))
            for name, prefix in (("musicgen", "Musicgen"), ("musicgen_melody", "MusicgenMelody"))
        ),
        *(
            Check(name, said(encoding), rows(encoding, theirs, exact=name in IN_FLOAT64))
            for name, (encoding, theirs) in TABLES.items()
        ),
        *(
            Check(name, said(TENSOR2TENSOR, "real_positions=True"),
                  lambda x=name, y=prefix: timesfm(x, y))
            for name, prefix in (("timesfm", "TimesFm"), ("timesfm2_5", "TimesFm2_5"))
        ),
        Check("pegasus_x", said(TENSOR2TENSOR), pegasus_x),
        Check("speecht5_scaled", "`Sinusoidal(d, amplitude=alpha)`, alpha learned by the model",
              speecht5_learns_an_amplitude),
        Check("bros_bbox", '`AxialSinusoidal(d, 8, layout="concatenated")`', bros),
        Check("kimi_k25_time", said(PLAIN, "zero_padding=True", "at frame − 1"),
              kimi_counts_frames_after_a_still),
        *(
            Check(name, "", lambda x=name, y=prefix: is_standardised_over_the_table(x, y),
                  "refused: the table is standardised as a whole, so that a position's vector "
                  f"depends on how many there are (modeling_{name}.py:{line}); such a table is a "
                  "`Learned` with its weights")
            for name, prefix, line in (("patchtst", "PatchTST", 655),
                                       ("patchtsmixer", "PatchTSMixer", 106))
        ),
    ]  # fmt: skip


def said(encoding: Sinusoidal, *more: str) -> str:
    """The options that are not the defaults."""
    plain = Sinusoidal(encoding.dim)
    names = ("denominator", "layout", "first", "amplitude", "offset", "zero_padding")
    told = [
        f"{name}={getattr(encoding, name)!r}"
        for name in names
        if getattr(encoding, name) != getattr(plain, name)
    ]
    written = ", ".join(["d", *told, *(x for x in more if "=" in x)]).replace("'", '"')
    return " ".join([f"`Sinusoidal({written})`", *(x for x in more if "=" not in x)])


TABLES: dict[str, tuple[Sinusoidal, Callable[[], Tensor]]] = {
    "tipsv2": (TENSOR2TENSOR, lambda: module("tipsv2").Tipsv2SinusoidalPositionalEmbedding(
        options(max_position_embeddings=LENGTH, hidden_size=DIM))(sequence(LENGTH))),
    **{
        f"{name}_audio": (TENSOR2TENSOR,
                          lambda x=name: module(x).SinusoidsPositionEmbedding(LENGTH, DIM)(LENGTH))
        for name in ("qwen2_5_omni", "qwen3_asr", "qwen3_omni_moe")
    },
    "canary": (replace(PLAIN, amplitude=1 / math.sqrt(DIM)),
               lambda: module("canary").CanaryPositionalEmbedding(LENGTH, DIM)(sequence(LENGTH))),
    "fun_asr_nano": (replace(TENSOR2TENSOR, offset=1),
                     lambda: module("fun_asr_nano").FunAsrNanoPositionEmbedding(LENGTH, DIM)(
                         torch.zeros(1, 8, DIM))),
    "whisper": (TENSOR2TENSOR, lambda: module("whisper").sinusoids(LENGTH, DIM)),
    "florence2_temporal": (Sinusoidal(DIM), florence2),
    "ctrl": (PLAIN, lambda: module("ctrl").positional_encoding(LENGTH, DIM, torch.float)),
    **{
        f"{name}_create_sinusoidal_positions": (
            PLAIN, lambda x=name: module(x).create_sinusoidal_positions(LENGTH, DIM))
        for name in ("gptj", "codegen", "videoprism")
    },
    **{
        name: (Sinusoidal(DIM), lambda x=name: fills(x))
        for name in ("distilbert", "xlm", "flaubert")
    },
    "videomae": (Sinusoidal(DIM),
                 lambda: module("videomae").get_sinusoid_encoding_table(LENGTH, DIM)),
    "zoedepth": (PLAIN, lambda: module("zoedepth").ZoeDepthPatchTransformerEncoder
                 .positional_encoding_1d(None, 1, LENGTH, DIM)),
}  # fmt: skip
IN_FLOAT64 = ("distilbert", "xlm", "flaubert", "videomae")


# Sinusoids of several coordinates -----------------------------------------------------------------

MAE = AxialSinusoidal(DIM, layout="concatenated")
CELLS = ("aimv2", "d_fine", "deimv2", "granite_docling", "pp_doclayout_v2", "pp_doclayout_v3",
         "pp_doclayout_v4", "rt_detr", "rt_detr_v2", "vit_mae")  # fmt: skip
DETR = {
    "detr": "DetrSinePositionEmbedding",
    "conditional_detr": "ConditionalDetrSinePositionEmbedding",
    "mask2former": "Mask2FormerSinePositionEmbedding",
    "maskformer": "MaskFormerSinePositionEmbedding",
    "oneformer": "OneFormerSinePositionEmbedding",
    "sam2": "Sam2SinePositionEmbedding",
    "sam2_video": "Sam2VideoPositionEmbeddingSine",
    "sam3_tracker_video": "Sam3TrackerVideoPositionEmbeddingSine",
    "edgetam": "EdgeTamSinePositionEmbedding",
    "edgetam_video": "EdgeTamVideoPositionEmbeddingSine",
    "sam3": "Sam3SinePositionEmbedding",
    "sam3_lite_text": "Sam3LiteTextSinePositionEmbedding",
    "deformable_detr": "DeformableDetrSinePositionEmbedding",
}
BOXES = (
    "conditional_detr",
    "dab_detr",
    "grounding_dino",
    "lw_detr",
    "mm_grounding_dino",
    "rf_detr",
)


def cells_of_a_grid(name: str) -> None:
    made = module(name).build_2d_sinusoidal_position_embedding
    assert_encodes(MAE, grid(4, 6), made(4, 6, DIM), exact=True)
    behind = made(4, 6, DIM, cls_token=True)
    assert not behind[0].any()
    assert_encodes(MAE, grid(4, 6), behind[1:], exact=True)
    small = AxialSinusoidal(16, base=100.0, layout="concatenated")
    assert_encodes(small, grid(3, 3), made(3, 3, 16, temperature=100.0), exact=True)


def omdet_is_column_major() -> None:
    cls = module("omdet_turbo").OmDetTurboHybridEncoder
    made = cls.build_2d_sincos_position_embedding(6, 4, DIM)[0]
    columns_first = replace(MAE, axis_order=(1, 0))
    assert_encodes(columns_first, grid(6, 4).flip(-1), made)


def granite_docling_has_columns_first() -> None:
    made = module("granite_docling").GraniteDoclingPositionEmbedding.build(DIM, 4)
    assert_encodes(replace(MAE, axis_order=(1, 0)), grid(4, 4), made, exact=True)


def image_of(theirs: Tensor) -> Tensor:
    """`[B, C, H, W]` -> `[B, H·W, C]`."""
    return theirs.flatten(2).transpose(1, 2)


def assert_real_cells(encoding: Any, positions: Tensor, theirs: Tensor, mask: Tensor) -> None:
    """Cells of padding are read by nobody, and may be divided by nothing."""
    real = mask.flatten(1) == 1
    assert_encodes(encoding, positions[real], image_of(theirs)[real])


def pixels(mask: Tensor, name: str = "") -> Tensor:
    """DETR's coordinates, from 0 to 2π over the real cells."""
    return from_pixel_mask(mask, extent=2 * math.pi, offset=-0.5 if "deformable" in name else 0.0)


def detr(name: str) -> None:
    cls, shape = getattr(module(name), DETR[name]), torch.Size((2, 3, 3, 4))
    whole, mask = torch.ones_like(REAL_CELLS), REAL_CELLS.bool()
    encoding = AxialSinusoidal(16)
    counts, reals = cls(8), cls(8, normalize=True)
    for made, places in ((counts, from_pixel_mask), (reals, lambda x: pixels(x, name))):
        at = (shape, "cpu", torch.float32)
        assert_real_cells(encoding, places(whole), made(*at), whole)
        assert_real_cells(encoding, places(REAL_CELLS), made(*at, mask), REAL_CELLS)


def grounding_dino(name: str, cls: str) -> None:
    config = options(d_model=16, positional_embedding_temperature=20)
    made = getattr(module(name), cls)(config)(torch.zeros(1), REAL_CELLS)
    assert_real_cells(AxialSinusoidal(16, base=20.0), pixels(REAL_CELLS), made, REAL_CELLS)


def dab_detr_has_a_base_for_each_axis() -> None:
    config = options(hidden_size=16, temperature_height=20, temperature_width=30,
                     sine_position_embedding_scale=None)  # fmt: skip
    made = module("dab_detr").DabDetrSinePositionEmbedding(config)(torch.zeros(1), REAL_CELLS)
    encoding = AxialSinusoidal(16, base=(20.0, 30.0))
    assert_real_cells(encoding, pixels(REAL_CELLS), made, REAL_CELLS)


def table_transformer() -> None:
    cls = module("table_transformer").TableTransformerSinePositionEmbedding
    for normalize, places in ((False, from_pixel_mask), (True, pixels)):
        made = cls(8, normalize=normalize)(torch.zeros(1), REAL_CELLS)
        assert_real_cells(AxialSinusoidal(16), places(REAL_CELLS), made, REAL_CELLS)


def boxes_with_y_first(theirs: Callable[[Tensor], Tensor], num_axes: int = 4) -> None:
    """(x, y, w, h), shares of the image; theirs multiply by 2π in float32."""
    boxes = random(2, 3, num_axes, seed=1, dtype=torch.float32).sigmoid()
    order = (1, 0, 2, 3)[:num_axes]
    encoding: Any = (
        AxialSinusoidal(8 * num_axes, num_axes, axis_order=order)
        if num_axes > 1
        else Sinusoidal(8, real_positions=True)
    )
    at = boxes.double() * (2 * math.pi)
    assert_encodes(encoding, at if num_axes > 1 else at[..., 0], theirs(boxes))


def anchors(name: str) -> None:
    made = module(name).encode_sinusoidal_position_embedding
    for num_axes in (4, 2, 1):
        boxes_with_y_first(lambda boxes: made(boxes, 8), num_axes)


def sam3_boxes() -> None:
    made = module("sam3").Sam3SinePositionEmbedding(8, normalize=True)
    boxes_with_y_first(made.encode_boxes)

    def both(points: Tensor) -> Tensor:
        x, y = made.encode_1d_positions(*points.reshape(-1, 2).unbind(-1))
        return torch.cat((y, x), -1).reshape(2, 3, 16)

    boxes_with_y_first(both, 2)


def axial_checks() -> list[Check]:
    """Every case of several coordinates."""
    columns = 'AxialSinusoidal(d, layout="concatenated", axis_order=(1, 0))'
    sine = "GroundingDinoSinePositionEmbedding"
    return [
        *(
            Check(name, '`AxialSinusoidal(d, layout="concatenated")` at `grid`',
                  lambda x=name: cells_of_a_grid(x))
            for name in CELLS
        ),
        Check("omdet_turbo", f"`{columns}`, cells column by column", omdet_is_column_major),
        Check("granite_docling_connector", f"`{columns}` at `grid`",
              granite_docling_has_columns_first),
        *(
            Check(name, "`AxialSinusoidal(d)` at `from_pixel_mask"
                  + ("(m, extent=2π, offset=−½)`" if "deformable" in name else "(m, extent=2π)`"),
                  lambda x=name: detr(x))
            for name in DETR
        ),
        *(
            Check(name, "`AxialSinusoidal(d, base=20)` at `from_pixel_mask`",
                  lambda x=name, y=cls: grounding_dino(x, y))
            for name, cls in (("grounding_dino", sine),
                              ("mm_grounding_dino", f"MM{sine}"))
        ),
        Check("dab_detr", "`AxialSinusoidal(d, base=(20, 30))`", dab_detr_has_a_base_for_each_axis),
        Check("table_transformer", "`AxialSinusoidal(d)` at `from_pixel_mask`", table_transformer),
        *(
            Check(f"encode_{name}", "`AxialSinusoidal(d, 4, axis_order=(1, 0, 2, 3))` at 2π · box",
                  lambda x=name: anchors(x))
            for name in BOXES
        ),
        Check("sam3_boxes", "`AxialSinusoidal(d, 4, axis_order=(1, 0, 2, 3))` at 2π · box",
              sam3_boxes),
    ]  # fmt: skip


# Fourier features ---------------------------------------------------------------------------------

SAM = {"sam": "Sam", "sam_hq": "SamHQ", "sam2": "Sam2", "edgetam": "EdgeTam",
       "sam3_tracker": "Sam3Tracker"}  # fmt: skip


def perceiver() -> None:
    cls = module("perceiver").PerceiverFourierPositionEncoding
    bands, cells = FourierBands(4, (6, 8)), centred(6, 8, ends=True)
    made = cls(num_bands=4, max_resolution=(6, 8))((6, 8), 1, "cpu", torch.float32)[0]
    assert_near(made, bands.encode(cells, dtype=torch.float64), 4 * math.pi)
    line = FourierBands(4, (16,), keep_positions=False, sine_only=True)
    row = centred(16, 2, ends=True)[::2, 0]
    short = cls(num_bands=4, max_resolution=(16,), concat_pos=False, sine_only=True)
    made = short((16,), 1, "cpu", torch.float32)
    assert_near(made, line.encode(row, dtype=torch.float64), 8 * math.pi)


def sam(name: str) -> None:
    made = getattr(module(name), f"{SAM[name]}PositionalEmbedding")(
        options(scale=1.0, num_pos_feats=8, hidden_size=16)
    )
    encoding = RandomFourier(16)
    encoding.frequencies.data = made.positional_embedding.data
    points = random(1, 2, 3, 2, dtype=torch.float32).sigmoid() * 64
    at = (2 * (points / 64) - 1).reshape(-1, 2)
    ours = encoding.encode(at, dtype=torch.float64)
    reach = 2 * math.pi * made.positional_embedding.abs().sum(0).max().item()
    for theirs in (made(points, (64, 64)), made(points / 64)):
        assert_near(theirs.reshape(-1, 16), ours, reach)


def fourier_checks() -> list[Check]:
    """Every case of Fourier features."""
    return [
        Check("perceiver", "`FourierBands(n, (height, width))` at `centred(h, w, ends=True)`",
              perceiver),
        *(Check(name, "`RandomFourier(d)` at 2 · point / size − 1", lambda x=name: sam(x))
          for name in SAM),
    ]  # fmt: skip


# Diffusion times ----------------------------------------------------------------------------------

TIMES = torch.tensor([0.0, 0.25, 0.9])
COSINES = replace(PLAIN, first="cosine", real_positions=True)


def times(encoding: Sinusoidal, theirs: Callable[[Tensor], Tensor], factor: float = 1.0) -> None:
    assert_encodes(encoding, TIMES.double() * factor, theirs(TIMES))


def qwen_counts_thousandths() -> None:
    encoding = replace(TENSOR2TENSOR, real_positions=True)
    times(encoding, module("qwen2_5_omni").SinusPositionEmbedding(DIM), 1000.0)


def vibevoice() -> None:
    config = options(frequency_embedding_size=DIM, diffusion_max_period=10_000)
    times(COSINES, module("vibevoice").VibeVoiceDiffusionHeadSinusoidalEmbedding(config))


def flow_time(name: str, prefix: str) -> None:
    """The features before the network that reads them."""
    config = options(frequency_embedding_size=DIM, max_period=10_000, hidden_size=DIM,
                     hidden_act="silu", rms_norm_eps=1e-5)  # fmt: skip
    made = getattr(module(name), f"{prefix}TimestepEmbedding")(config)
    made.fc1 = made.fc2 = made.norm = nn.Identity()
    made.act_fn = nn.Identity()
    times(COSINES, lambda at: made(at[:, None]))


def pi0_says_periods() -> None:
    config = options(dit_config=options(hidden_size=DIM), min_period=4e-3, max_period=4.0)
    encoding = replace(TENSOR2TENSOR, base=4.0 / 4e-3, real_positions=True)
    made = module("pi0").PI0TimestepEmbeddings(config)
    times(encoding, made, 2 * math.pi / 4e-3)


def timestep_checks() -> list[Check]:
    """Every case of diffusion times."""
    shown = '`Sinusoidal(d, layout="concatenated", first="cosine", real_positions=True)`'
    return [
        Check("qwen2_5_omni_dit", said(TENSOR2TENSOR, "real_positions=True", "at 1000 · t"),
              qwen_counts_thousandths),
        Check("vibevoice", shown, vibevoice),
        *(
            Check(name, shown, lambda x=name, y=prefix: flow_time(x, y))
            for name, prefix in (("pocket_tts", "PocketTTS"),
                                 ("gradium_phonon_tts", "GradiumPhononTTS"))
        ),
        Check("pi0", said(TENSOR2TENSOR, "base=max_period / min_period", "real_positions=True",
                          "at 2π · t / min_period"), pi0_says_periods),
    ]  # fmt: skip
