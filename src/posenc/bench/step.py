"""One attention layer's work under a scheme: what is timed, and the gate before timing."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from posenc.attention import AttentionImpl, attention
from posenc.contracts import Block, RelativeKeyValue, Scheme, axes_of
from posenc.positions import sequence
from posenc.registry import Encoding, Shape
from posenc.rotate import rotate_qk

__all__ = ["Size", "Step", "gate", "own_work"]

TOLERANCE = 1e-4  # float32 path against float64 reference, on values of size 1
BLOCK_ELEMENTS = 1 << 24  # as in attention: biases and weights exist for a block of queries at once
NOPE = Scheme()


@dataclass(frozen=True)
class Size:
    """The attention layer that every row is measured in."""

    batch_size: int = 8
    length: int = 512
    dim: int = 768
    num_heads: int = 12

    @property
    def shape(self) -> Shape:
        return Shape(self.dim, self.num_heads, self.length)

    def for_gate(self) -> "Size":
        """Same heads, one short sequence: what the float64 reference can afford."""
        return Size(1, min(self.length, 64), self.dim, self.num_heads)

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Step:
    """Embeddings with positions (where a scheme adds any), then attention under the scheme."""

    def __init__(self, entry: Encoding, size: Size, scheme: Scheme | None = None) -> None:
        self.scheme = entry.build(size.shape) if scheme is None else scheme
        self.size, self.mask = size, entry.mask
        has_axes = entry.positions is not None and self.scheme is not NOPE
        cells = entry.positions(size.shape) if has_axes and entry.positions else None
        self.positions = cells if self.scheme.num_axes > 1 else None  # of queries and keys
        self.cells = cells if axes_of(self.scheme.additive) > 1 else None  # of embeddings
        draw = torch.Generator().manual_seed(0)
        heads = (size.batch_size, size.num_heads, size.length, size.shape.head_dim)
        x = torch.randn(size.batch_size, size.length, size.dim, generator=draw)
        self.x = x.requires_grad_()  # [B, T, C]
        self.qkv = [torch.randn(heads, generator=draw).requires_grad_() for _ in range(3)]

    @classmethod
    def without_encoding(cls, entry: Encoding, size: Size) -> "Step":
        """The baseline: the same tensors and the same mask, no position anywhere."""
        return cls(entry, size, NOPE)

    def __call__(self, impl: AttentionImpl = "auto") -> list[Tensor]:
        added = [] if self.scheme.additive is None else [self.scheme.additive(self.x, self.cells)]
        pos = self.positions
        out = attention(
            *self.qkv, scheme=self.scheme, q_pos=pos, k_pos=pos, mask=self.mask, impl=impl
        )
        return [*added, out]

    @property
    def pos(self) -> Tensor:
        """Positions written out: the default ones are 0 … T-1."""
        return sequence(self.size.length) if self.positions is None else self.positions

    def forward(self) -> list[Tensor]:
        """Without a graph, as in inference."""
        with torch.no_grad():
            return self()

    def training(self) -> tuple[Tensor, ...]:
        """Forward and backward: gradients of what came in and of what learns."""
        outputs = self()
        embeddings = [] if self.scheme.additive is None else [self.x]
        inputs = [*self.qkv, *embeddings, *self.parameters()]
        return torch.autograd.grad(outputs, inputs, [torch.ones_like(out) for out in outputs])

    def parameters(self) -> list[torch.nn.Parameter]:
        """Everything in the scheme that learns."""
        parts = self.scheme.modules().values()
        return [p for part in parts for p in part.parameters() if p.requires_grad]


def gate(entry: Encoding, size: Size) -> str | None:
    """Why a row must not be measured: its fast path differs from the float64 reference."""
    step = Step(entry, size)
    with torch.no_grad():
        fast, right = step(impl="sdpa")[-1], step(impl="reference")[-1]
    worst = float((fast - right).abs().max())
    if worst <= TOLERANCE:
        return None
    return (
        f"impl='sdpa' differs from impl='reference' by {worst:.1e} at {size.as_dict()}; "
        f"at most {TOLERANCE:.0e} is expected"
    )


def own_work(step: Step) -> list[Callable[[], object]]:
    """The encoding's work alone, one call for each part of the scheme: what tutorials time.

    Adding to embeddings; making tables and rotating q and k; making the bias, once for each distance
    where nothing else matters; meeting the relative vectors on both sides of the softmax.
    """
    scheme, size, pos, (q, k, _) = step.scheme, step.size, step.pos, step.qkv
    works: list[Callable[[], object]] = []
    if (additive := scheme.additive) is not None:
        works.append(lambda: additive(step.x, step.cells))
    if (rotary := scheme.rotary) is not None:
        works.append(lambda: rotate_qk(q, k, rotary.tables(pos, pos)))
    if (bias := scheme.bias) is not None and bias.by_distance:
        works.append(lambda: bias.per_distance(pos))
    elif bias is not None:
        works.append(lambda: [bias.dense(pos[rows], pos) for rows in _blocks(size, batch_size=1)])
    if (relative := scheme.relative) is not None:
        works.append(lambda: _meet(relative, step, pos))
    return works


def _meet(relative: RelativeKeyValue, step: Step, pos: Tensor) -> None:
    q, k, _ = step.qkv
    for rows in _blocks(step.size, step.size.batch_size):
        block = Block(pos[rows], pos, first=(rows.start, 0))
        logits = relative.key_logits(q[:, :, rows], k, block)
        relative.value_sum(logits, block)


def _blocks(size: Size, batch_size: int) -> Iterator[slice]:
    num_rows = max(1, BLOCK_ELEMENTS // (batch_size * size.num_heads * size.length))
    for start in range(0, size.length, num_rows):
        yield slice(start, min(start + num_rows, size.length))
