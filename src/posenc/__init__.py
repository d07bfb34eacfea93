"""posenc: positional encodings for Transformers, on PyTorch.

>>> from posenc import Rope, Scheme, Yarn, attention
>>> scheme = Scheme(rotary=Rope(64, scaling=Yarn(factor=4.0, original_length=2048)))
>>> out = attention(q, k, v, scheme=scheme)           # [B, H, T, 64], causal
"""

from posenc import masks, positions
from posenc.additive import (
    AxialLearned,
    AxialSinusoidal,
    FourierBands,
    Learned,
    RandomFourier,
    Sinusoidal,
    resize_grid,
)
from posenc.attention import KVCache, MultiHeadAttention, attention, elu_plus_one, linear_attention
from posenc.bias import (
    Alibi,
    AxesBias,
    BeitBias,
    Fire,
    Kerple,
    Sandwich,
    SwinBias,
    SwinV2Bias,
    T5Bias,
)
from posenc.contracts import (
    AdditiveEncoding,
    Block,
    LogitBias,
    QueryScale,
    RelativeKeyValue,
    RotaryEncoding,
    RotaryTables,
    Scheme,
    Table,
)
from posenc.frequencies import Frequencies, Spectrum
from posenc.masks import Mask, causal, same_segment, window
from posenc.query_scale import LearnedLogScale, LogScale, PowerScale, StepLogScale
from posenc.relative import Cope, Deberta, Decomposed, Shaw, TransformerXL
from posenc.rotary import (
    AxialRope,
    LearnedScaleRope,
    MixedRope,
    MRope,
    Rope,
    XPos,
    rerotate,
)
from posenc.rotate import rotate, rotate_qk
from posenc.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    NTKByParts,
    Proportional,
    QwenNTK,
    Scaling,
    Yarn,
)
from posenc.sharding import HeadSlice, heads_of_rank

__version__ = "0.1.0"

__all__ = [
    "NTK",
    "AdditiveEncoding",
    "Alibi",
    "AxesBias",
    "AxialLearned",
    "AxialRope",
    "AxialSinusoidal",
    "BeitBias",
    "Block",
    "Cope",
    "Deberta",
    "Decomposed",
    "DynamicNTK",
    "Fire",
    "FourierBands",
    "Frequencies",
    "HeadSlice",
    "KVCache",
    "Kerple",
    "Learned",
    "LearnedLogScale",
    "LearnedScaleRope",
    "Linear",
    "Llama3",
    "LogScale",
    "LogitBias",
    "LongRope",
    "MRope",
    "Mask",
    "MixedRope",
    "MultiHeadAttention",
    "NTKByParts",
    "PowerScale",
    "Proportional",
    "QueryScale",
    "QwenNTK",
    "RandomFourier",
    "RelativeKeyValue",
    "Rope",
    "RotaryEncoding",
    "RotaryTables",
    "Sandwich",
    "Scaling",
    "Scheme",
    "Shaw",
    "Sinusoidal",
    "Spectrum",
    "StepLogScale",
    "SwinBias",
    "SwinV2Bias",
    "T5Bias",
    "Table",
    "TransformerXL",
    "XPos",
    "Yarn",
    "attention",
    "causal",
    "elu_plus_one",
    "heads_of_rank",
    "linear_attention",
    "masks",
    "positions",
    "rerotate",
    "resize_grid",
    "rotate",
    "rotate_qk",
    "same_segment",
    "window",
]
