"""A small byte-level decoder that takes any scheme: what every row of the comparison trains."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.attention import MultiHeadAttention
from posenc.contracts import RotaryEncoding, RotaryTables, Scheme
from posenc.masks import Mask
from posenc.positions import sequence

__all__ = ["Decoder"]

NUM_BYTES = 256


class Block(nn.Module):
    """Attention and an MLP, each behind a norm, added to the stream."""

    def __init__(self, dim: int, num_heads: int, scheme: Scheme) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, num_heads, scheme=scheme)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor, positions: Tensor | None, tables: RotaryTables | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), positions, tables=tables)
        return x + self.down(F.relu(self.up(self.mlp_norm(x))).square())


class Decoder(nn.Module):
    """Bytes `[B, T]` -> logits of the next byte `[B, T, 256]`.

    >>> model = Decoder(Scheme(rotary=Rope(16)), dim=64, num_heads=4, num_layers=3, seed=0)
    >>> logits = model(tokens)
    >>> logits = model(tokens, rotary=Rope(16, scaling=Yarn(4.0, 64)))   # the same weights

    All weights but the encoding's own come from `seed` alone, so two schemes start from the same
    model. One scheme serves all layers: what it learns is shared, and tables are made once.
    """

    def __init__(
        self,
        scheme: Scheme,
        *,
        dim: int,
        num_heads: int,
        num_layers: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.scheme = scheme
        self.encoding = nn.ModuleDict(scheme.modules())
        self.embedding = nn.Embedding(NUM_BYTES, dim)
        self.blocks = nn.ModuleList(Block(dim, num_heads, scheme) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, NUM_BYTES, bias=False)
        self._initialise(torch.Generator().manual_seed(seed))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        *,
        rotary: RotaryEncoding | None = None,
        last: int | None = None,
    ) -> Tensor:
        """`rotary` replaces the scheme's own rotation; `last=n` gives the logits of n tokens."""
        x = self.embedding(tokens)
        if self.scheme.additive is not None:
            x = self.scheme.additive(x, positions)
        consecutive = sequence(tokens.shape[1], device=tokens.device)
        tables = self._tables(consecutive if positions is None else positions, rotary)
        for block in self.blocks:
            x = block(x, positions, tables)
        return self.head(self.norm(x if last is None else x[:, -last:]))

    def with_mask(self, mask: Mask) -> "Decoder":
        """A copy that attends under another mask than the causal one it was trained with."""
        model = copy.deepcopy(self)
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.mask = mask
        return model

    def _tables(self, positions: Tensor, rotary: RotaryEncoding | None) -> RotaryTables | None:
        if rotary is not None and self.scheme.rotary is None:
            raise ValueError(f"a model without a rotation cannot be read by {rotary}")
        rotary = self.scheme.rotary if rotary is None else rotary
        return None if rotary is None else rotary.tables(positions, positions)

    def _initialise(self, generator: torch.Generator) -> None:
        own = set(self.encoding.modules())  # an encoding may have layers of its own
        nn.init.normal_(self.embedding.weight, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module not in own:
                std = module.in_features**-0.5
                nn.init.normal_(module.weight, std=std, generator=generator)
        for block in self.blocks:  # deep sums start small
            assert isinstance(block, Block)
            block.attention.out.weight.data.mul_(0.5)
            block.down.weight.data.mul_(0.5)
