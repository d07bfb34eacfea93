"""Configs, rotary modules and apply functions of transformers, one model type at a time.

Nothing here computes a rotation: every value comes from the model's own class and function. No
whole model is built and nothing is downloaded.
"""

import copy
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

MODELS: dict[str, list[str]] = json.loads(Path(__file__).with_name("models.json").read_text())

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
LONGROPE = {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 4096,
            "short_factor": "SHORT", "long_factor": "LONG"}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
LONG = {"max_position_embeddings": 32768}

# name -> (rope parameters, other keys)
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "linear": ({"rope_type": "linear", "factor": 4.0}, {}),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0}, {"max_position_embeddings": 4096}),
    "yarn": (YARN, LONG),
    "yarn attention_factor": ({**YARN, "attention_factor": 1.25}, LONG),
    "yarn mscale": ({**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, LONG),
    "yarn beta": ({**YARN, "beta_fast": 16.0, "beta_slow": 2.0}, LONG),
    "yarn truncate": ({**YARN, "truncate": False}, LONG),
    "longrope": (LONGROPE, LONG),
    "llama3": (LLAMA3, {"max_position_embeddings": 65536}),
    "proportional": ({"rope_type": "proportional", "partial_rotary_factor": 0.25}, {}),
}

# Variants of single model types.
ALPHA = {"dynamic alpha": ({"rope_type": "dynamic", "factor": 1.0, "alpha": 1000.0}, {})}
HALVES = {"rope_interleave false": ({}, {"rope_interleave": False})}
MSCALE = {"longrope mscale": ({**LONGROPE, "short_mscale": 1.1, "long_mscale": 1.3}, LONG)}
EXTRA: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"), ALPHA),
    **dict.fromkeys(("axk1", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu"), HALVES),
    "phimoe": MSCALE,
}

# What a class needs beyond its defaults to build a rotation at all, or a real model's one.
PLAIN_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
OVERRIDES: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "glm4_moe": {"head_dim": 128},  # 4096 / 96 = 42 gives 21 rotated channels
    "glm4v_moe_text": {"head_dim": 128, "rope_parameters": PLAIN_HALF},
    "glm4v_text": {"rope_parameters": PLAIN_HALF},  # the published sections need 32 pairs
    "glm_image_text": {"rope_parameters": PLAIN_HALF},
    "qwen3_omni_moe_text": {"head_dim": 128},  # 2048 / 28 = 73, an odd head
    "hunyuan_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                            "mrope_section": [16, 16, 16, 16]}},
    "esm": {"position_embedding_type": "rotary", "pad_token_id": 1},
    "~SaProtConfig": {"pad_token_id": 1},
    "granitemoehybrid": {"position_embedding_type": "rope", "num_hidden_layers": 2,
                         "layer_types": ["linear_attention", "full_attention"]},
    "deepseek_v4": {"num_hidden_layers": 2,  # one layer for each base
                    "layer_types": ["sliding_attention", "compressed_sparse_attention"]},
    # rotary_dim = 64 of the class is not read by its rotation (modeling_minimax_m3_vl.py)
    "minimax_m3_vl_text": {"rope_parameters": PLAIN_HALF},
    "zamba2": {"use_mem_rope": True},
    "bamba": {"attn_layer_indices": [9, 18, 27]},  # none by default
    # head_dim=None of the class breaks dynamic, yarn and longrope (modeling_rope_utils.py:334)
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "minimax": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "mixtral": {"head_dim": 128},
}  # fmt: skip
OVERRIDES["hunyuan_vl_text"]["head_dim"] = 128


@dataclass(frozen=True)
class Peer:
    """A model type: its classes and how its attention applies cos and sin."""

    model_type: str
    module: Any
    config_class: Any
    rotary_class: Any
    recipe: str

    @staticmethod
    def of(model_type: str) -> "Peer":
        path, config_name, rotary_name, recipe = MODELS[model_type]
        module = importlib.import_module(f"transformers.models.{path}")
        config_class = getattr(module, config_name, None) or getattr(transformers, config_name)
        return Peer(model_type, module, config_class, getattr(module, rotary_name), recipe)

    def config(self, variant: str) -> Any:
        """The class's defaults with the variant's rope parameters, through its own conversion."""
        rope, beside = (VARIANTS | EXTRA.get(self.model_type, {}))[variant]
        keys = copy.deepcopy(OVERRIDES.get(self.model_type, {}))
        base = self.config_class(**copy.deepcopy(keys))
        if not rope:
            return self.config_class(**keys, **beside)
        keys["rope_parameters"] = self._scaled(base, rope)
        try:
            return self.config_class(**keys, **beside)
        except TypeError:  # a class without this length
            return self.config_class(**keys)

    def _scaled(self, base: Any, rope: dict[str, Any]) -> dict[str, Any]:
        old = base.rope_parameters
        nested = [key for key, value in old.items() if isinstance(value, dict)]
        if not nested:
            return self._merged(base, None, old, rope)
        new = {key: self._merged(base, key, old[key], rope) for key in nested}
        return {**{key: value for key, value in old.items() if key not in nested}, **new}

    def _merged(self, base: Any, kind: str | None, old: dict[str, Any], rope: Any) -> Any:
        keep = ["rope_theta", "mrope_section"]
        if old.get("rope_type") != "proportional":  # there the factor means another thing
            keep.append("partial_rotary_factor")
        new = {key: old[key] for key in keep if key in old} | copy.deepcopy(rope)
        if new.get("short_factor") == "SHORT":
            pairs = self._pairs(base, kind)
            new["short_factor"] = [round(1.0 + 0.01 * i, 6) for i in range(pairs)]
            new["long_factor"] = [round(1.0 + 0.5 * i, 6) for i in range(pairs)]
        return new

    def _pairs(self, base: Any, kind: str | None) -> int:
        """As many as the class itself makes of its defaults."""
        made = dict(self.rotary(base).named_buffers())
        name = "inv_freq" if kind is None else f"{kind}_inv_freq"
        return made.get(name, next(iter(made.values()))).numel()

    def head_dim(self, config: Any, kind: str | None, width: int) -> int:
        """Channels of one head, as the model's attention reads it."""
        if self.recipe.startswith("mla"):
            own = config if kind is None else _own(config, kind)
            return own.qk_nope_head_dim + own.qk_rope_head_dim
        own = config if kind is None else _own(config, kind)
        given = getattr(own, "head_dim", None)
        if isinstance(given, int):
            return given
        hidden = getattr(own, "hidden_size", None) or width
        return hidden // (getattr(own, "num_attention_heads", None) or 1)

    def rotary(self, config: Any) -> Any:
        torch.manual_seed(0)
        return self.rotary_class(config)

    def rotated(
        self, config: Any, kind: str | None, tables: tuple[Tensor, ...], q: Tensor, k: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q and k `[1, H, T, D]` as the model's attention turns them."""
        own = config if kind is None else _own(config, kind)
        return RECIPES[self.recipe](self.module, own, tables, q, k)


def variants_of(model_type: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return VARIANTS | EXTRA.get(model_type, {})


def _own(config: Any, kind: str) -> Any:
    """The keys of one layer type, where a config keeps some for itself."""
    try:
        return config.per_layer_config[kind]
    except (AttributeError, KeyError, TypeError, ValueError):
        return config


def kinds(rotary: Any) -> list[str | None]:
    """Layer types that a rotary module keeps frequencies for; [None] for one that has no types."""
    names = [name for name, _ in rotary.named_buffers() if name.endswith("_inv_freq")]
    own = [x.removesuffix("_inv_freq") for x in names if "original_inv_freq" not in x]
    return list(own) or [None]


def tables_of(rotary: Any, positions: Tensor, kind: str | None) -> tuple[Tensor, ...]:
    x = torch.zeros(1, positions.shape[-1], 4)
    made = rotary(x, positions) if kind is None else rotary(x, positions, kind)
    return made if isinstance(made, tuple) else (made,)


# How each attention calls its function ------------------------------------------------------------

Tables = tuple[Tensor, ...]


def _plain(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    return m.apply_rotary_pos_emb(q, k, *t)


def _leading(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    n = t[0].shape[-1]
    a, b = m.apply_rotary_pos_emb(q[..., :n], k[..., :n], *t)
    return torch.cat((a, q[..., n:]), -1), torch.cat((b, k[..., n:]), -1)


def _trailing(apply: Callable[..., Any]) -> Callable[..., Any]:
    def rotated(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
        n = config.qk_rope_head_dim
        a, b = apply(m, config, t, q[..., -n:], k[..., -n:])
        return torch.cat((q[..., :-n], a), -1), torch.cat((k[..., :-n], b), -1)

    return rotated


def _interleave(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    if getattr(config, "rope_interleave", True) is False:
        return m.apply_rotary_pos_emb(q, k, *t)
    return m.apply_rotary_pos_emb_interleave(q, k, *t)


def _one_by_one(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    def turn(x: Tensor) -> Tensor:
        return m.apply_rotary_pos_emb(x.transpose(1, 2), *t, unsqueeze_dim=2).transpose(1, 2)

    return turn(q), turn(k)


def _gptj(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    sin, cos = t
    n = config.rotary_dim

    def turn(x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        turned = m.apply_rotary_pos_emb(x[..., :n], sin, cos)
        return torch.cat((turned, x[..., n:]), -1).transpose(1, 2)

    return turn(q), turn(k)


def _llama4(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    a, b = m.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), t[0])
    return a.transpose(1, 2), b.transpose(1, 2)


def _each(m: Any, config: Any, t: Tables, q: Tensor, k: Tensor) -> Any:
    return m.apply_rotary_pos_emb(q, *t), m.apply_rotary_pos_emb(k, *t)


RECIPES: dict[str, Callable[..., Any]] = {
    "std": _plain,
    "slice_first": _leading,
    "mla_interleave": _trailing(_interleave),
    "mla_std": _trailing(_plain),
    "mla_complex": _trailing(lambda m, c, t, q, k: m.apply_rotary_emb(q, k, t[0])),
    "x_unsq2": _one_by_one,
    "gptj": _gptj,
    "llama4": _llama4,
    "dsv4": _each,
}
