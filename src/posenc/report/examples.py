"""Ten-line examples that run, and the traps of each encoding and scaling method."""

from posenc.scaling import Scaling

__all__ = ["EXAMPLES", "TRAPS", "scaling_example"]

_HEADS = "q, k, v = (torch.randn(2, 8, 128, 64) for _ in range(3))   # [B, H, T, D]"
_CELLS = "q, k, v = (torch.randn(2, 8, 6 * 8, 64) for _ in range(3))   # [B, H, cells, D]"


def _heads(imports: str, scheme: str, *more: str) -> str:
    return "\n".join(
        ["import torch", f"from posenc import {imports}, Scheme, attention", "", _HEADS,
         f"scheme = {scheme}", "out = attention(q, k, v, scheme=scheme)", *more]
    )  # fmt: skip


def _grid(imports: str, scheme: str) -> str:
    return "\n".join(
        ["import torch", f"from posenc import {imports}, Scheme, attention, positions", "", _CELLS,
         "cells = positions.grid(6, 8)   # (row, column) of each cell", f"scheme = {scheme}",
         "out = attention(q, k, v, scheme=scheme, q_pos=cells, k_pos=cells, mask=None)"]
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
    "t5": _heads(
        "T5Bias", "Scheme(bias=T5Bias(8, bidirectional=False))",
        "out = attention(q, k, v, scheme=scheme, scale=1.0)   # as T5 itself does",
    ),
    "alibi": _heads(
        "Alibi", "Scheme(bias=Alibi(8))",
        "both = Scheme(bias=Alibi(8, symmetric=True))",
        "out = attention(q, k, v, scheme=both, mask=None)   # an encoder",
    ),
    "shaw": _heads("Shaw", "Scheme(relative=Shaw(64, max_distance=16))"),
    "swin": _grid("SwinBias", "Scheme(bias=SwinBias(8, window=(6, 8)))"),
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
        "The weights have to be laid out, so the fused kernel cannot be used.",
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


def scaling_example(name: str, call: Scaling) -> str:
    """How a scaling method is used, whichever it is."""
    dim = 2 * len(getattr(call, "long_factor", ())) or 64
    return "\n".join(
        [
            "import torch",
            "from posenc import Rope, Scheme, attention",
            "from posenc.registry import SCALINGS",
            "",
            f'scaling = SCALINGS["{name}"].build(4.0, 2048)   # factor, original_length',
            f"rope = Rope({dim}, scaling=scaling).at_length(8192)",
            f"q, k, v = (torch.randn(2, 8, 128, {dim}) for _ in range(3))   # [B, H, T, D]",
            "out = attention(q, k, v, scheme=Scheme(rotary=rope))",
        ]
    )
