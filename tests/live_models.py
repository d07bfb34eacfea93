"""Tiny random models of transformers' own classes, for tests of live models and checkpoints."""

from functools import cache
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

transformers.logging.set_verbosity_error()

VOCABULARY = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2,
    "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2,
}  # fmt: skip
GPTJ: dict[str, Any] = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 64, "n_inner": 32,
}  # fmt: skip

# What each model type needs beyond SMALL.
TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 16},
    "gemma2": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neox": {"rotary_pct": 0.5},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {},
    "stablelm": {"partial_rotary_factor": 0.5, "qk_layernorm": True},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "persimmon": {"partial_rotary_factor": 0.5},
    "cohere": {"use_qk_norm": True},
    "glm4": {"head_dim": 8, "partial_rotary_factor": 0.5},
    "gptj": GPTJ,
    "codegen": GPTJ,
    "olmo2": {},
    "gpt_oss": {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
                **EXPERTS},
    "deepseek_v2": {**MLA, "topk_method": "greedy"},
    "deepseek_v3": MLA,
    "llama4_text": {"head_dim": 8, "intermediate_size_mlp": 32, **EXPERTS},
    "nemotron": {"partial_rotary_factor": 0.5},
    "starcoder2": {},
    "helium": {"head_dim": 8},
    "nanochat": {},  # turns pairs the other way
}  # fmt: skip


# Text models whose tokens have (time, row, column) coordinates: class, and what its config needs.
MROPE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLText", {}),
    "qwen3_vl": ("Qwen3VLText", {"mrope_section": [3, 3, 2]}),
    "glm4v": ("Glm4vText", {}),
    "glm4v_moe": ("Glm4vMoeText", {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoeText", {"mrope_section": [3, 3, 2]}),
}


def mrope_model(kind: str) -> Any:
    """A tiny text model of a vision-language family."""
    name, keys = MROPE[kind]
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 3, 3], **keys}
    folder = f"transformers.models.{kind}"
    made = getattr(import_module(f"{folder}.configuration_{kind}"), f"{name}Config")(
        **{**SMALL, "hidden_size": 64, "head_dim": 16, "rope_parameters": rope},
        moe_num_experts=2, moe_k=1, n_routed_experts=2, num_experts_per_tok=1, n_group=1,
        topk_group=1, first_k_dense_replace=2,
        moe_intermediate_size=[16, 16] if "ernie" in kind else 16,
    )  # fmt: skip
    torch.manual_seed(0)
    return getattr(import_module(f"{folder}.modeling_{kind}"), f"{name}Model")(made).eval()


def config(kind: str, **changes: Any) -> Any:
    """The config of a tiny model."""
    values = {**SMALL, **TYPES[kind], **changes}
    if kind in ("gptj", "codegen"):
        values = {name: value for name, value in values.items() if name not in ALIASED}
    return AutoConfig.for_model(kind, **values)


def model(kind: str, *, seed: int = 0, **changes: Any) -> Any:
    """A tiny model in eval mode, with random weights that positions matter for."""
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config(kind, **changes)).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if any(part in name for part in LOUD):  # initialised at 0.02, attention hardly looks
                weight.copy_(torch.randn_like(weight) * (0.3 if weight.ndim > 1 else 1.0))
    return made


@cache
def tokens(length: int = 12, batch: int = 2) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(7))


def logits(made: Any, ids: Tensor | None = None, **arguments: Any) -> Tensor:
    with torch.no_grad():
        return made(tokens() if ids is None else ids, **arguments).logits


ALIASED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
           "intermediate_size", "max_position_embeddings")  # fmt: skip
LOUD = ("q_proj", "k_proj", "qkv", "query_key_value", "q_norm", "k_norm", "q_layernorm", "kv_a_proj",
        "k_layernorm", "q_b_proj")  # fmt: skip
