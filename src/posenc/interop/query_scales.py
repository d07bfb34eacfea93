"""Queries that a config scales by their position."""

from posenc.contracts import QueryScale
from posenc.interop.alibi import MAX_HEADS
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.query_scale import LearnedLogScale, LogScale, PowerScale, StepLogScale

__all__ = ["SCALE_KEYS", "query_scale"]

SCALE_KEYS = frozenset({"llama_4_scaling_beta"})


def query_scale(keys: Keys, family: Family, section: Keys | None) -> QueryScale | None:
    """The scale of one layer; `section` is None where the layer does not rotate."""
    rule = family.query_scale
    if rule == "llama4" and section is None:
        return _llama4(keys)
    if rule == "beam" and section is None:
        return PowerScale(2048, 0.1)  # constants of its code, modeling_beam.py:494
    if rule == "mistral" and section is not None and "llama_4_scaling_beta" in section:
        beta = section.number("llama_4_scaling_beta")
        step = section.integer("original_max_position_embeddings")
        return StepLogScale(beta, step, count_from=0)
    if rule == "mistral_large4":
        with about("num_attention_heads"):
            return LearnedLogScale(keys.integer("num_attention_heads", high=MAX_HEADS))
    if rule == "qwen" and keys.flag("use_logn_attn", default=False):
        with about("seq_length"):
            return LogScale(keys.integer("seq_length", low=2))
    return None


def _llama4(keys: Keys) -> StepLogScale | None:
    """Layers without rotation, where attn_temperature_tuning is on (some configs hold 4 for true)."""
    if "attn_temperature_tuning" in keys:
        value = keys.get("attn_temperature_tuning")
        if not isinstance(value, bool | int) or value < 0:
            keys.fail("attn_temperature_tuning", value, "true or false")
        if not value:
            return None
    coefficient = keys.number("attn_scale") if "attn_scale" in keys else 0.1
    step = keys.integer("floor_scale") if "floor_scale" in keys else 8192
    return StepLogScale(coefficient, step)
