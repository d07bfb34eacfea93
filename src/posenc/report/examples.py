"""Ten-line examples that run, and the traps of each encoding and scaling method."""

from dataclasses import fields
from typing import Any

from posenc.scaling import Scaling

__all__ = ["EXAMPLES", "TRAPS", "scaling_example"]

_HEADS = "q, k, v = (torch.randn(2, 8, 128, 64) for _ in range(3))   # [B, H, T, D]"
_CELLS = "q, k, v = (torch.randn(2, 8, 6 * 8, 64) for _ in range(3))   # [B, H, cells, D]"


def _heads(imports: str, scheme: str, *more: str) -> str:
    return "\n".join(
        ["import torch", f"from posenc import {imports}, Scheme, attention", "", _HEADS,
         f"scheme = {scheme}", "out = attention(q, k, v, scheme=scheme)", *more]
    )  # fmt: skip


def _image(imports: str, encoding: str, cells: str, *more: str) -> str:
    return "\n".join(
        ["import torch", f"from posenc import {imports}, positions", "",
         "embeddings = torch.randn(2, 6 * 8, 512)   # [B, cells, C]", f"cells = {cells}",
         f"x = {encoding}(embeddings, cells)", *more]
    )  # fmt: skip


def _grid(imports: str, scheme: str, *more: str) -> str:
    return "\n".join(
        ["import torch", f"from posenc import {imports}, Scheme, attention, positions", "", _CELLS,
         "cells = positions.grid(6, 8)   # (row, column) of each cell", f"scheme = {scheme}",
         "out = attention(q, k, v, scheme=scheme, q_pos=cells, k_pos=cells, mask=None)", *more]
    )  # fmt: skip


EXAMPLES: dict[str, str] = {
    "none": "\n".join(
        ["import torch", "from posenc import attention", "", _HEADS,
         "out = attention(q, k, v)   # causal: order is all that the mask tells"]
    ),
    "sinusoidal": "\n".join(
        ["import torch", "from posenc import Sinusoidal", "",
         "embeddings = torch.randn(2, 128, 512)   # [B, T, C]",
         "x = Sinusoidal(512)(embeddings)   # positions 0 … 127",
         "later = torch.arange(10_000, 10_128)",
         "x = Sinusoidal(512)(embeddings, later)   # any integers: there is no table"]
    ),
    "learned": "\n".join(
        ["import torch", "from posenc import Learned", "",
         "embeddings = torch.randn(2, 128, 512)   # [B, T, C]",
         "table = Learned(128, 512)", "x = table(embeddings)",
         "longer = table.resized(256)   # old vectors, linear in between; fine-tune it"]
    ),
    "axial-sinusoidal": _image(
        "AxialSinusoidal", 'AxialSinusoidal(512, layout="concatenated")',
        "positions.grid(6, 8)   # (row, column) of each cell",
        "mask = torch.ones(2, 6, 8, dtype=torch.bool)   # real cells of padded images: DETR",
        "x = AxialSinusoidal(512)(embeddings, positions.from_pixel_mask(mask, extent=6.2832))",
    ),
    "axial-learned": _image(
        "AxialLearned", "AxialLearned((50, 50), (256, 256), axis_order=(1, 0))",
        "positions.grid(6, 8)   # (row, column) of each cell",
    ),
    "fourier": _image(
        "FourierBands, RandomFourier", "RandomFourier(512)",
        "positions.centred(6, 8)   # real (row, column) in [-1, 1]",
        "bands = FourierBands(64, (6, 8)).encode(cells)   # Perceiver: to be concatenated, [48, 258]",
    ),
    "rope": _heads(
        "Rope", "Scheme(rotary=Rope(64, base=10_000.0))",
        "step = attention(q[:, :, -1:], k, v, scheme=scheme)   # decoding: the same positions",
    ),
    "learned-scale-rope": _heads(
        "LearnedScaleRope, Rope", "Scheme(rotary=LearnedScaleRope(Rope(64)))",
        "at = torch.randint(1, 8, (128,)).cumsum(0)   # positions with gaps",
        "out = attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at)",
    ),
    "xpos": _heads("Rope, XPos", "Scheme(rotary=XPos(Rope(64)))"),
    "axial-rope": _grid("AxialRope", "Scheme(rotary=AxialRope(64))"),
    "mixed-rope": _grid("MixedRope", "Scheme(rotary=MixedRope(64))"),
    "mrope": "\n".join(
        ["import torch", "from posenc import MRope, MultiHeadAttention, Rope, Scheme",
         "from posenc.positions import Image, Text, multimodal", "",
         "at = multimodal([Text(4), Image(4, 6), Text(9)])   # [T, 3]: time, row, column",
         "rope = MRope(Rope(64), sections=(8, 12, 12))",
         "layer = MultiHeadAttention(512, 8, scheme=Scheme(rotary=rope))",
         "y = layer(torch.randn(2, len(at), 512), at)   # causal in the order of the text"]
    ),
    "longrope": _heads(
        "LongRope, Rope",
        "Scheme(rotary=Rope(64, scaling=method).at_length(100_000))",
    ).replace(
        "scheme =",
        "method = LongRope((1.0,) * 32, (4.0,) * 32, factor=32.0, original_length=4096)\nscheme =",
    ),
    "qwen-ntk": _heads(
        "QwenNTK, Rope", "Scheme(rotary=Rope(64, scaling=QwenNTK(8192)).at_length(20_000))"
    ),
    "t5": _heads(
        "T5Bias", "Scheme(bias=T5Bias(8, bidirectional=False))",
        "out = attention(q, k, v, scheme=scheme, scale=1.0)   # as T5 itself does",
    ),
    "alibi": _heads(
        "Alibi", "Scheme(bias=Alibi(8))",
        "both = Scheme(bias=Alibi(8, symmetric=True))",
        "out = attention(q, k, v, scheme=both, mask=None)   # an encoder",
    ),
    "kerple": _heads(
        "Kerple", "Scheme(bias=Kerple(8))",
        'power = Scheme(bias=Kerple(8, form="power"))',
        "out = attention(q, k, v, scheme=power)",
    ),
    "sandwich": _heads("Sandwich", "Scheme(bias=Sandwich(8))"),
    "fire": _heads(
        "Fire", "Scheme(bias=Fire(8, initial_threshold=128))",
        "step = attention(q[:, :, -1:], k, v, scheme=scheme)   # positions count from 0",
    ),
    "shaw": _heads("Shaw", "Scheme(relative=Shaw(64, max_distance=16))"),
    "transformer-xl": _heads(
        "TransformerXL", "Scheme(relative=TransformerXL(8, 64))",
        "segment = attention(q[:, :, 64:], k, v, scheme=scheme)   # the first 64 are a memory",
    ),
    "deberta": "\n".join(
        ["import torch", "from posenc import Deberta, Scheme, attention", "", _HEADS,
         "relative = Deberta(8, 64, num_buckets=256, max_distance=512)",
         "scheme = Scheme(relative=relative)",
         "out = attention(q, k, v, scheme=scheme, scale=relative.scale, mask=None)   # an encoder"]
    ),
    "cope": _heads("Cope", "Scheme(relative=Cope(64, max_positions=64))"),
    "decomposed": _grid("Decomposed", "Scheme(relative=Decomposed(64, window=(6, 8)))"),
    "axes": "\n".join(
        ["import torch", "from posenc import AxesBias, Scheme, T5Bias, attention", "", _HEADS,
         "order = torch.arange(128).expand(2, 128)   # of reading",
         "left, bottom = torch.randint(0, 1000, (2, 2, 128))   # of each word's box",
         "at = torch.stack((order, left, bottom), -1)   # [B, T, 3]",
         "boxes = (T5Bias(8, num_buckets=64, max_distance=256) for _ in range(2))",
         "scheme = Scheme(bias=AxesBias([T5Bias(8), *boxes]))",
         "out = attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at, mask=None)"]
    ),
    "swin": _grid("SwinBias", "Scheme(bias=SwinBias(8, window=(6, 8)))"),
    "swinv2": _grid(
        "SwinV2Bias", "Scheme(bias=SwinV2Bias(8, window=(6, 8)))",
        "larger = scheme.bias.at_window((12, 16))   # the same MLP",
    ),
    "beit": "\n".join(
        ["import torch", "from posenc import BeitBias, Scheme, attention, positions", "",
         "q, k, v = (torch.randn(2, 8, 1 + 6 * 8, 64) for _ in range(3))   # a class token first",
         "cells = positions.with_class_token(positions.grid(6, 8))",
         "scheme = Scheme(bias=BeitBias(8, window=(6, 8)))",
         "out = attention(q, k, v, scheme=scheme, q_pos=cells, k_pos=cells, mask=None)"]
    ),
    "learned+rope": _heads(
        "Learned, Rope", "Scheme(additive=Learned(128, 512), rotary=Rope(64))",
        "x = scheme.additive(torch.randn(2, 128, 512))   # embeddings, before the projections",
    ),
}  # fmt: skip

TRAPS: dict[str, tuple[str, ...]] = {
    "none": (
        "Without a causal mask, attention cannot tell order at all.",
        "Reads text a little longer than it was trained on, then fails at once.",
    ),
    "sinusoidal": (
        "Layouts differ between code bases: alternating (the paper) or concatenated (fairseq).",
        "Having no limit is not the same as reading further: it fails soon past the trained length.",
        "Positions made in bfloat16 are wrong past 256; here positions are integers.",
    ),
    "learned": (
        "OPT and BART read row p + 2, RoBERTa row p + 2 with padding: offset=2, padding_idx=1.",
        "RoBERTa's 514 rows hold 512 positions.",
        "A table of image cells needs its grid where that is no square: resized_grid(old_grid=...).",
    ),
    "axial-sinusoidal": (
        "Row or column first, waves in turn or in blocks, from 0 or from 1: models differ in all.",
        "DETR divides counts by the last one plus 1e-6; Deformable DETR subtracts a half first.",
    ),
    "axial-learned": ("DETR puts the column's vector first, Reformer the line's.",),
    "fourier": (
        "The matrix is part of the checkpoint: drawn anew, it means nothing.",
        "SAM's coordinates are (x, y), scaled to [-1, 1] by width and height.",
    ),
    "rope": (
        "Pairing differs between code bases: weights for 'half' read under 'adjacent' are noise.",
        "It turns queries and keys after the heads are split, never embeddings, never values.",
        "Read as it is beyond the trained length it fails; see posenc show yarn.",
    ),
    "learned-scale-rope": (
        "An integer cast of scaled positions cuts the gradient of the scale off; none is made here.",
        "A blend of two rotations is no rotation: norms shrink where they disagree.",
    ),
    "xpos": (
        "Keys and queries need the same fixed origin, or cached decoding differs from a full pass.",
        "Its published reach came with a window; alone it degrades (arXiv 2212.10554).",
    ),
    "axial-rope": (
        "Row or column first, from 0, from 1 or centred, pairs in blocks or in turn: models differ.",
        "One spectrum for each axis, or one dealt out over both (Pixtral): spectrum='dealt'.",
        "Real coordinates are not rounded: centred(h, w) for DINOv3, grid(h, w) for whole cells.",
    ),
    "mixed-rope": (
        "Its base is 10, not 10,000: speeds are learned, and a checkpoint's own count.",
        "Each layer has its own speeds, so tables are not shared between layers.",
        "Cast to bfloat16 its speeds are rounded, and far cells turn by other angles.",
    ),
    "axes": (
        "Each part sees both directions: T5Bias(bidirectional=True), Alibi(symmetric=True).",
        "LayoutLMv3 divides the sum by √head_dim: scale=head_dim ** -0.5; LayoutLMv2 does not.",
        "Boxes are whole numbers from 0 to 1,000, left and bottom edges: (x0, y1).",
    ),
    "mrope": (
        "Which pairs form the sections differs: Qwen2-VL's are contiguous, Qwen3-VL's interleaved.",
        "Coordinates have no order: the mask goes by storage order in MultiHeadAttention.",
    ),
    "qwen-ntk": ("Keys cached under one step do not fit queries of the next: posenc.rerotate.",),
    "t5": (
        "T5 does not divide logits by √d: pass scale=1.0 with its weights.",
        "Bucket edges computed in low precision fall on other distances; here they are integers.",
        "Decoders are bidirectional=False; encoders True.",
    ),
    "alibi": (
        "Slopes of head counts that are no power of two follow the released rule, out of order.",
        "The sign: logits fall with distance. A published example once had it reversed.",
        "It is flat in small models; released ones fail at twice their length (arXiv 2404.12224).",
    ),
    "shaw": (
        "Vectors on keys and on values, not a scalar bias (that is T5's).",
        "With vectors on values the weights have to be laid out: no fused kernel then.",
        "BERT and SpeechT5 count q − k: their tables are these in reverse, weight.flip(0).",
    ),
    "transformer-xl": (
        "Sines before cosines in Transformer-XL and XLNet, in turns in Conformers: layout=.",
        "R is of q_pos − k_pos; a relative shift one row off looks right and is not.",
        "Gemma's audio encoders divide by d − 2 and have no biases.",
    ),
    "deberta": (
        "The softmax scale is 1/√(3·head_dim): pass scale=relative.scale.",
        "The second term reads δ(i, j) in the released code, δ(j, i) in the paper.",
        "Far distances share logarithmic buckets whose edges round up; here they are integers.",
    ),
    "cope": (
        "Hidden keys count nothing: their gates are zero, or decoding differs from a full pass.",
        "The softmax scale acts on q·k alone, not on the position's term.",
        "Positions past max_positions − 1 are all the last one.",
    ),
    "kerple": (
        "It learns logarithms (of a power's r2 a logit); released code clamps r1 and r2 at 0.01.",
        "The power's r2 stays below 2: above it the kernel is not positive definite.",
    ),
    "sandwich": (
        "Its largest value is H · width / (16 h) for head h, not 0 as with ALiBi.",
        "Code that makes its table in bfloat16 loses the decay it is there for.",
    ),
    "fire": (
        "Past its threshold it depends on the query's own position: count positions from 0.",
        "Decoders only: without a causal mask it is an error.",
    ),
    "swinv2": (
        "Offsets are measured by the pretrained window, or a changed window reads elsewhere.",
        "Swin v2 also normalises queries and keys and learns a temperature: the model's business.",
    ),
    "beit": (
        "The three rows of the class token come last: class to patch, patch to class, itself.",
        "Tables of windows with h ≠ w are scrambled by some readers: rows are 2w − 1 wide.",
    ),
    "decomposed": (
        "The terms are not divided by √d, in the paper they are: released weights are as here.",
        "Another image size needs resized(window); released code does it in silence.",
    ),
    "swin": ("Index buffers of released checkpoints are not needed; drop them when loading.",),
    "linear": ("Without fine-tuning it costs more than NTK or YaRN (arXiv 2306.15595).",),
    "ntk": (
        "Give it a factor somewhat larger than the ratio of lengths: it reaches a little less.",
    ),
    "yarn": (
        "The attention factor multiplies cos and sin, so logits by its square: never apply it twice.",
        "Leave the factor at 1 where text is short: extension costs some quality there.",
    ),
    "dynamic-ntk": (
        "Keys cached under one length do not fit queries of another: posenc.rerotate.",
    ),
    "longrope": ("Two lists, short and long: rope.at_length(n) picks; a cache holds one of them.",),
}


def scaling_example(call: Scaling) -> str:
    """How a scaling method is used, whichever it is."""
    names = ("Rope", "Scheme", type(call).__name__)
    at_length = ".at_length(8192)" if hasattr(call, "at_length") else ""
    return "\n".join(
        [
            "import torch",
            f"from posenc import {', '.join(sorted(names))}, attention",
            "",
            f"rope = Rope(64, scaling={_as_called(call)}){at_length}",
            "q, k, v = (torch.randn(2, 8, 128, 64) for _ in range(3))   # [B, H, T, D]",
            "out = attention(q, k, v, scheme=Scheme(rotary=rope))",
        ]
    )


def _as_called(method: Any) -> str:
    """A method by the arguments that it cannot do without."""
    given = [f for f in fields(method) if getattr(method, f.name) != f.default]
    told = ", ".join(f"{f.name}={getattr(method, f.name)!r}" for f in given)
    return f"{type(method).__name__}({told})"
