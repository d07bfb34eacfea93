"""Training by seed: two models under one seed see the same bytes in the same order."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.contracts import RotaryEncoding
from posenc.lab.model import Decoder

__all__ = ["OnStep", "Recipe", "train"]

OnStep = Callable[[int, int], None]  # done, total
Positions = Callable[[int, int, torch.Generator], Tensor]  # batch, length -> [B, T]


@dataclass(frozen=True)
class Recipe:
    """How long, on how much, how fast. A step takes `batch_size` windows of `length` bytes."""

    length: int
    steps: int
    batch_size: int
    lr: float
    warmup: int = 50
    weight_decay: float = 0.05
    clip: float = 1.0

    def lr_at(self, step: int) -> float:
        """Linear warmup, then a cosine down to a twentieth."""
        warm = min(1.0, (step + 1) / self.warmup)
        return self.lr * warm * (0.525 + 0.475 * math.cos(math.pi * step / self.steps))


def train(
    model: Decoder,
    text: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    positions: Positions | None = None,
    rotary: RotaryEncoding | None = None,
    on_step: OnStep = lambda done, total: None,
) -> list[float]:
    """Train in place with AdamW; the loss of every step, nats per byte.

    >>> losses = train(model, corpus.train, Recipe(64, 600, 32, 3e-3), seed=0)  # doctest: +SKIP

    `positions` draws the positions of a batch (0 … T-1 by default). `rotary` replaces the scheme's
    rotation: fine-tuning under a scaling method.
    """
    data, gaps = (torch.Generator().manual_seed(seed) for _ in range(2))
    optimizer = _optimizer(model, recipe)
    losses = []
    model.train()
    for step in range(recipe.steps):
        inputs, targets = _batch(text, recipe, data)
        batch, length = inputs.shape
        where = None if positions is None else positions(batch, length, gaps)
        loss = F.cross_entropy(model(inputs, where, rotary=rotary).flatten(0, 1), targets.flatten())
        _update(model, optimizer, loss, recipe, step)
        losses.append(loss.item())
        on_step(step + 1, recipe.steps)
    return losses


def _batch(text: Tensor, recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Windows at random places, and the same windows one byte later, int64 `[B, T]`."""
    last = text.numel() - recipe.length
    starts = torch.randint(0, last, (recipe.batch_size, 1), generator=generator)
    windows = text[starts + torch.arange(recipe.length + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def _update(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, recipe: Recipe, step: int
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = recipe.lr_at(step)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Matrices decay; norms, biases and a learned position scale do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.99), fused=True)
