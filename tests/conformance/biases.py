"""Biases of transformers' models: ALiBi, buckets of distance, tables of windows.

Each model's own module is run with random weights, and so is what its config is read as.
"""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.check import Check
from conformance.theirs import attends, config_of, filled, heads_of, load, read, refused, tokens
from posenc import Alibi, Scheme, T5Bias, window
from posenc.positions import from_padding_mask, sequence
from support import assert_roundings, random

__all__ = ["alibi_checks", "bucket_checks"]

# --- ALiBi ---------------------------------------------------------------------------------------

HEADS = (*range(1, 21), 32, 40, 71, 112)
PADDING = torch.tensor([[1] * 8, [0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]])


def of_pairs(rows: Tensor) -> Tensor:
    """Biases by key `[..., T]` -> what softmax sees of them, `[..., Q, K]`: less the query's own."""
    return rows[..., None, :] - rows[..., :, None]


def same_alibi(rows: Tensor, ours: Alibi, positions: Tensor, real: Tensor) -> None:
    """`rows [B, H, T]` of theirs; a padded key has any bias, for it is hidden."""
    seen = (real[:, None, :, None] * real[:, None, None, :]).bool().tril()
    their, dense = of_pairs(rows.double()), ours.dense(positions, positions, dtype=torch.float64)
    largest = rows.double().abs().amax(-1)[..., None, None]
    error = (their - dense).abs() * seen
    assert (error <= 8 * 2.0**-23 * largest).all()  # their slopes are powers of a rounded root


def bloom_alibi() -> None:
    theirs = load("bloom")
    for heads in HEADS:
        config = config_of("BloomConfig", hidden_size=heads * 4, n_head=heads, n_layer=1)
        bias: Any = read(config).scheme.bias
        rows = theirs.build_alibi_tensor(PADDING, heads, torch.float32).view(3, heads, 8)
        same_alibi(rows, bias, from_padding_mask(PADDING), PADDING)


def falcon_slopes() -> None:
    theirs = load("falcon")
    for heads in HEADS:
        keys: dict[str, Any] = {"hidden_size": heads * 4, "num_attention_heads": heads}
        config = config_of("FalconConfig", alibi=True, num_hidden_layers=1, **keys)
        bias: Any = read(config).scheme.bias
        rows = theirs.build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float64)
        scaled = -bias.dense(sequence(2), sequence(2), dtype=torch.float64)[0, :, 1, 0]
        assert torch.equal(scaled, rows[:, 0, 1] / 2)  # 1/√4, which they put on the mask


def falcon_rounds_positions() -> None:
    rows = load("falcon").build_alibi_tensor(
        torch.ones(1, 300, dtype=torch.int64), 8, torch.float64
    )
    assert rows[0, 0, 256] == rows[0, 0, 257]  # two tokens at one place
    assert torch.equal(rows[:, 0, :257], Alibi(8).slopes()[:, None] * sequence(257))


def mpt_alibi() -> None:
    theirs = load("mpt")
    for heads, largest in (*((heads, 8) for heads in HEADS), (6, 16), (12, 4)):
        keys: dict[str, Any] = {"d_model": heads * 4, "n_heads": heads, "n_layers": 1}
        config = config_of("MptConfig", attn_config={"alibi_bias_max": largest}, **keys)
        bias: Any = read(config).scheme.bias
        rows = theirs.build_mpt_alibi_tensor(heads, 8, alibi_bias_max=largest).view(1, heads, 8)
        same_alibi(rows, bias, sequence(8), torch.ones(1, 8, dtype=torch.int64))


def mpt_forgets_its_largest_bias() -> None:
    """The last hidden state does not move with alibi_bias_max."""
    seen = []
    for largest in (8, 2):
        keys: dict[str, Any] = {"d_model": 8, "n_heads": 2, "n_layers": 1, "vocab_size": 9}
        config = config_of("MptConfig", attn_config={"alibi_bias_max": largest}, **keys)
        bias: Any = read(config).scheme.bias
        assert bias.slopes()[0] == 2.0 ** (-largest / 2)
        model = filled(load("mpt").MptModel(config))
        seen.append(model(torch.arange(7)[None]).last_hidden_state)
    assert torch.equal(*seen)


def alibi_checks() -> list[Check]:
    return [
        Check("bloom", "`Alibi`", bloom_alibi),
        Check("falcon: slopes", "`Alibi(slope_dtype=bfloat16, scale=head_dim**-0.5)`", falcon_slopes),
        Check("falcon: positions", "the same, whose product is not rounded", falcon_rounds_positions,
              "theirs: positions become bfloat16, so that tokens 256 and 257 stand at one place "
              "(modeling_falcon.py:176)"),
        Check("mpt", "`Alibi(bias_max=alibi_bias_max)`", mpt_alibi),
        Check("mpt: alibi_bias_max", "`Alibi(bias_max=alibi_bias_max)`", mpt_forgets_its_largest_bias,
              "theirs: the model never hands attn_config.alibi_bias_max on and uses 8 "
              "(modeling_mpt.py:320)"),
    ]  # fmt: skip


# --- Buckets of distance -------------------------------------------------------------------------

SIZES = ((32, 128), (32, 20), (64, 256), (320, 800), (512, 2048), (16, 32), (8, 16))
RELATIVE = torch.arange(-300, 301)
ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True)
class Buckets:
    """An attention class of the T5 family: its config, and the sides that it is used on."""

    folder: str
    config: str
    sides: tuple[str, ...] = (ENCODER, DECODER)
    width: str = "d_model"
    blocks: bool = False  # compute_bias is asked for the length of a block alone
    is_read: bool = True


T5: dict[str, Buckets] = {
    "T5Attention": Buckets("t5", "T5Config"),
    "MT5Attention": Buckets("mt5", "MT5Config"),
    "UMT5Attention": Buckets("umt5", "UMT5Config"),
    "LongT5Attention": Buckets("longt5", "LongT5Config"),
    "LongT5LocalAttention": Buckets("longt5", "LongT5Config", (ENCODER,), blocks=True),
    "LongT5TransientGlobalAttention": Buckets("longt5", "LongT5Config", (ENCODER,), blocks=True),
    "Pix2StructTextAttention": Buckets(
        "pix2struct", "Pix2StructTextConfig", (DECODER,), width="hidden_size"
    ),
    "Pop2PianoAttention": Buckets("pop2piano", "Pop2PianoConfig"),
    "SwitchTransformersAttention": Buckets("switch_transformers", "SwitchTransformersConfig"),
    "UdopAttention": Buckets("udop", "UdopConfig", is_read=False),
}


def t5_bias(name: str) -> None:
    kind = T5[name]
    for side in kind.sides:
        for buckets, distance in SIZES:
            t5_bias_of(name, kind, side, buckets, distance)


def t5_bias_of(name: str, kind: Buckets, side: str, buckets: int, distance: int) -> None:
    said = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    sizes = {kind.width: 12, "num_heads": 3, "d_kv": 4, "num_layers": 2}
    config = config_of(kind.config, **sizes, **said)
    if kind.folder != "pix2struct":
        config.is_decoder = side == DECODER
    made = getattr(load(kind.folder), name)(config, has_relative_attention_bias=True)
    theirs = filled(made).float()
    bias: Any = T5Bias(3, num_buckets=buckets, max_distance=distance, bidirectional=side == ENCODER)
    if kind.is_read:
        model = read(config)
        model = model.encoder if side == ENCODER else model
        assert model is not None and model.softmax_scale == 1.0
        assert repr(model.layers[0].bias) == repr(bias)
        assert (model.layers[0] is model.layers[1]) == (kind.folder != "umt5")
    bias.weight.data = theirs.relative_attention_bias.weight.data
    if kind.blocks:
        at = sequence(300)
        assert torch.equal(bias.dense(at[100:200], at), theirs.compute_bias(100)[0])
        return
    values = theirs.compute_bias(2, 602, past_seen_tokens=300)
    assert torch.equal(bias.dense(sequence(2, start=300), sequence(602)), values)


def longt5_local_attention() -> None:
    """Blocks of local_radius + 1 tokens see keys nearer than that: a window."""
    theirs = load("longt5")
    at = sequence(12)
    ids = theirs._make_3block_relative_position_ids(4)
    assert torch.equal(ids, (at[None] - at[4:8, None]).int())
    config = config_of("LongT5Config", d_model=12, num_heads=3, d_kv=4, local_radius=4)
    bias: Any = read(config).encoder.scheme.bias  # pyright: ignore[reportOptionalMemberAccess]
    module = filled(theirs.LongT5LocalAttention(config, has_relative_attention_bias=True))
    module.o = torch.nn.Identity()
    bias.double().weight.data = module.relative_attention_bias.weight.data
    x = tokens(13, 12)
    mask = theirs._get_local_attention_mask(torch.ones(2, 13), 5, x.device)
    q, k, v = (heads_of(part(x), 3) for part in (module.q, module.k, module.v))
    attends(module(x, mask)[0], (q, k, v), scheme=Scheme(bias=bias), scale=1.0, mask=window(5))


def longt5_global_blocks() -> None:
    ids = load("longt5")._make_side_relative_position_ids(torch.ones(1, 12), 4)
    assert torch.equal(ids[0], torch.arange(3) - (torch.arange(12) // 4)[:, None])
    config = config_of("LongT5Config", encoder_attention_type="transient-global")
    refused(config, "the bias of global blocks is not supported")


LAYOUTS = {"layoutlmv2": "LayoutLMv2", "layoutlmv3": "LayoutLMv3"}
LAYOUT_KEYS: dict[str, Any] = {
    "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2,
    "has_relative_attention_bias": True, "has_spatial_attention_bias": True,
}  # fmt: skip


def layout_bias(name: str) -> None:
    config = config_of(f"{LAYOUTS[name]}Config", **LAYOUT_KEYS)
    theirs = filled(getattr(load(name), f"{LAYOUTS[name]}Encoder")(config)).float()
    order = torch.arange(40).expand(2, -1)
    boxes = torch.randint(0, 1000, (2, 40, 4), generator=torch.Generator().manual_seed(1))
    if name == "layoutlmv2":
        values = theirs._calculate_1d_position_embeddings(order)
        values = values + theirs._calculate_2d_position_embeddings(boxes)
    else:
        values = theirs._compute_position_bias(order, boxes)
    bias: Any = read(config).scheme.bias
    parts = (theirs.rel_pos_bias, theirs.rel_pos_x_bias, theirs.rel_pos_y_bias)
    for part, linear in zip(bias.biases, parts, strict=True):
        part.weight.data = linear.weight.data.T
    at = torch.stack((order, boxes[..., 0], boxes[..., 3]), -1)
    assert_roundings(values, bias.dense(at, at, dtype=torch.float64).detach(), 1)


def reading_order() -> Any:
    """The encoder of PP-DocLayout-v2's reading order, whose config has no model_type."""
    folder = "transformers.models.pp_doclayout_v2.configuration_pp_doclayout_v2"
    config = importlib.import_module(folder).PPDocLayoutV2ReadingOrderConfig(**LAYOUT_KEYS)
    return filled(load("pp_doclayout_v2").PPDocLayoutV2ReadingOrderEncoder(config)).float()


def reading_order_reads_text_order() -> None:
    theirs, order = reading_order(), torch.arange(200)[None]
    theirs.has_spatial_attention_bias = False
    bias = T5Bias(3)
    bias.weight.data = theirs.rel_pos_bias.weight.data.T / 8**0.5
    made = theirs._compute_position_bias(order, None)
    assert_roundings(made, bias.dense(order, order, dtype=torch.float64).detach(), 1)


def reading_order_relates_real_boxes() -> None:
    """Twice the boxes, twice the offsets, the same bias: what it reads are ratios."""
    theirs, boxes = reading_order(), torch.tensor([[[8.0, 4, 40, 20], [16, 60, 80, 90]]])
    made = theirs._compute_position_bias(None, boxes)
    assert torch.allclose(theirs._compute_position_bias(None, 2 * boxes), made, atol=1e-4)


def mpnet_bias(buckets: int) -> tuple[Tensor, Tensor]:
    """Theirs and ours, of a config with so many buckets."""
    keys: dict[str, Any] = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
    config = config_of("MPNetConfig", relative_attention_num_buckets=buckets, **keys)
    theirs = filled(load("mpnet").MPNetEncoder(config)).float()
    bias: Any = read(config).scheme.bias
    assert (bias.num_buckets, bias.max_distance) == (buckets, 128)
    bias.weight.data = theirs.relative_attention_bias.weight.data
    at = sequence(301)
    return theirs.compute_position_bias(torch.zeros(1, 301, 12)), bias.dense(at, at)


def mpnet_as_published() -> None:
    assert torch.equal(*mpnet_bias(32))


def mpnet_with_other_buckets() -> None:
    theirs, ours = mpnet_bias(64)
    assert not torch.equal(theirs, ours)
    compute = load("mpnet").MPNetEncoder.compute_position_bias
    assert inspect.signature(compute).parameters["num_buckets"].default == 32


def mpnet_buckets() -> None:
    bucket = load("mpnet").MPNetEncoder.relative_position_bucket
    for buckets, distance in SIZES:
        ours = T5Bias(1, num_buckets=buckets, max_distance=distance).bucket(RELATIVE)
        assert torch.equal(bucket(RELATIVE, buckets, distance), ours)


def wavlm_bias() -> None:
    for buckets, distance in SIZES:
        theirs = filled(
            load("wavlm").WavLMAttention(12, 3, num_buckets=buckets, max_distance=distance)
        ).float()
        bias = T5Bias(3, num_buckets=buckets, max_distance=distance)
        bias.weight.data = theirs.rel_attn_embed.weight.data
        at = sequence(301)
        assert torch.equal(theirs.compute_bias(301, 301), bias.dense(at, at)[0])


def wavlm_gates_its_bias() -> None:
    """Other hidden states, another factor for the bias of a query."""
    config = config_of("WavLMConfig")
    refused(config, "gated by the queries")
    theirs = filled(load("wavlm").WavLMAttention(12, 3))
    x, bias = tokens(4, 12, batch=1), random(3, 4, 4)
    theirs.q_proj.weight.data.zero_()
    made, alike = (theirs(part, position_bias=bias)[1] for part in (x, x.flip(1)))
    assert not torch.allclose(made, alike)


def prophetnet_buckets() -> None:
    compute = load("prophetnet").compute_relative_buckets
    for buckets, distance in SIZES:
        for both in (True, False):
            bias = T5Bias(1, num_buckets=buckets, max_distance=distance, bidirectional=both)
            assert torch.equal(
                compute(buckets, distance, RELATIVE, both).long(), bias.bucket(RELATIVE)
            )


def cpmant_bias(segments: Tensor) -> tuple[Tensor, Tensor]:
    """Theirs and ours, of 301 tokens in the segments."""
    config = config_of("CpmAntConfig", num_attention_heads=3, segment_types=4)
    theirs = filled(load("cpmant").CpmAntSegmentPositionEmbedding(config)).float()
    refused(config, "its buckets depend on segments too")
    at = sequence(301)[None]
    buckets, distance = config.position_bias_num_buckets, config.position_bias_max_distance
    bias = T5Bias(3, num_buckets=buckets, max_distance=distance)
    bias.weight.data = theirs.relative_attention_bias.data[:buckets]
    return theirs(at, at, segments[None], segments[None]), bias.dense(at, at)


def cpmant_within_a_segment() -> None:
    theirs, ours = cpmant_bias(torch.zeros(301, dtype=torch.int64))
    assert torch.equal(theirs, ours)


def cpmant_across_segments() -> None:
    segments = torch.arange(301) // 200
    theirs, ours = cpmant_bias(segments)
    inside = segments[:, None] == segments
    assert torch.equal(theirs[..., inside], ours[..., inside])
    across = theirs[0, 0, :200, 200:]
    assert (across == across[0, 0]).all()  # one number, whatever the distance


def udop_text_order() -> None:
    theirs = filled(load("udop").RelativePositionBias1D(num_heads=3)).float()
    bias, at = T5Bias(3), sequence(301)
    bias.weight.data = theirs.relative_attention_bias.weight.data
    assert torch.equal(theirs(torch.ones(1, 301)), bias.dense(at, at))


def udop_boxes() -> None:
    """Centres 0.004 and 0.012, 0.016: the distances 0.8 and 1.2 of a hundredth are 0 and 1, so no
    whole coordinate of a token says both.
    """
    theirs = load("udop").RelativePositionBiasHorizontal(num_heads=3)
    refused(config_of("UdopConfig"), "biases of two further axes")
    left = torch.tensor([0.004, 0.012, 0.016, 0.020])
    boxes = torch.stack((left, left, left, left), -1)[None]
    assert theirs.prepare_input(None, boxes)[0, 0].tolist() == [0, 0, 1, 1]


def bucket_checks() -> list[Check]:
    return [
        *(Check(name, said_of(kind), lambda name=name: t5_bias(name))
          for name, kind in T5.items()),
        Check("longt5_blocks: local attention", "`T5Bias` and `mask=window(local_radius + 1)`",
              longt5_local_attention),
        Check("longt5_blocks: transient-global", "", longt5_global_blocks,
              "refused: keys that stand for whole blocks have a bias and positions of their own "
              "(modeling_longt5.py:808)"),
        *(Check(name, "`AxesBias` of three `T5Bias`", lambda name=name: layout_bias(name))
          for name in LAYOUTS),
        Check("pp_doclayout_v2: text order", "`T5Bias`, its weight divided by √head_dim",
              reading_order_reads_text_order),
        Check("pp_doclayout_v2: boxes", "", reading_order_relates_real_boxes,
              "refused: sinusoids of the logarithms of real distances over real widths "
              "(modeling_pp_doclayout_v2.py:116)"),
        Check("mpnet: buckets", "`T5Bias`", mpnet_buckets),
        Check("mpnet", "`T5Bias`, one for all layers", mpnet_as_published),
        Check("mpnet: relative_attention_num_buckets", "`T5Bias(num_buckets=…)`",
              mpnet_with_other_buckets,
              "theirs: with other than 32 buckets the table grows, but 32 are used "
              "(modeling_mpnet.py:280)"),
        Check("wavlm", "`T5Bias`, before its gates", wavlm_bias),
        Check("wavlm: gates", "", wavlm_gates_its_bias, "refused: the bias of a query is multiplied "
              "by a function of its hidden state (modeling_wavlm.py:181)"),
        Check("prophetnet: buckets", "`T5Bias`; what stands in a bucket is a projection of hidden "
              "states, which no bias here is", prophetnet_buckets),
        Check("cpmant", "`T5Bias`, within a segment", cpmant_within_a_segment),
        Check("cpmant: segments", "", cpmant_across_segments, "refused: between two segments the "
              "bias is theirs, whatever the distance (modeling_cpmant.py:475)"),
        Check("udop_modules: text order", "`T5Bias`", udop_text_order),
        Check("udop_modules: boxes", "", udop_boxes, "refused: real distances, cut to whole "
              "hundredths, where a bias reads whole coordinates (modeling_udop.py:928)"),
    ]  # fmt: skip


def said_of(kind: Buckets) -> str:
    if not kind.is_read:
        return "`T5Bias`; its config is refused, for boxes"
    return f"`T5Bias`, one for {'each layer' if kind.folder == 'umt5' else 'all layers'}"
