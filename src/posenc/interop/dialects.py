"""Configs that say it in words of their own, said in the common keys.

Each function gives the config to read instead and the scaling that it implies, or another family
where the config turns out to have no rotation. Nothing is written to the caller's object.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.scaling import DynamicNTK, Linear, QwenNTK, Scaling

__all__ = ["DIALECTS", "Said"]


@dataclass(frozen=True)
class Said:
    """The keys to read, the family to read them as, and the scaling that no key names."""

    keys: Keys
    family: Family
    scaling: Scaling | None = None


def chatglm(keys: Keys, family: Family) -> Said:
    """`rope_ratio`: ChatGLM2 divides positions by it, ChatGLM3 and GLM-4 multiply the base."""
    name = keys.text("_name_or_path") or ""
    ratio = keys.number("rope_ratio", low=1) if "rope_ratio" in keys else 1.0
    if ratio == 1 or "chatglm3" in name or "glm-4" in name:
        return chatglm3(keys, family)
    if "chatglm2" in name:
        return chatglm2(keys, family)
    keys.fail(
        "rope_ratio", ratio,
        "model_type='chatglm2' (which divides positions by it) or 'chatglm3' (which multiplies "
        "the base), passed to scheme_from_config: this config does not say which it is",
    )  # fmt: skip


def chatglm2(keys: Keys, family: Family) -> Said:
    ratio = keys.number("rope_ratio", low=1) if "rope_ratio" in keys else 1.0
    return Said(keys, _original_rope(keys, family), Linear(ratio) if ratio != 1 else None)


def chatglm3(keys: Keys, family: Family) -> Said:
    ratio = keys.number("rope_ratio", low=1) if "rope_ratio" in keys else 1.0
    base = (family.theta or 1.0) * ratio
    if "rope_ratio" in keys:
        if "rope_theta" in keys and keys.number("rope_theta") != base:
            keys.disagree({"rope_ratio": ratio, "rope_theta": keys.get("rope_theta")})
        keys = _with(keys, rope_theta=base)
    return Said(keys, _original_rope(keys, family))


def _original_rope(keys: Keys, family: Family) -> Family:
    """`original_rope: false` (CogAgent) pairs halves."""
    adjacent = keys.flag("original_rope", default=True)
    return family if adjacent else replace(family, pairing="half")


def qwen(keys: Keys, family: Family) -> Said:
    """Qwen 1: a base that grows with the length."""
    if not keys.flag("use_dynamic_ntk", default=False):
        return Said(keys, family)
    return Said(keys, family, QwenNTK(keys.integer("seq_length", low=2)))


def internlm(keys: Keys, family: Family) -> Said:
    """InternLM 1 keeps base and method in an object `rotary`."""
    rotary = keys.section("rotary")
    if rotary is None:
        return Said(keys, family)
    kind = rotary.text("type", ("origin", "dynamic"))
    if "base" in rotary:
        keys = _with(keys, rope_theta=rotary.number("base", above=0))
    if kind != "dynamic":
        return Said(keys, family)
    factor = rotary.number("scaling_factor", low=1) if "scaling_factor" in rotary else 1.0
    return Said(keys, family, DynamicNTK(factor, keys.integer("max_position_embeddings", low=2)))


def baichuan(keys: Keys, family: Family) -> Said:
    """7B rotates, 13B uses ALiBi, and no key says so: the published code differs by size.

    Every reader (vLLM, llama.cpp, the authors' own int8 code) goes by hidden_size; other sizes
    were never published under this name.
    """
    hidden = keys.integer("hidden_size")
    if hidden == 4096:
        return Said(keys, family)
    if hidden == 5120:
        return Said(keys, replace(family, position="alibi"))
    keys.fail("hidden_size", hidden, "4096 (Baichuan 7B, which rotates) or 5120 (13B, ALiBi)")


def falcon(keys: Keys, family: Family) -> Said:
    """Falcon RW has ALiBi, added before the scale 1/√d; the others rotate."""
    if keys.flag("alibi", default=False):
        for idle in ("rope_parameters", "rope_scaling", "rope_theta"):  # its class writes them too
            keys.get(idle)
        return Said(keys, replace(family, position="alibi", options={"falcon": True}))
    return Said(keys, family)


def dbrx(keys: Keys, family: Family) -> Said:
    """The base is in `attn_config`, where transformers 5.24 does not look (modeling_dbrx.py:73)."""
    section = keys.section("attn_config")
    if section is None or "rope_theta" not in section:
        return Said(keys, family)
    base = section.number("rope_theta", above=0)
    if "rope_theta" in keys and keys.number("rope_theta") != base:
        keys.disagree({"rope_theta": keys.get("rope_theta"), "attn_config.rope_theta": base})
    return Said(_with(keys, rope_theta=base), family)


def esm(keys: Keys, family: Family) -> Said:
    """ESM-2 rotates; ESM-1 has RoBERTa's learned table."""
    if keys.text("position_embedding_type") == "rotary":
        return Said(keys, family)
    return Said(keys, Family(position="learned", options={"padding": True}))


def _with(keys: Keys, **changes: Any) -> Keys:
    return replace(keys, raw={**keys.raw, **changes})


DIALECTS: Mapping[str, Callable[[Keys, Family], Said]] = {
    "chatglm": chatglm,
    "chatglm2": chatglm2,
    "chatglm3": chatglm3,
    "qwen": qwen,
    "internlm": internlm,
    "baichuan": baichuan,
    "falcon": falcon,
    "dbrx": dbrx,
    "esm": esm,
}
