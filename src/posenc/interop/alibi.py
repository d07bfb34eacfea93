"""ALiBi as models ship it: BLOOM's slopes, Falcon's, MPT's."""

import math

import torch
from torch import Tensor

from posenc.bias import Alibi
from posenc.contracts import Scheme
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import num_layers

__all__ = ["MAX_HEADS", "FalconAlibi", "alibi_layers"]

MAX_HEADS = 4096


class FalconAlibi(Alibi):
    """Falcon adds ALiBi to the scores before it scales them, and rounds its slopes to bfloat16.

    >>> FalconAlibi(8, head_dim=64).slopes()[0] * 8 == Alibi(8).slopes()[0]
    tensor(True)
    """

    def __init__(self, num_heads: int, *, head_dim: int) -> None:
        super().__init__(num_heads)
        self.head_dim = head_dim

    def slopes(self, device: torch.device | None = None) -> Tensor:
        """`[H]`, float64."""
        rounded = super().slopes(device).to(torch.bfloat16).double()
        return rounded / math.sqrt(self.head_dim)

    def extra_repr(self) -> str:
        return f"{self.num_heads}, head_dim={self.head_dim}"


def alibi_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """One bias, shared by all layers."""
    count = num_layers(keys)
    heads = keys.integer("num_attention_heads", high=MAX_HEADS)
    if family.options.get("mpt"):
        _check_mpt(keys)
    if family.options.get("falcon"):
        hidden = keys.integer("hidden_size")
        if hidden % heads:
            keys.fail("hidden_size", hidden, f"a multiple of num_attention_heads = {heads}")
        return (Scheme(bias=FalconAlibi(heads, head_dim=hidden // heads)),) * count
    with about("num_attention_heads"):
        return (Scheme(bias=Alibi(heads)),) * count


def _check_mpt(keys: Keys) -> None:
    """MPT can be configured away from ALiBi as published."""
    section = keys.section("attn_config")
    if section is None:
        return
    if not section.flag("alibi", default=True):
        section.fail("alibi", False, "true: MPT with learned or rotary positions is not supported")
    if section.flag("rope", default=False):
        section.fail("rope", True, "false next to alibi")
    if "alibi_bias_max" in section and section.number("alibi_bias_max") != 8:
        section.fail("alibi_bias_max", section.get("alibi_bias_max"), "8, of which slopes are made")
