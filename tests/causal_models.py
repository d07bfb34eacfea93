"""A tiny model of every causal family of transformers, shrunk from the defaults of its config."""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.logging.set_verbosity_error()

VOCABULARY = 61
HIDDEN = "hidden_size n_embd d_model intermediate_size n_inner embedding_size intermediate_size_mlp"
HIDDEN += " backbone_hidden_size dense_intermediate_size ffn_dim ffn_hidden_size lru_width"
LONGEST = "max_position_embeddings n_positions n_ctx max_seq_len model_max_length seq_length"
EIGHT = "head_dim kv_channels v_head_dim qk_nope_head_dim qk_rope_head_dim linear_head_dim"
EIGHT += " linear_key_head_dim linear_value_head_dim attention_head_dim index_head_dim"
EIGHT += " hidden_size_per_layer_input laurel_rank router_hidden_size gated_norm_rank hc_lowrank"
EIGHT += " sliding_window attention_window_size query_pre_attn_scalar mamba_n_heads mamba_d_head"
EIGHT += " mamba_d_state mamba_chunk_size"
SIXTEEN = "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size"
SIXTEEN += " shared_intermediate_size shared_experts_intermediate_size q_lora_rank kv_lora_rank"
SIXTEEN += " o_lora_rank qk_head_dim global_head_dim local_attention index_topk"
TWO = "num_key_value_heads num_kv_heads num_local_experts num_experts n_routed_experts"
TWO += (
    " moe_num_experts linear_num_key_heads zero_expert_num index_n_heads eos_token_id sep_token_id"
)
ONE = (
    "num_experts_per_tok moe_topk moe_k n_group topk_group mamba_n_groups bos_token_id cls_token_id"
)
FOUR = "num_attention_heads n_head n_heads linear_num_heads linear_num_value_heads rotary_dim"
FOUR += " index_topk_blocks index_block_size"
SIZES: dict[str, int] = {
    **dict.fromkeys(HIDDEN.split(), 32),
    **dict.fromkeys(LONGEST.split(), 64),
    **dict.fromkeys(EIGHT.split(), 8),
    **dict.fromkeys(SIXTEEN.split(), 16),
    **dict.fromkeys(TWO.split(), 2),
    **dict.fromkeys(ONE.split(), 1),
    **dict.fromkeys(FOUR.split(), 4),
    "vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "attention_chunk_size": 64,
    "mamba_d_ssm": 64, "num_kv_shared_layers": 0, "pad_token_id": 0,
}  # fmt: skip
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LISTED = ("layer_types", "mlp_layer_types", "no_rope_layers", "layer_rope_theta", "indexer_types")

MLA = {"num_key_value_heads": 4}
HEAD_8 = {"head_dim": 8}
WIDE = {"head_dim": 32}  # a quarter of it turns
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
ONE_THETA = {"rope_type": "default", "rope_theta": 10_000.0}

# What a family needs beyond SIZES; a rotation of two channels would be alike in both pairings.
CHANGES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("axk1", "axk2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "youtu",
         "sarvam_mla", "minicpm3", "hy_v4"), MLA,
    ),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), HEAD_8),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), WIDE),
    "bailing_hybrid": {**MLA, **HEAD_8, "num_expert_group": 1, "num_experts_per_token": 1},
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ONE_THETA}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1,
                       "hidden_size": 32},
    },
    "deepseek_v2": {**MLA, "num_experts_per_tok": 1, "topk_method": "greedy"},
    "dory": {"num_hidden_layers": 4, "n_input_layers": 2, "n_recurrent_layers": 0,
             "n_output_layers": 2,
             "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"]},
    "dots1": {"n_routed_experts": 2, "first_k_dense_replace": 1, "n_shared_experts": 1,
              "num_experts_per_tok": 1},
    "gemma3n_text": {"intermediate_size": [32, 32], "activation_sparsity_pattern": [0.0, 0.0]},
    "gpt_neox": {"hidden_size": 64, "rotary_pct": 0.5},
    "granitemoehybrid": {"position_embedding_type": "rope", "num_hidden_layers": 2,
                         "layer_types": ["linear_attention", "full_attention"]},
    "laguna": {"num_attention_heads_per_layer": [4, 2]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mimo_v2_flash": {"head_dim": 24},
    "nemotron": {**HEAD_8, "num_key_value_heads": 2},
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8,
                       "indexer_budget": 8, "indexer_compress_ratio": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "stablelm": {"hidden_size": 64, "rope_parameters": HALF},
}  # fmt: skip


def causal_config(kind: str, **changes: Any) -> Any:
    """A small config: one layer of each kind that the family has, at least two."""
    fields = CONFIG_MAPPING[kind]().to_dict()
    plain = {name for name, value in fields.items() if isinstance(value, int)}
    small: dict[str, Any] = {name: SIZES[name] for name in plain & SIZES.keys()}
    count = next((fields[name] for name in COUNTS if isinstance(fields.get(name), int)), 2)
    layers = _layers(fields, count)
    for name, value in fields.items():
        if isinstance(value, list) and len(value) == count:
            small[name] = [value[layer] for layer in layers]
        elif name in COUNTS and value is not None:
            small[name] = len(layers)
    return CONFIG_MAPPING[kind](**{**small, **CHANGES.get(kind, {}), **changes})


def causal_model(kind: str, *, seed: int = 0, **changes: Any) -> Any:
    """A tiny model in eval mode, with random weights that positions matter for."""
    made = AutoModelForCausalLM.from_config(causal_config(kind, **changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(weight + 0.2 * noise if weight.ndim == 1 else 0.3 * noise)
    return made


def causal_logits(made: Any) -> Tensor:
    ids = torch.randint(3, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        return made(ids, use_cache=False).logits


def _layers(fields: dict[str, Any], count: int) -> list[int]:
    """The first layer of each kind."""
    lists = [fields.get(name) for name in LISTED]
    listed = [values for values in lists if isinstance(values, list) and len(values) == count]
    first: dict[tuple[str, ...], int] = {}
    for layer in range(count):
        first.setdefault(tuple(str(values[layer]) for values in listed), layer)
    layers = sorted(first.values())
    return layers if len(layers) > 1 else [0, min(1, count - 1)]
