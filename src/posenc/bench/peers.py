"""Other libraries doing the same work, where they are installed. Imported only when asked for."""
# ruff: noqa: PLC0415

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from posenc.bench.work import Side, UnavailableError

__all__ = [
    "PEERS",
    "flex_attention",
    "rotary_embedding_torch",
    "transformers",
    "transformers_tables",
    "x_transformers",
]

PEERS = (
    "transformers",
    "transformers-compiled",
    "rotary-embedding-torch",
    "x-transformers",
    "flex",
)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{name.split('.', maxsplit=1)[0]} is not installed") from error


def _tables(length: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`[1, T, dim]` cosines and sines, each pair's twice, as transformers passes them."""
    angle = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.cat((angle, angle), -1)[None]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def transformers(length: int, dim: int, dtype: torch.dtype, *, compiled: bool = False) -> Side:
    """`apply_rotary_pos_emb` of its Llama, with tables made beforehand."""
    apply = _module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    if compiled:
        apply = torch.compile(apply)
    cos, sin = _tables(length, dim, dtype)
    return lambda q, k: apply(q, k, cos, sin)


def transformers_tables(dim: int) -> Side:
    """The cosines and sines of its Llama: float32 angles, each pair's column twice."""
    module = _module("transformers.models.llama.modeling_llama")
    config = _module("transformers").LlamaConfig(hidden_size=dim, num_attention_heads=1)
    made, like = module.LlamaRotaryEmbedding(config), torch.zeros(1)

    def run(at: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = made(like, at[None])
        return cos[0, :, : dim // 2], sin[0, :, : dim // 2]

    return run


def rotary_embedding_torch(length: int, dim: int, dtype: torch.dtype) -> Side:
    """Its rotation of adjacent pairs, with the angles made beforehand."""
    module = _module("rotary_embedding_torch")
    angle = module.RotaryEmbedding(dim)(torch.arange(length).float()).to(dtype)
    return lambda q, k: (
        module.apply_rotary_emb(angle, q),
        module.apply_rotary_emb(angle, k),
    )


def x_transformers(length: int, dim: int, dtype: torch.dtype) -> Side:
    """Its rotation of adjacent pairs, with the angles made beforehand."""
    module = _module("x_transformers.x_transformers")
    angle = module.RotaryEmbedding(dim).forward_from_seq_len(length)
    freqs = (angle[0] if isinstance(angle, tuple) else angle).to(dtype)
    apply: Callable[..., Tensor] = module.apply_rotary_pos_emb
    return lambda q, k: (apply(q, freqs), apply(k, freqs))


def flex_attention(length: int, score_mod: Callable[..., Tensor]) -> Side:
    """FlexAttention, compiled, with a causal block mask."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    block_mask = create_block_mask(
        lambda b, h, q, k: q >= k, None, None, length, length, device="cpu"
    )
    run = torch.compile(flex)
    return lambda q, k, v: (run(q, k, v, score_mod=score_mod, block_mask=block_mask),)
