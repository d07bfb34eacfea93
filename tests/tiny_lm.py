"""A byte-level language model on Python's own sources, trained in seconds: for tests of `detect`.

python tests/tiny_lm.py          # makes tests/data/trained-{half,adjacent}.safetensors again
"""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from posenc import MultiHeadAttention, Rope, RotaryTables, Scheme

DATA = Path(__file__).parent / "data"
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "max_position_embeddings": 128, "rope_theta": 10_000.0,
}  # fmt: skip


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, dim: int, num_heads: int, scheme: Scheme) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = MultiHeadAttention(dim, num_heads, scheme=scheme)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, tables: RotaryTables | None) -> Tensor:
        x = x + self.attention(self.before_attention(x), tables=tables)
        return x + self.mlp(self.before_mlp(x))


class TinyLM(nn.Module):
    """The smallest model that learns to use positions."""

    def __init__(self, rope: Rope | None) -> None:
        super().__init__()
        dim, self.rope = CONFIG["hidden_size"], rope
        self.embed, self.head = nn.Embedding(256, dim), nn.Linear(dim, 256)
        num_heads, num_layers = CONFIG["num_attention_heads"], CONFIG["num_hidden_layers"]
        self.blocks = [Block(dim, num_heads, Scheme(rotary=rope)) for _ in range(num_layers)]
        self.registered = nn.ModuleList(self.blocks)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1])
        tables = None if self.rope is None else self.rope.tables(positions, positions)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, tables)
        return self.head(functional.rms_norm(x, x.shape[-1:]))


def trained(pairing: Any, *, steps: int, seed: int = 0) -> dict[str, Tensor]:
    """Query and key weights after so many steps, under Llama's names; without rotation for None."""
    torch.manual_seed(seed)
    rope = None if pairing is None else Rope(32, pairing=pairing)
    model, text = TinyLM(rope), _text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(steps):
        starts = torch.randint(len(text) - 129, (8,)).tolist()
        batch = torch.stack([text[start : start + 129] for start in starts]).long()
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        f"model.layers.{index}.self_attn.{name}_proj.weight": weight.detach().clone()
        for index, block in enumerate(model.blocks)
        for name, weight in (("q", block.attention.q.weight), ("k", block.attention.k.weight))
    }


def _text() -> Tensor:
    """The first of Python's modules by name, as bytes."""
    folder = Path(os.__file__).parent
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:40])
    return torch.tensor(list(content), dtype=torch.uint8)


if __name__ == "__main__":
    torch.set_num_threads(1)
    DATA.mkdir(exist_ok=True)
    for pairing in ("half", "adjacent"):
        weights = {name: x.to(torch.bfloat16) for name, x in trained(pairing, steps=400).items()}
        save_file(weights, DATA / f"trained-{pairing}.safetensors")
