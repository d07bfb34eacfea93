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
    "flash_attention",
    "flex_attention",
    "liger",
    "rotary_embedding_torch",
    "torchtune",
    "transformers",
    "transformers_tables",
    "x_transformers",
]

PEERS = (
    "transformers",
    "transformers-compiled",
    "rotary-embedding-torch",
    "x-transformers",
    "torchtune",
    "liger",
    "flash-attn",
    "flex",
)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UnavailableError(f"{name.split('.', maxsplit=1)[0]} is not installed") from error


def _angles(positions: Tensor, dim: int) -> Tensor:
    """`[B|1, T, dim / 2]` in float32, as these libraries make them."""
    speeds = 10_000.0 ** (-torch.arange(0, dim, 2, device=positions.device) / dim)
    return (positions if positions.ndim == 2 else positions[None])[..., None] * speeds


def _doubled(
    positions: Tensor, dim: int, dtype: torch.dtype, pairing: str = "half"
) -> tuple[Tensor, Tensor]:
    """Cosines and sines with each pair's column twice, `[B|1, T, dim]`."""
    angle = _angles(positions, dim)
    adjacent = pairing == "adjacent"
    angle = angle.repeat_interleave(2, -1) if adjacent else torch.cat((angle, angle), -1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def transformers(
    positions: Tensor,
    dim: int,
    dtype: torch.dtype,
    *,
    pairing: str = "half",
    compiled: bool = False,
) -> Side:
    """`apply_rotary_pos_emb` with tables made beforehand: Llama's, or Cohere's of adjacent pairs.

    `dim` channels turn: of heads that are wider, GPT-NeoX's turns the first ones.
    """
    name = "cohere" if pairing == "adjacent" else "llama"
    whole = _module(f"transformers.models.{name}.modeling_{name}").apply_rotary_pos_emb
    partly = _module("transformers.models.gpt_neox.modeling_gpt_neox").apply_rotary_pos_emb
    if compiled:
        whole, partly = torch.compile(whole), torch.compile(partly)
    cos, sin = _doubled(positions, dim, dtype, pairing)
    return lambda q, k: (whole if q.shape[-1] == dim else partly)(q, k, cos, sin)


def transformers_tables(dim: int) -> Side:
    """The cosines and sines of its Llama: float32 angles, each pair's column twice."""
    module = _module("transformers.models.llama.modeling_llama")
    config = _module("transformers").LlamaConfig(hidden_size=dim, num_attention_heads=1)
    made, like = module.LlamaRotaryEmbedding(config), torch.zeros(1)

    def run(at: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = made(like, at[None])
        return cos[0, :, : dim // 2], sin[0, :, : dim // 2]

    return run


def rotary_embedding_torch(length: int, dim: int) -> Side:
    """Its rotation of adjacent pairs, with the angles made beforehand."""
    module = _module("rotary_embedding_torch")
    angle = module.RotaryEmbedding(dim)(torch.arange(length).float())
    return lambda q, k: (
        module.apply_rotary_emb(angle, q),
        module.apply_rotary_emb(angle, k),
    )


def x_transformers(length: int, dim: int) -> Side:
    """Its rotation of adjacent pairs, with the angles made beforehand."""
    module = _module("x_transformers.x_transformers")
    angle = module.RotaryEmbedding(dim).forward_from_seq_len(length)
    freqs = angle[0] if isinstance(angle, tuple) else angle
    apply: Callable[..., Tensor] = module.apply_rotary_pos_emb
    return lambda q, k: (apply(q, freqs), apply(k, freqs))


def torchtune(length: int, dim: int, dtype: torch.dtype) -> Side:
    """Its class for adjacent pairs, `[B, T, H, D]`, with the table made beforehand."""
    module = _module("torchtune.modules")
    rope = module.RotaryPositionalEmbeddings(dim, max_seq_len=length).to(dtype)
    return lambda q, k: tuple(rope(x.transpose(1, 2)).transpose(1, 2) for x in (q, k))


def liger(positions: Tensor, dim: int, dtype: torch.dtype) -> Side:
    """Liger's Triton kernel, for halves; it may turn what it is given, or a copy of it."""
    apply = _module("liger_kernel.ops.rope").LigerRopeFunction.apply
    cos, sin = _doubled(positions, dim, dtype)
    return lambda q, k: apply(q, k, cos, sin)[:2]


def flash_attention(
    positions: Tensor,
    dim: int,
    dtype: torch.dtype,
    *,
    pairing: str = "half",
    inplace: bool = False,
) -> Side:
    """The Triton kernel of flash-attn, one launch for queries and one for keys."""
    apply = _module("flash_attn.layers.rotary").apply_rotary_emb
    angle = _angles(positions, dim)[0]
    tables = angle.cos().to(dtype), angle.sin().to(dtype)
    form = {"interleaved": pairing == "adjacent", "inplace": inplace}
    return lambda q, k: tuple(
        apply(x.transpose(1, 2), *tables, **form).transpose(1, 2) for x in (q, k)
    )


def flex_attention(
    length: int, score_mod: Callable[..., Tensor], device: torch.device | str = "cpu"
) -> Side:
    """FlexAttention, compiled, with a causal block mask."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    block_mask = create_block_mask(
        lambda b, h, q, k: q >= k, None, None, length, length, device=str(device)
    )
    run = torch.compile(flex)
    return lambda q, k, v: (run(q, k, v, score_mod=score_mod, block_mask=block_mask),)
