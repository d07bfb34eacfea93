"""posenc: positional encodings for Transformers, on PyTorch.

>>> from posenc import Rope, Scheme, Yarn, attention
>>> scheme = Scheme(rotary=Rope(64, scaling=Yarn(factor=4.0, original_length=2048)))
>>> out = attention(q, k, v, scheme=scheme)           # [B, H, T, 64], causal
"""

from posenc import masks, positions
from posenc.additive import Learned, Sinusoidal
from posenc.attention import KVCache, MultiHeadAttention, attention, elu_plus_one, linear_attention
from posenc.bias import Alibi, SwinBias, T5Bias
from posenc.contracts import (
    AdditiveEncoding,
    LogitBias,
    RelativeKeyValue,
    RotaryEncoding,
    RotaryTables,
    Scheme,
    Table,
)
from posenc.frequencies import Frequencies, Spectrum
from posenc.masks import Mask, causal, same_segment, window
from posenc.relative import Shaw
from posenc.rotary import LearnedScaleRope, Rope, rerotate
from posenc.rotate import rotate, rotate_qk
from posenc.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    NTKByParts,
    Proportional,
    Scaling,
    Yarn,
)

__version__ = "0.1.0"

__all__ = [
    "NTK",
    "AdditiveEncoding",
    "Alibi",
    "DynamicNTK",
    "Frequencies",
    "KVCache",
    "Learned",
    "LearnedScaleRope",
    "Linear",
    "Llama3",
    "LogitBias",
    "LongRope",
    "Mask",
    "MultiHeadAttention",
    "NTKByParts",
    "Proportional",
    "RelativeKeyValue",
    "Rope",
    "RotaryEncoding",
    "RotaryTables",
    "Scaling",
    "Scheme",
    "Shaw",
    "Sinusoidal",
    "Spectrum",
    "SwinBias",
    "T5Bias",
    "Table",
    "Yarn",
    "attention",
    "causal",
    "elu_plus_one",
    "linear_attention",
    "masks",
    "positions",
    "rerotate",
    "rotate",
    "rotate_qk",
    "same_segment",
    "window",
]
