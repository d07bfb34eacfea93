"""Queries scaled by their position, in the models that do."""

from typing import Any

import torch

from conformance.check import Check
from conformance.theirs import attends, config_of, filled, heads_of, load, read, tokens
from posenc import PowerScale, StepLogScale, causal
from posenc.contracts import QueryScale
from support import assert_roundings, random

__all__ = ["scale_checks"]

FAR = torch.tensor([[0, 1, 1000, 4095, 8191, 8192, 16383, 16384, 32768, 100_000]])
SMALL: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1,
                         "head_dim": 8, "num_hidden_layers": 4}  # fmt: skip


def llama4() -> None:
    """A layer without rotation, whose scale steps at every third token."""
    config = config_of("Llama4TextConfig", **SMALL, floor_scale=3, attn_scale=0.1)
    scheme = read(config).layers[3]
    assert scheme.rotary is None and isinstance(scheme.query_scale, StepLogScale)
    module = filled(load("llama4").Llama4TextAttention(config, 3))
    module.o_proj = torch.nn.Identity()
    x = tokens(20, 24)
    q = heads_of(module.q_proj(x), 3)
    k, v = (heads_of(part(x), 1) for part in (module.k_proj, module.v_proj))
    hidden = torch.full((20, 20), -torch.inf, dtype=torch.float64).triu(1)
    their, _ = module(x, position_embeddings=None, attention_mask=hidden[None, None])
    attends(their, (q, k, v), scheme=scheme, mask=causal)


def same_factors(theirs: torch.Tensor, scale: QueryScale | None) -> None:
    assert scale is not None
    ours = scale.factors(FAR)[:, 0].double()
    assert_roundings(theirs.reshape(ours.shape), ours, 2, size=ours)  # a logarithm and a product


def beam() -> None:
    config = config_of("BeamConfig", **SMALL)
    scales = [x.query_scale for x in read(config).layers if x.rotary is None]
    assert scales and isinstance(scales[0], PowerScale)
    same_factors(load("beam").compute_attention_scaling(FAR), scales[0])


MISTRALS = {"ministral3": "Ministral3Config", "mistral4": "Mistral4Config"}


def mistral(name: str) -> None:
    section = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16384,
               "rope_theta": 1e6, "llama_4_scaling_beta": 0.1}  # fmt: skip
    config = config_of(MISTRALS[name], num_hidden_layers=2, rope_parameters=section)
    theirs = load(name).get_llama_4_attn_scale(FAR, 0.1, 16384)
    same_factors(theirs, read(config).layers[0].query_scale)


def mistral_large4() -> None:
    keys = {key: x for key, x in SMALL.items() if key != "head_dim"}
    heads = {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}
    config = config_of("MistralLarge4TextConfig", **keys, **heads)
    theirs = filled(load("mistral_large4").MistralLarge4TextSoftmaxScaling(3)).float()
    scale: Any = read(config).layers[0].query_scale
    assert scale.num_heads == 3
    scale.scale.data, scale.bias.data = theirs.scale.data, theirs.bias.data
    at = torch.arange(40)[None] * 2500
    q = random(1, 3, 40, 8, dtype=torch.float32)
    ours = q.double() * scale.double().factors(at)[..., None]
    assert_roundings(theirs(q, at, head_dim_first=True), ours.detach(), 2)


def scale_checks() -> list[Check]:
    return [
        Check("llama4_temperature", "`StepLogScale`, in layers without rotation", llama4),
        Check("beam", "`PowerScale`", beam),
        *(Check(name, "`StepLogScale(count_from=0)`", lambda name=name: mistral(name))
          for name in MISTRALS),
        Check("mistral_large4", "`LearnedLogScale`", mistral_large4),
    ]  # fmt: skip
