"""Which rows of a checkpoint turn: by the names of its tensors and the heads in its config.

Strict on purpose. A projection that is missed, or permuted as if its heads were others, still loads
and still writes fluent nonsense (TinyLlama#24), so a name that is not listed here is an error.
"""

import math
import re
from collections.abc import Sequence

import torch

from posenc.interop.checkpoints.files import CheckpointError, Stored
from posenc.interop.checkpoints.heads import LayerHeads, Layout
from posenc.interop.checkpoints.permutation import Heads, row_order

__all__ = ["Plan", "check_numbering", "plan"]

Plan = tuple[tuple[Heads, ...], int]  # runs of rows, and how many times they repeat

ROLES = {
    **dict.fromkeys(("q_proj", "wq", "query", "q_b_proj"), "q"),
    **dict.fromkeys(("k_proj", "wk", "key"), "k"),
    **dict.fromkeys(("q_norm", "q_layernorm", "query_layernorm", "q_layer_norm"), "q_norm"),
    **dict.fromkeys(("k_norm", "k_layernorm", "key_layernorm", "k_layer_norm"), "k_norm"),
    **dict.fromkeys(("query_key_value", "qkv_proj", "wqkv", "Wqkv", "W_pack", "c_attn"), "qkv"),
    "kv_a_proj_with_mqa": "latent",
}

# One group holds the queries that share a key, that key, its value: [H', H/H' + 2, d].
GROUPED = ("gpt_neox", "gpt_neox_japanese", "persimmon", "falcon", "RefinedWeb", "RefinedWebModel")
GROUPED += ("internlm2",)
# All queries, all keys, all values: [q; k; v].
BLOCKS = ("phi3", "phi3small", "phi4mm", "phi4_multimodal", "chatglm", "baichuan", "qwen", "dbrx")
BLOCKS += ("modernbert", "modernbert-decoder", "nomic_bert")

MOVED = ("weight", "bias", "linear.weight", "base_layer.weight", "base_layer.bias", "lora_B.weight")
MOVED += ("lora_B.default.weight", "lora_magnitude_vector", "lora_magnitude_vector.default.weight")
SCALES = ("weight_scale", "weight_scale_inv")
BLOCK = 128  # rows that share a scale in DeepSeek's float8
STILL = ("lora_A.weight", "lora_A.default.weight", "input_scale", "output_scale", "k_scale")

LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.")
# Parts with positions of their own, or with none: what the config says does not hold for them.
FOREIGN = re.compile(
    r"vis(ion|ual)|audio|image|speech|cross_?att|encoder_attn|indexer|talker|mtp|depth_decoder"
)
ATTENTION = re.compile(r"(^|\.)((self_)?att(n|ention)|temporal_block)(\.|$)")
# In attention, what reads the hidden state for something else or comes after the scores.
BESIDE = re.compile(
    r"""(^|\.)(
      v_proj|wv|value|v_norm|q_a_proj|kv_b_proj|(q|kv)_a_(layer)?norm
      |o_proj|wo|Wo|out_proj|dense|dense_bias|c_proj|o_norm|attn_sub_norm|output|sinks
      |g_proj|gate_proj|q_gate_proj|dt_proj                   # gates of what attention gives
      |lambda_[qk][12]                                        # Diff Llama: two numbers for a layer
      |(attn|attention)\.(masked_)?bias|inv_freq|rope\.freqs
    )(\.|$)""",
    re.VERBOSE,
)
# Outside attention, what reads and writes hidden states: their channels never turn.
HIDDEN = re.compile(
    r"""(^|\.)(
      \w*mlp|feed_forward|ffn|block_sparse_moe|moe|experts?|shared_experts?|router|gate
      |linear_attn|mamba|conv|short_conv|inv_freq|rope\.freqs
      |\w*norms?\w*|ln_\w+|ln
      |\w*embed\w*|wte|wpe|lm_head|output|output_layer|score|classifier|dense
      |fc\d|fc_(in|out)|dense_(h_to_4h|4h_to_h)|w[123]|(gate|up|down)_proj
      |altup\w*|laurel|per_layer_\w+|\w*residual\w*|(attn|ffn)_hc|hc_head|(\w+_)?hyper_connection\w*
      |decoder\.(weight|bias)|predictions|z_[LH]_init        # heads, and a first state
    )(\.|$)""",
    re.VERBOSE,
)


def plan(tensor: Stored, layout: Layout) -> Plan | None:
    """The rows of a tensor that turn, or None where it stays; an error where it is not known.

    >>> plan(header.tensors[3], layout)               # layers.0.self_attn.k_proj.weight [256, 2048]
    ((Heads(count=4, head_dim=64, rotary_dim=64, start=0),), 1)
    """
    if FOREIGN.search(tensor.name):
        raise unknown(tensor, "it may have a rotation of its own, and the config does not say")
    parts = tensor.name.split(".")
    found = [i for i, part in enumerate(parts) if part in ROLES]
    if not found:
        if _stays(tensor, layout):
            return None
        raise unknown(tensor, "whether its rows turn depends on what it is")
    role, leaf = ROLES[parts[found[0]]], ".".join(parts[found[0] + 1 :])
    if leaf in STILL:
        return None
    heads = _layer(tensor, layout)
    if heads.rotary_dim == 0:
        return None
    if role in ("q_norm", "k_norm"):
        return _norm_plan(tensor, heads, role)
    if leaf not in MOVED + SCALES or len(tensor.shape) > 2:
        raise unknown(tensor, f"rows of a {leaf!r} (quantised?) cannot be told apart")
    runs, groups = _projection_plan(tensor, heads, role, layout.model_type)
    if leaf in SCALES and _scale_stays(tensor, runs, groups):
        return None
    check_rows(tensor, runs, groups, tensor.shape[0] if tensor.shape else 1)
    return runs, groups


def unknown(tensor: Stored, why: str) -> CheckpointError:
    """The error for a tensor that is not recognised."""
    return CheckpointError(
        f"tensor {tensor.name!r} {list(tensor.shape)} is not recognised: {why}. "
        f"If it must stay as it is, keep it (keep=[...], --keep '{tensor.name}')"
    )


def check_numbering(names: Sequence[str], layout: Layout) -> None:
    """Raise where layers differ and two stacks of them are numbered: whose heads are whose?"""
    found = (LAYER.search(name) for name in names)
    stacks = sorted({match.string[: match.start(1)] for match in found if match})
    if len(stacks) > 1 and len(set(layout.layers)) > 1:
        raise CheckpointError(
            f"layers are numbered in {' and in '.join(stacks)}, and those of the config differ: "
            "which are meant is not known. Keep one stack (keep=[...], --keep)"
        )


def check_rows(tensor: Stored, runs: tuple[Heads, ...], groups: int, rows: int) -> None:
    """Raise unless a tensor has the rows that its heads come to."""
    expected = groups * sum(run.rows for run in runs)
    if rows != expected:
        described = " + ".join(f"{run.count} heads of {run.head_dim}" for run in runs)
        times = f"{groups} times " if groups > 1 else ""
        raise CheckpointError(
            f"tensor {tensor.name!r} {list(tensor.shape)} has {rows} rows, but the config says "
            f"{times}{described} = {expected}"
        )


def _stays(tensor: Stored, layout: Layout) -> bool:
    """Whether a tensor that is no projection or norm of queries and keys cannot reach q·k.

    By its role in attention or outside it, by its place (in a layer that does not rotate), or by its
    shape (no axis as long as the channels that turn).
    """
    known = BESIDE if ATTENTION.search(tensor.name) else HIDDEN
    if known.search(tensor.name):
        return True
    if not LAYER.search(tensor.name):
        return False
    rotary_dim = _layer(tensor, layout).rotary_dim
    return rotary_dim == 0 or max(tensor.shape, default=0) < rotary_dim


def _projection_plan(tensor: Stored, heads: LayerHeads, role: str, model_type: str) -> Plan:
    if role == "qkv":
        return _fused(tensor, heads, model_type)
    if role == "latent":
        start, width = heads.latent_dim, heads.rotary_dim
        return (Heads(1, start + width, width, start),), 1
    return (heads.query if role == "q" else heads.key,), 1


def _scale_stays(tensor: Stored, runs: tuple[Heads, ...], groups: int) -> bool:
    """Whether the scales of a weight stay: one for all, or for blocks that rows do not leave."""
    scales = tensor.shape[0] if tensor.shape else 1
    order = row_order(runs, "half", groups=groups)
    if math.prod(tensor.shape) == 1 or scales == order.numel():
        return scales != order.numel()
    block = BLOCK if -(-order.numel() // BLOCK) == scales else order.numel() // scales
    within = torch.equal(order // block, torch.arange(order.numel()) // block)
    if block * scales < order.numel() or not within:
        raise unknown(tensor, "rows would leave the blocks that its scales are for")
    return True


def _norm_plan(tensor: Stored, heads: LayerHeads, role: str) -> Plan:
    """A norm over one head's channels (Qwen3), over all heads' (OLMo 2), or one for each (Cohere)."""
    run = heads.one
    if math.prod(tensor.shape) != run.rows:
        run = heads.query if role == "q_norm" else heads.key
        run = Heads(run.count, heads.head_dim, heads.rotary_dim, heads.start)
    check_rows(tensor, (run,), 1, math.prod(tensor.shape))
    return (run,), 1


def _fused(tensor: Stored, heads: LayerHeads, model_type: str) -> Plan:
    one, shared = heads.one, heads.num_heads // heads.num_kv_heads
    still = Heads(1, heads.head_dim)
    multi_head_glm = model_type == "chatglm" and shared == 1
    if model_type == "codegen":  # written for four devices: [4, (q, v, k), heads / 4, d]
        quarter = heads.num_heads // 4
        query, value = Heads(quarter, *_turn(one)), Heads(quarter, heads.head_dim)
        runs, groups = (query, value, query), 4
    elif model_type in GROUPED or multi_head_glm:
        runs, groups = (Heads(shared, *_turn(one)), one, still), heads.num_kv_heads
    elif model_type in BLOCKS:
        runs, groups = (heads.query, heads.key, Heads(heads.num_kv_heads, heads.head_dim)), 1
    else:
        raise unknown(tensor, f"how {model_type!r} fuses queries, keys and values is not known")
    return runs, groups


def _turn(run: Heads) -> tuple[int, int, int]:
    return run.head_dim, run.rotary_dim, run.start


def _layer(tensor: Stored, layout: Layout) -> LayerHeads:
    found = LAYER.search(tensor.name)
    if found is None:
        raise unknown(tensor, "no layer number in its name")
    index = int(found[1])
    if index >= len(layout.layers):
        raise unknown(tensor, f"the config describes {len(layout.layers)} layers")
    return layout.layers[index]
