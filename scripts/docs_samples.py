"""What docstring examples take for granted: the public names, tensors, a small checkpoint on disk."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import posenc

__all__ = ["samples", "write_checkpoint"]


@dataclass(frozen=True)
class Sample:
    """Sizes of the tensors that an example finds, and code that makes what else it mentions."""

    dim: int = 512
    num_heads: int = 8
    head_dim: int = 64
    num_tokens: int = 12
    setup: str = ""


TINY_LLAMA = """
from transformers import LlamaConfig, LlamaForCausalLM
size = dict(hidden_size=256, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64)
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, head_dim=128, **size))
inputs = {"input_ids": torch.tensor([[1, 2, 3]]), "max_new_tokens": 1, "pad_token_id": 0}
"""
HEADER = """
from posenc.interop.checkpoints.files import read_header
from posenc.interop.checkpoints.heads import layout_from
header, layout = read_header(Path("model.safetensors")), layout_from(config)
"""
CONVERTED = """
import shutil
for name in ("llama-adjacent", "out.safetensors"):
    shutil.rmtree(name, ignore_errors=True)
    Path(name).unlink(missing_ok=True)
"""
ADJACENT = """
from posenc.interop.checkpoints import convert
convert("model.safetensors", "adjacent.safetensors", to="adjacent", config=config)
Path("adjacent.safetensors").replace("model.safetensors")
"""
CHECKPOINTS = "posenc.interop.checkpoints"
SAMPLES = {
    "posenc.additive.axial_learned.AxialLearned": Sample(dim=256),
    "posenc.additive.axial_sinusoidal.AxialSinusoidal": Sample(dim=768),
    "posenc.additive.fourier.RandomFourier": Sample(setup="points = torch.rand(5, 2)"),
    "posenc.additive.learned.Learned": Sample(dim=768),
    "posenc.additive.resize.resize_grid": Sample(
        setup="from types import SimpleNamespace as N; vit = N(pos_embed=torch.randn(1, 197, 8))"
    ),
    "posenc.additive.sinusoidal.Sinusoidal": Sample(setup="from dataclasses import replace"),
    "posenc.bias.alibi.Alibi": Sample(num_heads=12),
    "posenc.bias.axes.AxesBias": Sample(
        num_heads=12,
        setup="index = torch.arange(12).expand(len(q), 12)\n"
        "boxes = index[..., None].repeat(1, 1, 4)",
    ),
    "posenc.bias.beit.BeitBias": Sample(num_heads=4, num_tokens=36),
    "posenc.bias.fire.Fire": Sample(num_heads=12),
    "posenc.bias.kerple.Kerple": Sample(num_heads=12),
    "posenc.bias.sandwich.Sandwich": Sample(num_heads=12),
    "posenc.bias.swin.SwinBias": Sample(num_heads=4, num_tokens=35),
    "posenc.bias.swinv2.SwinV2Bias": Sample(num_heads=4, num_tokens=35),
    "posenc.bias.t5.T5Bias": Sample(num_heads=12),
    CHECKPOINTS: Sample(setup=f"{CONVERTED}\nk_weight = torch.randn(1024, 16)"),
    f"{CHECKPOINTS}.conversion.convert": Sample(setup=CONVERTED + ADJACENT),
    f"{CHECKPOINTS}.layouts.plan": Sample(setup=HEADER),
    "posenc.interop.mistakes.warnings_about": Sample(
        setup="from posenc.interop.hf import scheme_from_config; raw = config"
    ),
    "posenc.interop.transformers.set_rope": Sample(setup=TINY_LLAMA),
    "posenc.lab.model.Decoder": Sample(setup="tokens = torch.randint(256, (2, 64))"),
    "posenc.positions.sampling.randomized": Sample(setup="x = torch.randn(8, 40, 512)"),
    "posenc.positions.shards": Sample(num_tokens=16),
    "posenc.positions.shards.unshard": Sample(setup="gathered = torch.randn(2, 16, 4).split(8, 1)"),
    "posenc.relative.decomposed.Decomposed": Sample(num_tokens=196),
    "posenc.rotary.rope.Rope": Sample(head_dim=128),
    "posenc.attention.room.Room": Sample(setup="keys, new = k, k[:, :, :1]"),
    "posenc.sharding.HeadSlice": Sample(num_heads=6),
    "posenc.sharding.heads_of_rank": Sample(
        num_heads=4, setup="q_local, k_local, v_local = q, k, v"
    ),
}

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32_768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}


def samples(name: str) -> dict[str, Any]:
    """The namespace of the examples of one docstring."""
    size = SAMPLES.get(name, Sample())
    torch.manual_seed(0)
    heads = (2, size.num_heads, size.num_tokens, size.head_dim)
    q, k, v = (torch.randn(heads) for _ in range(3))
    x = torch.randn(2, size.num_tokens, size.dim)
    positions = torch.arange(size.num_tokens)
    rope = posenc.Rope(size.head_dim)
    m = torch.ones(2, size.num_tokens, dtype=torch.int64)
    m[0, :3] = 0
    names = {name: getattr(posenc.positions, name) for name in posenc.positions.__all__}
    names |= {name: getattr(posenc, name) for name in posenc.__all__}
    names |= {
        "Path": Path, "json": json, "posenc": posenc, "torch": torch,
        "q": q, "k": k, "v": v, "q_last": q[:, :, -1:], "k_all": k, "v_all": v,
        "x": x, "x_last": x[:, -1:], "tokens": x.split(1, dim=1), "m": m,
        "positions": positions, "q_pos": positions, "k_pos": positions,
        "cells": posenc.positions.grid(2, size.num_tokens // 2),
        "segments": positions // 5, "documents": positions // 5, "table": rope.table(positions),
        "rope": rope, "scheme": posenc.Scheme(rotary=rope), "config": dict(CONFIG),
        "text": json.dumps(CONFIG),
        "layer": posenc.MultiHeadAttention(size.dim, size.dim // 64), "cache": posenc.KVCache(),
        "num_heads": 32, "head_dim": 64, "q_weight": torch.randn(2048, 16),
        "k_weight": torch.randn(256, 16), "qkv": torch.randn(6144, 2), "neox": torch.randn(18432, 2),
    }  # fmt: skip
    exec(size.setup, names)
    return names


def write_checkpoint(folder: Path) -> None:
    """llama/config.json, llama/model.safetensors and a copy of the latter beside the folder."""
    torch.manual_seed(0)
    key, query = _trained_rows(4), _trained_rows(32)
    attention = {"k": key, "o": torch.randn(2048, 8), "q": query, "v": torch.randn(256, 8)}
    weights = {"model.embed_tokens.weight": torch.randn(8, 8)}
    weights |= {
        f"model.{name}.weight": torch.ones(8) for name in ("layers.0.input_layernorm", "norm")
    }
    for name, weight in attention.items():
        weights[f"model.layers.0.self_attn.{name}_proj.weight"] = weight.bfloat16()
    model = folder / "llama"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    for path in (model, folder):
        save_file(weights, path / "model.safetensors")


def _trained_rows(num_heads: int) -> Tensor:
    """Rows of 64-channel heads whose norms follow the speed of their pair, (i, i + 32)."""
    norms = torch.linspace(0.5, 2.0, 32).square().repeat(2 * num_heads)
    return torch.randn(64 * num_heads, 256) * norms[:, None]
