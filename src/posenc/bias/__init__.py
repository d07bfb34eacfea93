"""Biases added to attention logits."""

from posenc.bias.alibi import Alibi
from posenc.bias.axes import AxesBias
from posenc.bias.beit import BeitBias
from posenc.bias.fire import Fire
from posenc.bias.kerple import Kerple
from posenc.bias.sandwich import Sandwich
from posenc.bias.swin import SwinBias
from posenc.bias.swinv2 import SwinV2Bias
from posenc.bias.t5 import T5Bias

__all__ = [
    "Alibi",
    "AxesBias",
    "BeitBias",
    "Fire",
    "Kerple",
    "Sandwich",
    "SwinBias",
    "SwinV2Bias",
    "T5Bias",
]
