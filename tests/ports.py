"""Models of transformers with posenc in place of their own code for positions: how one is ported.

Weights stay where they are: a table or a bias of posenc is given the model's own parameter. Models
that call attention by name (`config._attn_implementation`) are given `attend` under the name
"posenc"; where attention is written out, a module of a few lines stands in its place. What a config
says (`scheme_from_config`) is what is built.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from posenc import (
    Deberta,
    Learned,
    Mask,
    Scheme,
    Sinusoidal,
    SwinBias,
    attention,
    causal,
    same_segment,
)
from posenc.interop.hf import LearnedPositions, ModelScheme, scheme_from_config
from posenc.positions import from_padding_mask, grid, sequence

__all__ = ["PORTS"]


NOPE = Scheme()


@dataclass(frozen=True)
class Place:
    """What one layer's attention is to be."""

    mask: Mask | None
    scheme: Scheme = NOPE


def seen(mask: Mask | None, real: Tensor | None, q: Tensor) -> Mask | None:
    """The mask of a layer, and no key that is padding (`real` `[B, K]` is False there)."""
    if real is None:
        return mask
    is_real = same_segment(real, real.new_ones(real.shape[0], q.shape[2]))
    return is_real if mask is None else mask & is_real


def attend(
    module: Any, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """What transformers calls as attention: `[B, H, T, D]` heads -> `[B, T, H, D]`."""
    place = module.place
    mask = seen(place.mask, real, q)
    return attention(q, k, v, scheme=place.scheme, mask=mask, scale=scaling).transpose(1, 2), None


def padding_of(*, attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
    """What transformers calls to make a mask: the one of padding, `[B, K]`, as it came."""
    return attention_mask


ALL_ATTENTION_FUNCTIONS.register("posenc", attend)
ALL_MASK_ATTENTION_FUNCTIONS.register("posenc", padding_of)


def by_name(model: Any, layers: Iterable[Any], place: Place) -> None:
    """Let a model call `attend`, and these layers be as `place` says."""
    for part in model.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "posenc"
    for layer in layers:
        layer.place = place


def said_by(model: Any) -> ModelScheme:
    return scheme_from_config(model.config.to_dict())


def table_of(model: Any) -> Learned:
    """The learned table that the config describes; its vectors are the model's."""
    described = said_by(model).additive
    assert isinstance(described, LearnedPositions)
    return described.build()


def heads(x: Tensor, num_heads: int) -> Tensor:
    """`[B, T, C]` -> `[B, H, T, D]`."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


# ALiBi --------------------------------------------------------------------------------------------


class Bloom(nn.Module):
    """BloomAttention; positions count real tokens, as BLOOM's do."""

    def __init__(self, own: Any, scheme: Scheme) -> None:
        super().__init__()
        self.own, self.scheme = own, scheme

    def forward(
        self, x: Tensor, residual: Tensor, attention_mask: Tensor | None,
        layer_past: Any = None, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        q, k, v = self.own._reshape(self.own.query_key_value(x))
        if layer_past is not None:
            k, v = layer_past.update(k, v, self.own.layer_idx)
        at = None if attention_mask is None else from_padding_mask(attention_mask)
        mask = seen(causal, attention_mask, q)
        out = attention(q, k, v, scheme=self.scheme, k_pos=at, mask=mask)
        return self.own.dense(out.transpose(1, 2).flatten(2)) + residual, None


def bloom(model: Any) -> None:
    model.config._attn_implementation = "posenc"
    for block, scheme in zip(model.h, said_by(model).layers, strict=True):
        block.self_attention = Bloom(block.self_attention, scheme)


class Mpt(nn.Module):
    """MptAttention; positions are places in storage, as MPT's are."""

    def __init__(self, own: Any, scheme: Scheme) -> None:
        super().__init__()
        self.own, self.scheme = own, scheme

    def forward(
        self, x: Tensor, attention_mask: Tensor, cache: Any = None, **_: Any
    ) -> tuple[Tensor, None]:
        q, k, v = (heads(part, self.own.n_heads) for part in self.own.Wqkv(x).chunk(3, -1))
        if cache is not None:
            k, v = cache.update(k, v, self.own.layer_idx)
        real = ~attention_mask[:, 0, -1]  # the last query is shown every key but padding
        mask = seen(causal, real, q)
        out = attention(q, k, v, scheme=self.scheme, mask=mask, scale=self.own.softmax_scale)
        return self.own.out_proj(out.transpose(1, 2).flatten(2)), None


def mpt(model: Any) -> None:
    for block, scheme in zip(model.blocks, said_by(model).layers, strict=True):
        block.attn = Mpt(block.attn, scheme)


# T5's bias ----------------------------------------------------------------------------------------


def t5_stack(stack: Any, schemes: tuple[Scheme, ...], mask: Mask | None) -> None:
    """One bias for all layers is the first layer's own (T5); else each layer has one (UMT5)."""
    for block, scheme in zip(stack.block, schemes, strict=True):
        own = block.layer[0].SelfAttention
        if own.has_relative_attention_bias:
            assert scheme.bias is not None
            scheme.bias.weight = own.relative_attention_bias.weight
            own.has_relative_attention_bias = False
        by_name(stack, [own], Place(mask, scheme))
        if stack.is_decoder:
            block.layer[1].EncDecAttention.place = Place(None)


def t5(model: Any) -> None:
    said = said_by(model)
    assert said.encoder is not None
    t5_stack(model.encoder, said.encoder.layers, None)
    t5_stack(model.decoder, said.layers, causal)


# Tables and sinusoids -----------------------------------------------------------------------------


class BertEmbedded(nn.Module):
    """The embeddings of BERT and RoBERTa: words and kinds, then the table at its positions."""

    def __init__(self, own: Any, table: Learned) -> None:
        super().__init__()
        self.own, self.table = own, table
        table.weight = own.position_embeddings.weight

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None,
        cache_length: int = 0, **_: Any,
    ) -> Tensor:  # fmt: skip
        words = self.own.word_embeddings(input_ids) + self.own.token_type_embeddings.weight[0]
        if position_ids is not None:
            positions = position_ids - self.table.offset
        elif self.table.padding_idx is None:
            positions = sequence(input_ids.shape[1], start=cache_length)
        else:
            positions = from_padding_mask(input_ids != self.table.padding_idx)
            positions = torch.where(positions < 0, positions, positions + cache_length)
        return self.own.LayerNorm(self.table(words, positions))


def bert(model: Any) -> None:
    model.embeddings = BertEmbedded(model.embeddings, table_of(model))
    layers = [layer.attention.self for layer in model.encoder.layer]
    by_name(model, layers, Place(causal if model.config.is_decoder else None))


class OptEmbedded(nn.Module):
    """OPTLearnedPositionalEmbedding: positions count real tokens, after two rows."""

    def __init__(self, own: Any, table: Learned) -> None:
        super().__init__()
        self.table = table
        table.weight = own.weight

    def forward(self, attention_mask: Tensor, cache_length: int = 0, **_: Any) -> Tensor:
        return self.table.encode(from_padding_mask(attention_mask.long())[:, cache_length:])


def opt(model: Any) -> None:
    decoder = model.decoder
    decoder.embed_positions = OptEmbedded(decoder.embed_positions, table_of(model))
    by_name(model, [layer.self_attn for layer in decoder.layers], Place(causal))


class WhisperEmbedded(nn.Module):
    """The table of Whisper's encoder, which its checkpoints fill with sinusoids."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.num_embeddings = own.num_embeddings
        self.encoding = Sinusoidal(own.embedding_dim, denominator="d-2", layout="concatenated")

    def forward(self, positions: Tensor) -> Tensor:
        return self.encoding.encode(positions, dtype=torch.get_default_dtype())


def whisper(encoder: Any) -> None:
    encoder.embed_positions = WhisperEmbedded(encoder.embed_positions)
    by_name(encoder, [layer.self_attn for layer in encoder.layers], Place(None))


# Content and position; windows --------------------------------------------------------------------


class Disentangled(nn.Module):
    """DisentangledSelfAttention of DeBERTa-v2, with the one table of all layers."""

    def __init__(self, own: Any, encoder: Any) -> None:
        super().__init__()
        self.own = own
        buckets = own.position_buckets if own.position_buckets > 0 else None
        self.relative = relative = Deberta(
            own.num_attention_heads, own.attention_head_size,
            max_distance=own.max_relative_positions, num_buckets=buckets, terms=own.pos_att_type,
        )  # fmt: skip
        relative.table = encoder.rel_embeddings.weight
        relative.norm = encoder.LayerNorm
        shared = own.share_att_key
        relative.key = own.key_proj if shared else own.pos_key_proj
        relative.query = own.query_proj if shared else own.pos_query_proj

    def forward(self, x: Tensor, attention_mask: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        own, relative = self.own, self.relative
        q, k, v = (
            heads(project(x), own.num_attention_heads)
            for project in (own.query_proj, own.key_proj, own.value_proj)
        )
        real = attention_mask[:, 0].diagonal(dim1=-2, dim2=-1)  # a real token sees itself
        mask = seen(None, real, q)
        out = attention(q, k, v, scheme=Scheme(relative=relative), scale=relative.scale, mask=mask)
        return out.transpose(1, 2).flatten(2), None


def deberta(model: Any) -> None:
    for layer in model.encoder.layer:
        layer.attention.self = Disentangled(layer.attention.self, model.encoder)


class Windowed(nn.Module):
    """SwinAttention: cells of one window, and regions of a window that was shifted."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own
        self.bias = SwinBias(own.num_attention_heads, window=own.relative_position_bias.window_size)
        self.bias.weight = own.relative_position_bias.relative_position_bias_table

    def forward(
        self, x: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        own, cells = self.own, grid(*self.bias.window)
        q, k, v = (
            heads(project(x), own.num_attention_heads)
            for project in (own.q_proj, own.k_proj, own.v_proj)
        )
        mask = None
        if attention_mask is not None:  # [windows, N, N]: a region is named by its first cell
            region = (attention_mask == 0).int().argmax(-1)
            mask = same_segment(region.repeat(len(x) // len(region), 1))
        out = attention(q, k, v, scheme=Scheme(bias=self.bias), k_pos=cells, mask=mask)
        return own.o_proj(out.transpose(1, 2).flatten(2)), None


def swin(model: Any) -> None:
    for stage in model.encoder.layers:
        for block in stage.blocks:
            block.attention = Windowed(block.attention)


PORTS: dict[str, Callable[[Any], None]] = {
    "bloom": bloom, "mpt": mpt, "t5": t5, "umt5": t5, "bert": bert, "roberta": bert, "opt": opt,
    "whisper": whisper, "deberta-v2": deberta, "swin": swin,
}  # fmt: skip
