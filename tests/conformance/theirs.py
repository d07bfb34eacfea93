"""What the groups of biases and relative vectors share: a model's own code, and its config read."""

import importlib
import json
from collections.abc import Iterable
from typing import Any

import torch
import transformers
from torch import Tensor

from posenc import attention
from posenc.interop.hf import ConfigError, ModelScheme, scheme_from_config
from support import assert_roundings, random

__all__ = ["attends", "config_of", "filled", "heads_of", "load", "read", "refused", "tokens"]


def load(folder: str, file: str = "") -> Any:
    return importlib.import_module(f"transformers.models.{folder}.modeling_{file or folder}")


def config_of(name: str, **keys: Any) -> Any:
    """A config of transformers, of the class `name`, whose attention is written out."""
    config = getattr(transformers, name)(**keys)
    config._attn_implementation = "eager"
    return config


def read(config: Any, **options: Any) -> ModelScheme:
    """What is read from the keys that the config's class writes."""
    return scheme_from_config(json.loads(json.dumps(config.to_dict(), default=str)), **options)


def refused(config: Any, message: str) -> None:
    try:
        read(config)
    except ConfigError as error:
        if message not in str(error):
            raise
    else:
        raise AssertionError(f"no ConfigError with {message!r}")


def filled(module: torch.nn.Module, *, std: float = 0.3) -> Any:
    """The module for inference, in float64, its parameters far from zero and from each other."""
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        parameter.data.normal_(std=std, generator=generator)
    module.double().eval()  # LeViT's returns nothing
    return module


def heads_of(x: Tensor, num_heads: int) -> Tensor:
    """`[B, T, H · D]` -> `[B, H, T, D]`."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def attends(their: Tensor, heads: Iterable[Tensor], roundings: float = 1, **options: Any) -> None:
    """Their `[B, T, H · Dv]` of q, k and v is what `attention` makes, within float32 roundings."""
    q, k, v = heads
    for impl in ("reference", "sdpa"):
        made = attention(q, k, v, impl=impl, **{"mask": None, **options})
        ours = made.transpose(1, 2).flatten(-2)
        assert_roundings(their.float(), ours.detach(), roundings, size=v.abs().max())


def tokens(num_tokens: int, width: int, *, batch: int = 2, seed: int = 0) -> Tensor:
    return random(batch, num_tokens, width, seed=seed)
