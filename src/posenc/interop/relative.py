"""Vectors of distances from a config: DeBERTa, Transformer-XL's kin, and Shaw's.

What is described are the vectors; their weights are in the checkpoint. Where the layers of a model
share a table, so do the values made here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from posenc.contracts import RelativeKeyValue, Scheme
from posenc.interop.alibi import MAX_HEADS
from posenc.interop.errors import about
from posenc.interop.families import Family
from posenc.interop.keys import Keys
from posenc.interop.layers import num_layers
from posenc.relative import Deberta, Shaw, TransformerXL

__all__ = ["RELATIVE", "Relative", "relative_layers"]

MAX_DISTANCE = 1 << 16

CONVOLUTION = "a convolution over the hidden states adds positions too, which a scheme does not say"
CHUNKS = "queries see chunks of keys, and logits are capped: the model's own business"
BLOCKS = "tokens see their own block of context_size: same_segment(positions // context_size)"
SHARED = "share_att_key: relative.key and relative.query are the layer's own projections"
SEGMENTS = "vectors of segments are added too, which a scheme does not say"
TRANSFORMER_XL = {"hidden_size": "d_model", "num_attention_heads": "n_head",
                  "num_hidden_layers": "n_layer", "head_dim": "d_head"}  # fmt: skip


@dataclass(frozen=True)
class Relative:
    """The vectors of each layer, and the softmax scale where it is not 1/√head_dim."""

    layers: tuple[Scheme, ...]
    softmax_scale: float | None = None


def family(
    kind: str, *notes: str, aliases: Mapping[str, str] | None = None, **options: Any
) -> Family:
    return Family(
        position="relative", options={"kind": kind, **options}, aliases=aliases or {}, notes=notes
    )


RELATIVE: dict[str, Family] = {
    "deberta": family("deberta", table=True, first=True),
    "deberta-v2": family("deberta", table=True),
    "sew-d": family("deberta", CONVOLUTION, always=True),
    "xlnet": family("xlnet", SEGMENTS, aliases=TRANSFORMER_XL),
    "wav2vec2-conformer": family("conformer", CONVOLUTION, typed="relative"),
    "wav2vec2-bert": family("conformer", typed="relative_key"),
    "parakeet_encoder": family("conformer"),
    "nemotron_asr_streaming_encoder": family("conformer"),
    "gemma3n_audio": family(
        "gemma", CHUNKS,
        aliases={"num_attention_heads": "conf_num_attention_heads",
                 "num_hidden_layers": "conf_num_hidden_layers"},
    ),
    "gemma4_audio": family("gemma", CHUNKS),
    "vits": family("vits"),
    **dict.fromkeys(("granite_speech_encoder", "granite_speech_plus_encoder"), family(
        "granite", BLOCKS,
        aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
                 "hidden_size": "hidden_dim", "head_dim": "dim_head",
                 "max_position_embeddings": "max_pos_emb"},
    )),
    "granite_speech5_encoder": family("granite", BLOCKS),
}  # fmt: skip


def relative_layers(keys: Keys, family: Family) -> Relative:
    """The vectors of every layer."""
    with torch.random.fork_rng(devices=[]):  # to read a config draws no random numbers
        return _KINDS[family.options["kind"]](keys, family)


def _deberta(keys: Keys, family: Family) -> Relative:
    """One table for all layers, and projections of each layer's own."""
    count, heads, width = _sizes(keys)
    if not keys.flag("relative_attention", default=family.options.get("always", False)):
        return Relative((Scheme(),) * count)
    if keys.flag("talking_head", default=False):
        keys.fail("talking_head", True, "false: logits that are mixed between heads are not read")
    longest = "max_relative_positions"
    if longest not in keys or keys.integer(longest, low=-1) < 1:
        longest = "max_position_embeddings"
    options: dict[str, Any] = {
        "dim": width,
        "max_distance": keys.integer(longest, high=MAX_DISTANCE),
        "terms": _terms(keys),
    }
    if not family.options.get("first"):
        options["num_buckets"] = _num_buckets(keys)
        if keys.flag("share_att_key", default=False):
            keys.note(SHARED)
    with about("pos_att_type"):
        parts = [Deberta(heads, width // heads, **options) for _ in range(count)]
    norm = nn.Identity() if family.options.get("first") else _norm(keys, width)
    for part in parts:
        part.table, part.norm = parts[0].table, norm
        if family.options.get("first") and part.key is not None:
            part.key = nn.Linear(width, width, bias=False)
    return Relative(tuple(Scheme(relative=part) for part in parts), parts[0].scale)


def _num_buckets(keys: Keys) -> int | None:
    """None where each distance has a vector of its own; the code's default too."""
    if "position_buckets" not in keys:
        return None
    buckets = keys.integer("position_buckets", low=-1, high=MAX_DISTANCE)
    return buckets if buckets > 0 else None


def _terms(keys: Keys) -> tuple[str, ...]:
    """The config's list, or a string with bars in it."""
    said = keys.get("pos_att_type")
    listed = said.lower().split("|") if isinstance(said, str) else said
    if not isinstance(listed, list | tuple) or not all(isinstance(x, str) for x in listed):
        keys.fail("pos_att_type", said, "a list of terms, or terms between bars")
    return tuple(x.strip() for x in listed)


def _norm(keys: Keys, width: int) -> nn.Module:
    """What the table passes before it is projected."""
    said = keys.text("norm_rel_ebd") or "none"
    if "layer_norm" not in [name.strip() for name in said.lower().split("|")]:
        return nn.Identity()
    eps = keys.number("layer_norm_eps", above=0) if "layer_norm_eps" in keys else 1e-7
    return nn.LayerNorm(width, eps=eps)


def _xlnet(keys: Keys, family: Family) -> Relative:
    del family
    count, heads, width = _sizes(keys)
    if keys.flag("bi_data", default=False):
        keys.fail("bi_data", True, "false: half of a batch that is read backwards is not supported")
    keys.text("attn_type", ("bi", "uni"))
    clamp = keys.integer("clamp_len", low=-1, high=MAX_DISTANCE) if "clamp_len" in keys else -1
    head_dim = keys.integer("head_dim") if "head_dim" in keys else width // heads
    return _each(
        count, lambda: TransformerXL(heads, head_dim, dim=width, clamp=clamp if clamp > 0 else None)
    )


def _conformer(keys: Keys, family: Family) -> Relative:
    """Sinusoids that take turns; or, where the config says so, vectors on keys."""
    count, heads, width = _sizes(keys)
    published = family.options.get("typed")
    kind = keys.text("position_embeddings_type") if published else "relative"
    if published and kind is None and "position_embeddings_type" not in keys.raw:
        kind = published
        keys.read.defaults[f"{keys.path}position_embeddings_type"] = published
    keys.get("rotary_embedding_base")  # its class writes it whatever the type
    if kind is None:
        return Relative((Scheme(),) * count)
    if kind == "relative":
        head_dim = keys.integer("head_dim") if "head_dim" in keys else width // heads
        return _each(count, lambda: TransformerXL(heads, head_dim, dim=width, layout="alternating"))
    if kind != "relative_key" or published != "relative_key":
        keys.fail(
            "position_embeddings_type",
            kind,
            "'relative', or 'relative_key' in wav2vec2-bert: 'rotary' turns hidden states before "
            "they are projected, which is no rotation of queries",
        )
    reach = tuple(
        keys.integer(f"{side}_max_position_embeddings", low=0, high=MAX_DISTANCE)
        for side in ("left", "right")
    )
    return _each(
        count, lambda: Shaw(width // heads, max_distance=(reach[0], reach[1]), values=False)
    )


def _gemma(keys: Keys, family: Family) -> Relative:
    del family
    count, heads, width = _sizes(keys)
    return _each(
        count,
        lambda: TransformerXL(heads, width // heads, dim=width, denominator="d-2", biases=False),
    )


def _vits(keys: Keys, family: Family) -> Relative:
    del family
    count, heads, width = _sizes(keys)
    if "window_size" not in keys or keys.integer("window_size", low=0, high=MAX_DISTANCE) == 0:
        return Relative((Scheme(),) * count)
    size = keys.integer("window_size", high=MAX_DISTANCE)
    return _each(count, lambda: Shaw(width // heads, max_distance=size, outside="zero"))


def _granite(keys: Keys, family: Family) -> Relative:
    del family
    count, heads, width = _sizes(keys)
    head_dim = keys.integer("head_dim") if "head_dim" in keys else width // heads
    reach = keys.integer("max_position_embeddings", high=MAX_DISTANCE)
    context = keys.integer("context_size", high=MAX_DISTANCE)
    if context > reach:
        keys.fail("context_size", context, f"at most the {reach} distances that have a vector")
    return _each(count, lambda: Shaw(head_dim, max_distance=reach, values=False))


_KINDS: Mapping[str, Callable[[Keys, Family], Relative]] = {
    "deberta": _deberta,
    "xlnet": _xlnet,
    "conformer": _conformer,
    "gemma": _gemma,
    "vits": _vits,
    "granite": _granite,
}


def _each(count: int, made: Callable[[], RelativeKeyValue]) -> Relative:
    """Vectors of its own for each layer."""
    with about("num_attention_heads"):
        return Relative(tuple(Scheme(relative=made()) for _ in range(count)))


def _sizes(keys: Keys) -> tuple[int, int, int]:
    """Layers, heads, and a width that heads divide."""
    count, heads = num_layers(keys), keys.integer("num_attention_heads", high=MAX_HEADS)
    return count, heads, heads * keys.per_head("hidden_size", heads)
