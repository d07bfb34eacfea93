"""ALiBi as models ship it: BLOOM's slopes, Falcon's, MPT's."""

import torch

from posenc.bias import Alibi
from posenc.contracts import Scheme
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import num_layers

__all__ = ["MAX_HEADS", "alibi_layers"]

MAX_HEADS = 4096


def alibi_layers(keys: Keys, family: Family) -> tuple[Scheme, ...]:
    """One bias, shared by all layers."""
    count = num_layers(keys)
    heads = keys.integer("num_attention_heads", high=MAX_HEADS)
    bias_max = _mpt_bias_max(keys) if family.options.get("mpt") else 8.0
    if family.options.get("falcon"):
        # Falcon adds ALiBi to the scores before it scales them, with slopes in bfloat16
        scale = keys.per_head("hidden_size", heads) ** -0.5
        return (Scheme(bias=Alibi(heads, slope_dtype=torch.bfloat16, scale=scale)),) * count
    with about("num_attention_heads"):
        return (Scheme(bias=Alibi(heads, bias_max=bias_max)),) * count


def _mpt_bias_max(keys: Keys) -> float:
    """MPT can be configured away from ALiBi, and to other slopes than the published ones."""
    section = keys.section("attn_config")
    if section is None:
        return 8.0
    if not section.flag("alibi", default=True):
        section.fail("alibi", False, "true: MPT with learned or rotary positions is not supported")
    if section.flag("rope", default=False):
        section.fail("rope", True, "false next to alibi")
    return section.number("alibi_bias_max", above=0) if "alibi_bias_max" in section else 8.0
