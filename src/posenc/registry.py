"""Every encoding and every scaling method that a factor defines, one dict literal each.

The command line, the benchmark, the lab and the tests walk these. `LongRope` and `QwenNTK` are not
among the scalings: no factor makes them, but the lists of one checkpoint and the length in use. They
are listed and shown from `RELATED`, and so is `MRope`, whose positions come of text and images.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from posenc.additive import AxialLearned, AxialSinusoidal, Learned, RandomFourier, Sinusoidal
from posenc.bias import (
    Alibi,
    BeitBias,
    Fire,
    Kerple,
    Sandwich,
    SwinBias,
    SwinV2Bias,
    T5Bias,
)
from posenc.contracts import Scheme
from posenc.masks import Mask, causal
from posenc.positions import centred, grid, with_class_token
from posenc.relative import Cope, Deberta, Decomposed, Shaw, TransformerXL
from posenc.rotary import AxialRope, LearnedScaleRope, MixedRope, Rope, XPos
from posenc.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    NTKByParts,
    Proportional,
    Scaling,
    Yarn,
)

__all__ = [
    "ENCODINGS",
    "RELATED",
    "SCALINGS",
    "Encoding",
    "Method",
    "Related",
    "Shape",
    "encoding",
    "scaling",
]


@dataclass(frozen=True)
class Shape:
    """The model that an encoding is built for."""

    dim: int = 768
    num_heads: int = 12
    length: int = 512  # trained length: size of a table, area of a window

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @property
    def window(self) -> tuple[int, int]:
        """The most nearly square (height, width) whose cells number `length`, height <= width."""
        height = max(n for n in range(1, int(self.length**0.5) + 1) if self.length % n == 0)
        return height, self.length // height


@dataclass(frozen=True)
class Encoding:
    """A registry entry: how to build it, where it acts, where it comes from."""

    name: str
    title: str
    enters: str  # which fields of a Scheme it sets
    source: str
    summary: str
    options: str
    build: Callable[[Shape], Scheme]
    mask: Mask | None = causal
    positions: Callable[[Shape], Tensor] | None = None  # None: 0 … T-1
    has_limit: bool = False  # whether positions past the trained length are an error
    only_full: bool = False  # measured by `posenc compare --budget full` alone


@dataclass(frozen=True)
class Method:
    """A scaling method of Rope."""

    name: str
    title: str
    source: str
    summary: str
    build: Callable[[float, int], Scaling]  # factor, original_length


@dataclass(frozen=True)
class Related:
    """What `posenc list` and `posenc show` know besides, and nothing measures or walks."""

    name: str
    title: str
    enters: str
    source: str
    summary: str
    options: str

    @property
    def is_scaling(self) -> bool:
        """Whether it is a method of Rope that takes more than a factor and a length."""
        return "scaling" in self.enters


ENCODINGS: dict[str, Encoding] = {
    "none": Encoding(
        "none",
        "No encoding (NoPE)",
        "nothing",
        "Haviv 2022, arXiv 2203.16634; Kazemnejad 2023, arXiv 2305.19466",
        "A causal mask alone lets a decoder infer order.",
        "Scheme()",
        lambda shape: Scheme(),
    ),
    "sinusoidal": Encoding(
        "sinusoidal",
        "Sinusoids",
        "additive",
        "Vaswani 2017, arXiv 1706.03762, section 3.5",
        "Sines and cosines of the position added to embeddings; no parameters, no limit.",
        'Sinusoidal(dim, base=10_000.0, denominator="d" | "d-2", '
        'layout="alternating" | "concatenated", first="sine" | "cosine", amplitude=1.0, offset=0, '
        "zero_padding=False, real_positions=False)",
        lambda shape: Scheme(additive=Sinusoidal(shape.dim)),
    ),
    "learned": Encoding(
        "learned",
        "Learned table",
        "additive",
        "Devlin 2018, arXiv 1810.04805; Radford 2019 (GPT-2)",
        "A trained vector per position; nothing exists past the table.",
        "Learned(num_positions, dim, offset=0, padding_idx=None); .resized(n); "
        ".resized_grid(grid, old_grid=None, num_prefix=0, kernel=..., antialias=..., "
        "align_corners=...)",
        lambda shape: Scheme(additive=Learned(shape.length, shape.dim)),
        has_limit=True,
    ),
    "axial-sinusoidal": Encoding(
        "axial-sinusoidal",
        "Axial sinusoids (2-D)",
        "additive",
        "Carion 2020, arXiv 2005.12872, section A.4; He 2021, arXiv 2111.06377",
        "Half of the channels are sinusoids of the row, half of the column; boxes have four axes.",
        'AxialSinusoidal(dim, num_axes=2, base=10_000.0, layout="alternating" | "concatenated", '
        'first="sine" | "cosine", axis_order=(0, 1))',
        lambda shape: Scheme(additive=AxialSinusoidal(shape.dim)),
        mask=None,
        positions=lambda shape: grid(*shape.window),
        only_full=True,
    ),
    "axial-learned": Encoding(
        "axial-learned",
        "Axial learned tables (2-D)",
        "additive",
        "Carion 2020, arXiv 2005.12872; Kitaev 2020, arXiv 2001.04451",
        "A trained vector per row and one per column, side by side or summed.",
        'AxialLearned(sizes, dims, axis_order=(0, 1), combine="concatenated" | "added")',
        lambda shape: Scheme(
            additive=AxialLearned(shape.window, (shape.dim // 2, shape.dim - shape.dim // 2))
        ),
        mask=None,
        positions=lambda shape: grid(*shape.window),
        has_limit=True,
        only_full=True,
    ),
    "fourier": Encoding(
        "fourier",
        "Random Fourier features (2-D)",
        "additive",
        "Tancik 2020, arXiv 2006.10739, section 5; Kirillov 2023 (SAM), arXiv 2304.02643",
        "Sines and cosines of real coordinates at random frequencies that are saved, not trained.",
        "RandomFourier(dim, num_axes=2, scale=1.0, learned=False); FourierBands(num_bands, "
        "resolution, keep_positions=True, sine_only=False)",
        lambda shape: Scheme(additive=RandomFourier(shape.dim)),
        mask=None,
        positions=lambda shape: centred(*shape.window),
        only_full=True,
    ),
    "rope": Encoding(
        "rope",
        "Rotary (RoPE)",
        "rotary",
        "Su 2021, arXiv 2104.09864, section 3.2.2",
        "Queries and keys turn with position; scores depend on distance alone.",
        'Rope(head_dim, base=10_000.0, pairing="half" | "adjacent", rotary_dim=None, scaling=None)',
        lambda shape: Scheme(rotary=Rope(shape.head_dim)),
    ),
    "learned-scale-rope": Encoding(
        "learned-scale-rope",
        "Rotary with a learned position scale",
        "rotary",
        "Su 2021, arXiv 2104.09864, section 3.2.2, at positions scale · p",
        "Rotary at real positions scale · p; the scale gets a gradient. Gaps are fine.",
        "LearnedScaleRope(rope, initial_scale=1.0, blend=None)",
        lambda shape: Scheme(rotary=LearnedScaleRope(Rope(shape.head_dim))),
    ),
    "xpos": Encoding(
        "xpos",
        "xPos",
        "rotary",
        "Sun 2022, arXiv 2212.10554, section 2.1.2",
        "Rotary whose scores also decay with distance, from a fixed origin.",
        "XPos(rope, scale_base=512.0, origin=0, gamma=0.4)",
        lambda shape: Scheme(rotary=XPos(Rope(shape.head_dim))),
    ),
    "axial-rope": Encoding(
        "axial-rope",
        "Axial rotary (2-D)",
        "rotary",
        "Heo 2024, arXiv 2403.13298, section 3.2",
        "Half of the pairs turn with the row, half with the column.",
        'AxialRope(head_dim, base=10_000.0, split=2, pairing="half" | "adjacent", '
        'order="blocks" | "alternating", axis_order=(0, 1), spectrum="shared" | "dealt")',
        lambda shape: Scheme(rotary=AxialRope(shape.head_dim)),
        mask=None,
        positions=lambda shape: grid(*shape.window),
    ),
    "mixed-rope": Encoding(
        "mixed-rope",
        "Mixed rotary (2-D, learned)",
        "rotary",
        "Heo 2024, arXiv 2403.13298, section 3.2",
        "Every pair turns with row and column at two learned speeds: diagonals too.",
        "MixedRope(head_dim, num_heads=None, base=10.0)",
        lambda shape: Scheme(rotary=MixedRope(shape.head_dim)),
        mask=None,
        positions=lambda shape: grid(*shape.window),
    ),
    "t5": Encoding(
        "t5",
        "T5 relative bias",
        "bias",
        "Raffel 2020, arXiv 1910.10683, section 2.1",
        "A learned scalar per head and bucket of distances; the last bucket holds all beyond.",
        "T5Bias(num_heads, num_buckets=32, max_distance=128, bidirectional=True)",
        lambda shape: Scheme(bias=T5Bias(shape.num_heads, bidirectional=False)),
    ),
    "alibi": Encoding(
        "alibi",
        "ALiBi",
        "bias",
        "Press 2022, arXiv 2108.12409, section 3",
        "Logits fall linearly with distance, one fixed slope per head.",
        "Alibi(num_heads, symmetric=False, learned=False, bias_max=8.0, slopes=None, "
        "slope_dtype=None, scale=1.0)",
        lambda shape: Scheme(bias=Alibi(shape.num_heads)),
    ),
    "kerple": Encoding(
        "kerple",
        "KERPLE",
        "bias",
        "Chi 2022, arXiv 2205.09921, section 4",
        "Logits fall with the logarithm (or a power) of distance; two learned numbers a head.",
        'Kerple(num_heads, form="log" | "power", r1=None, r2=None)',
        lambda shape: Scheme(bias=Kerple(shape.num_heads)),
        only_full=True,
    ),
    "sandwich": Encoding(
        "sandwich",
        "Sandwich",
        "bias",
        "Chi 2022, arXiv 2212.10356, section 5",
        "The inner product of two sinusoids as a bias, compressed per head; no parameters.",
        "Sandwich(num_heads, width=128, base=10_000.0)",
        lambda shape: Scheme(bias=Sandwich(shape.num_heads)),
        only_full=True,
    ),
    "fire": Encoding(
        "fire",
        "FIRE",
        "bias",
        "Li 2023, arXiv 2310.04418, section 3",
        "A small MLP of the distance as a share of what the query can see, on a log scale.",
        "Fire(num_heads, width=32, initial_c=0.1, initial_threshold=512.0)",
        lambda shape: Scheme(bias=Fire(shape.num_heads, initial_threshold=shape.length)),
        only_full=True,
    ),
    "shaw": Encoding(
        "shaw",
        "Shaw relative vectors",
        "relative",
        "Shaw 2018, arXiv 1803.02155, eq. 3-6",
        "Learned vectors of the clipped distance on keys and on values.",
        "Shaw(head_dim, max_distance=16 | (past, future), values=True, num_heads=None, "
        'outside="clip" | "zero", key_query=False)',
        lambda shape: Scheme(relative=Shaw(shape.head_dim, max_distance=16)),
    ),
    "transformer-xl": Encoding(
        "transformer-xl",
        "Transformer-XL (and Conformer)",
        "relative",
        "Dai 2019, arXiv 1901.02860, section 3.3",
        "Projected sinusoids of the distance meet the query; learned biases stand in for it.",
        'TransformerXL(num_heads, head_dim, dim=None, layout="concatenated" | "alternating", '
        'denominator="d" | "d-2", clamp=None, biases=True)',
        lambda shape: Scheme(relative=TransformerXL(shape.num_heads, shape.head_dim)),
        only_full=True,
    ),
    "deberta": Encoding(
        "deberta",
        "DeBERTa's disentangled vectors",
        "relative",
        "He 2020, arXiv 2006.03654, section 3.1",
        "Vectors of bucketed distances meet the query, and the key; an encoder's.",
        'Deberta(num_heads, head_dim, max_distance=512, num_buckets=None, terms=("c2p", "p2c"))',
        lambda shape: Scheme(
            relative=Deberta(shape.num_heads, shape.head_dim, max_distance=512, num_buckets=256)
        ),
        mask=None,
        only_full=True,
    ),
    "cope": Encoding(
        "cope",
        "CoPE (contextual)",
        "relative",
        "Golovneva 2024, arXiv 2405.18719, eq. 3-8",
        "Positions count what the query's gates let through, so the context decides the unit.",
        "Cope(head_dim, max_positions=64)",
        lambda shape: Scheme(relative=Cope(shape.head_dim, max_positions=64)),
        only_full=True,
    ),
    "decomposed": Encoding(
        "decomposed",
        "Decomposed 2-D relative vectors (SAM, ViTDet)",
        "relative",
        "Li 2021, arXiv 2112.01526, section 4.1; Li 2022, arXiv 2203.16527",
        "A learned vector per row offset and one per column offset meet the query, unscaled.",
        "Decomposed(head_dim, window=(height, width)); .resized(window)",
        lambda shape: Scheme(relative=Decomposed(shape.head_dim, window=shape.window)),
        mask=None,
        positions=lambda shape: grid(*shape.window),
        has_limit=True,
        only_full=True,
    ),
    "swin": Encoding(
        "swin",
        "Swin 2-D window bias",
        "bias",
        "Liu 2021, arXiv 2103.14030, section 3.2",
        "A learned scalar per head for each (row, column) offset inside a window.",
        "SwinBias(num_heads, window=(height, width), symmetric=False); "
        '.resized(window, kernel="bicubic" | "bilinear")',
        lambda shape: Scheme(bias=SwinBias(shape.num_heads, window=shape.window)),
        mask=None,
        positions=lambda shape: grid(*shape.window),
        has_limit=True,
    ),
    "swinv2": Encoding(
        "swinv2",
        "Swin v2 continuous bias",
        "bias",
        "Liu 2022, arXiv 2111.09883, section 3.3",
        "A small MLP of the (row, column) offset, log-spaced: the window may change.",
        "SwinV2Bias(num_heads, window=(height, width), pretrained_window=None, width=512); "
        ".at_window(window)",
        lambda shape: Scheme(bias=SwinV2Bias(shape.num_heads, window=shape.window)),
        mask=None,
        positions=lambda shape: grid(*shape.window),
        has_limit=True,
        only_full=True,
    ),
    "beit": Encoding(
        "beit",
        "BEiT bias with a class token",
        "bias",
        "Bao 2021, arXiv 2106.08254, released code",
        "Swin's table for the patches and three rows for a class token, at (−1, −1).",
        "BeitBias(num_heads, window=(height, width)); "
        '.resized(window, kernel="bicubic" | "bilinear")',
        lambda shape: Scheme(bias=BeitBias(shape.num_heads, window=shape.window)),
        mask=None,
        positions=lambda shape: with_class_token(grid(*shape.window))[: shape.length],
        has_limit=True,
        only_full=True,
    ),
    "learned+rope": Encoding(
        "learned+rope",
        "Learned table and rotary (a hybrid)",
        "additive, rotary",
        "Devlin 2018, arXiv 1810.04805, and Su 2021, arXiv 2104.09864",
        "Two fields of one Scheme; any other pair works the same way.",
        "Scheme(additive=Learned(...), rotary=Rope(...))",
        lambda shape: Scheme(
            additive=Learned(shape.length, shape.dim), rotary=Rope(shape.head_dim)
        ),
        has_limit=True,
    ),
}

SCALINGS: dict[str, Method] = {
    "linear": Method(
        "linear",
        "Linear (position interpolation)",
        "Chen 2023, arXiv 2306.15595",
        "Every angle divided by the factor.",
        lambda factor, original_length: Linear(factor),
    ),
    "ntk": Method(
        "ntk",
        "NTK-aware",
        "bloc97 2023; arXiv 2309.00071, section 3.1",
        "A larger base: the fastest pair unchanged, the slowest divided by the factor.",
        lambda factor, original_length: NTK(factor),
    ),
    "dynamic-ntk": Method(
        "dynamic-ntk",
        "NTK-aware at the length in use",
        "emozilla 2023; arXiv 2309.00071, appendix B.3",
        "Unscaled up to the trained length; beyond it the base grows with at_length(n).",
        DynamicNTK,
    ),
    "ntk-by-parts": Method(
        "ntk-by-parts",
        "NTK by parts",
        "Peng 2023, arXiv 2309.00071, section 3.2",
        "YaRN's frequencies without its attention factor.",
        NTKByParts,
    ),
    "yarn": Method(
        "yarn",
        "YaRN",
        "Peng 2023, arXiv 2309.00071",
        "Slow pairs interpolated, fast ones kept, logits sharpened by an attention factor.",
        Yarn,
    ),
    "llama3": Method(
        "llama3",
        "Llama 3.1",
        "Dubey 2024, arXiv 2407.21783, released code",
        "Three bands of wavelengths: kept, blended, divided by the factor.",
        Llama3,
    ),
    "proportional": Method(
        "proportional",
        "Proportional (p-RoPE)",
        "Barbero 2024, arXiv 2410.06205",
        "Only the fastest quarter of the pairs turns; the others stand still.",
        lambda factor, original_length: Proportional(0.25, factor),
    ),
}

RELATED: dict[str, Related] = {
    "axes": Related(
        "axes",
        "A bias of each coordinate, summed",
        "bias",
        "Xu 2020, arXiv 2012.14740, section 2.2",
        "Text order and the sides of boxes on a page: a bias for each, one sum.",
        "AxesBias([bias, bias, ...], scale=1.0)",
    ),
    "mrope": Related(
        "mrope",
        "Rotary of several coordinates (M-RoPE)",
        "rotary",
        "Wang 2024, arXiv 2409.12191, section 2.1",
        "The pairs of one Rope, dealt out to time, row and column: text with images and video.",
        'MRope(rope, sections=(16, 24, 24), order="contiguous" | "interleaved" | "alternating")',
    ),
    "longrope": Related(
        "longrope",
        "LongRoPE",
        "rotary, as Rope(scaling=...)",
        "Ding 2024, arXiv 2402.13753",
        "Every pair has its own divisor, found by search: a list up to the trained length, one past.",
        "LongRope(short_factor, long_factor, factor, original_length, attention_factor=None)",
    ),
    "qwen-ntk": Related(
        "qwen-ntk",
        "Qwen 1's dynamic NTK",
        "rotary, as Rope(scaling=...)",
        "Bai 2023, arXiv 2309.16609, section 2.4.3, released code",
        "NTK-aware in steps: the base changes each time the length in use has doubled.",
        "QwenNTK(original_length)",
    ),
}


def encoding(name: str) -> Encoding:
    """The entry of this name, or a ValueError that lists the names."""
    if name not in ENCODINGS:
        raise ValueError(f"no encoding {name!r}; there are {', '.join(ENCODINGS)}")
    return ENCODINGS[name]


def scaling(name: str) -> Method:
    """The scaling method of this name, or a ValueError that lists the names."""
    if name not in SCALINGS:
        raise ValueError(f"no scaling {name!r}; there are {', '.join(SCALINGS)}")
    return SCALINGS[name]
