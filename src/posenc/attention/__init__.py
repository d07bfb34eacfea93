"""Attention under a scheme: a readable definition, PyTorch's fused kernel, and a linear form."""

from posenc.attention.cache import KVCache
from posenc.attention.linear import elu_plus_one, linear_attention
from posenc.attention.module import MultiHeadAttention
from posenc.attention.softmax import AttentionImpl, attention

__all__ = [
    "AttentionImpl",
    "KVCache",
    "MultiHeadAttention",
    "attention",
    "elu_plus_one",
    "linear_attention",
]
