"""Biases added to attention logits."""

from posenc.bias.alibi import Alibi
from posenc.bias.swin import SwinBias
from posenc.bias.t5 import T5Bias

__all__ = ["Alibi", "SwinBias", "T5Bias"]
