"""What several test files share: small models of every registry entry, and two tolerances."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posenc import Fire, KVCache, MultiHeadAttention, Scheme, Table, positions, rotate, rotate_qk
from posenc.contracts import Block, axes_of, rows
from posenc.kernels import native, triton_rotary
from posenc.masks import Mask
from posenc.registry import ENCODINGS, Shape
from posenc.rotate import RotateImpl

DIM, HEADS, HEAD_DIM = 32, 4, 8
KERNELS: dict[str, Any] = {"native": native, "triton": triton_rotary}
NAMES = tuple(ENCODINGS)
CAUSAL = tuple(name for name in NAMES if ENCODINGS[name].mask is not None)
BIASES = tuple(name for name in NAMES if ENCODINGS[name].build(Shape(DIM, HEADS, 24)).bias)


def eps(dtype: torch.dtype) -> float:
    """The distance from 1 to the next number: one rounding moves a value by half of it."""
    return torch.finfo(dtype).eps


def assert_roundings(
    actual: Tensor, exact: Tensor, roundings: float = 2, *, size: Tensor | float | None = None
) -> None:
    """`actual` is `exact` up to so many roundings of its own dtype, element by element.

    `size` is the magnitude of what was summed (an element may be a small difference of large
    terms); by default the largest of `exact`.
    """
    assert actual.shape == exact.shape, f"shapes {actual.shape} and {exact.shape}"
    assert actual.isfinite().all(), "not finite"
    exact = exact.double()
    terms = exact.abs().max() if size is None else size
    limit = roundings * eps(actual.dtype) * torch.maximum(exact.abs(), torch.as_tensor(terms))
    error = (actual.double() - exact).abs()
    worst = (error - limit).max()
    assert worst <= 0, f"off by {error.max():.3g} where {limit.max():.3g} is allowed"


def assert_as_good_as(
    plain: Tensor, actual: Tensor, exact: Tensor, *, size: Tensor | float = 0.0
) -> None:
    """At most twice the error of a plain evaluation in the same dtype, plus one rounding.

    `size` is the magnitude of what was summed, where that may cancel to less (gradients).
    """
    assert actual.dtype == plain.dtype, f"dtype {actual.dtype}, expected {plain.dtype}"
    assert actual.shape == exact.shape, f"shapes {actual.shape} and {exact.shape}"
    assert actual.isfinite().all(), "not finite"
    exact = exact.double()
    plain_error = (plain.double() - exact).abs().max()
    limit = 2 * plain_error + eps(actual.dtype) * exact.abs().clamp(min=size)
    error = (actual.double() - exact).abs()
    assert (error <= limit).all(), f"off by {error.max():.3g}, a plain one by {plain_error:.3g}"


def build(name: str, *, length: int = 24, seed: int = 0) -> Scheme:
    """A registry entry for heads of 8 channels, its parameters far from zero and from each other."""
    scheme = ENCODINGS[name].build(Shape(DIM, HEADS, length))
    generator = torch.Generator().manual_seed(seed)
    for part in scheme.modules().values():
        for parameter in part.parameters():
            if parameter.ndim == 0:
                parameter.data.fill_(1.3)  # a learned scale
            else:
                parameter.data.normal_(std=0.5, generator=generator)
    if isinstance(scheme.bias, Fire):  # its products round as its parameters do, by their shape
        scheme.bias.double()
    return scheme


def mask_of(name: str) -> Mask | None:
    return ENCODINGS[name].mask


def positions_of(name: str, length: int) -> Tensor:
    """Positions of a whole sequence in attention: 0 … T-1, or the cells of a window."""
    made = ENCODINGS[name].positions
    if made is None or ENCODINGS[name].build(Shape(DIM, HEADS, length)).num_axes == 1:
        return positions.sequence(length)
    return made(Shape(DIM, HEADS, length))


def cells_of(name: str) -> Tensor | None:
    """Coordinates that embeddings are given, of 24 places in a row; None: the places themselves."""
    made = ENCODINGS[name].positions
    if made is None or axes_of(build(name).additive) == 1:
        return None
    return made(Shape(DIM, HEADS, 24))


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def every_rotation(x: Tensor, table: Table) -> Iterator[tuple[RotateImpl, Tensor]]:
    """`x` rotated by every implementation that takes it here, each named."""
    for impl in get_args(RotateImpl):
        if impl not in ("native", "triton") or KERNELS[impl].fits(x, table):
            yield impl, rotate(x, table, impl=impl)


def heads(
    num_tokens: int,
    *,
    batch: int = 2,
    num_kv_heads: int = HEADS,
    dtype: torch.dtype = torch.float64,
    num_queries: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v `[B, H, T, 8]`."""
    q = random(batch, HEADS, num_queries or num_tokens, HEAD_DIM, seed=seed, dtype=dtype)
    k = random(batch, num_kv_heads, num_tokens, HEAD_DIM, seed=seed + 1, dtype=dtype)
    v = random(batch, num_kv_heads, num_tokens, HEAD_DIM, seed=seed + 2, dtype=dtype)
    return q, k, v


def plain_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scheme: Scheme,
    k_pos: Tensor,
    mask: Mask | None,
    q_pos: Tensor | None = None,
) -> Tensor:
    """Textbook attention, every step in the dtype of the queries: the measure of an error."""
    num_queries, group = q.shape[2], q.shape[1] // k.shape[1]
    q_pos = k_pos[-num_queries:] if q_pos is None else q_pos
    if scheme.rotary is not None:
        tables = scheme.rotary.tables(q_pos, k_pos)
        q, k = rotate_qk(q, k, tables)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits, scale, relative = q @ k.transpose(-1, -2), q.shape[-1] ** -0.5, scheme.relative
    terms = torch.zeros_like(logits)
    if relative is not None:
        terms = relative.key_logits(q, k, Block(q_pos, k_pos, scale=scale))
    is_scaled = relative is None or relative.scaled
    logits = (logits + terms) * scale if is_scaled else logits * scale + terms
    if scheme.bias is not None:
        logits = logits + scheme.bias.dense(q_pos, k_pos).to(q.dtype)
    if mask is not None:
        hidden = ~mask.fitted(num_queries, k.shape[2], q.shape[0]).allowed(
            rows(q_pos, scheme.num_axes), rows(k_pos, scheme.num_axes)
        )
        logits = logits.masked_fill(hidden[:, None], float("-inf"))
    weights = logits.softmax(-1)
    out = weights @ v
    extra = None
    if scheme.relative is not None:
        extra = scheme.relative.value_sum(weights, Block(q_pos, k_pos))
    return out if extra is None else out + extra


@dataclass
class Layer:
    """One layer of a model: the additive part on the embeddings, then attention."""

    scheme: Scheme
    attention: MultiHeadAttention
    cells: Tensor | None = None  # coordinates of embeddings, by their place in a row

    def __call__(
        self,
        x: Tensor,
        at: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        if self.scheme.additive is not None:
            if at is None:
                at = (cache or KVCache()).next_positions(x.shape[1])
            x = self.scheme.additive(x, at if self.cells is None else self.cells[at])
        return self.attention(x, at, segments=segments, cache=cache)


def layer(name: str, *, length: int = 24, num_kv_heads: int = 2) -> Layer:
    """A float64 layer of a registry entry, with grouped keys."""
    torch.manual_seed(0)
    scheme = build(name, length=length)
    attention = MultiHeadAttention(
        DIM, HEADS, num_kv_heads=num_kv_heads, scheme=scheme, mask=mask_of(name)
    )
    for module in (attention, *scheme.modules().values()):
        module.double()
    return Layer(scheme, attention, cells_of(name))


def chunks(total: int, sizes: list[int]) -> Iterator[slice]:
    """`total` cut into pieces of the given sizes, the last one as long as needed."""
    start = 0
    for size in [*sizes, total]:
        stop = min(start + size, total)
        if start < stop:
            yield slice(start, stop)
        start = stop


class Allocations(TorchDispatchMode):
    """Counts what every operation makes: the largest tensor, all tensors, and the live peak.

    >>> with Allocations() as seen:
    ...     attention(q, k, v)
    >>> seen.largest                                  # elements of the largest tensor made
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.total = self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {self._address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and self._address(x) not in given | self._known:
                self._count(x)
        return out

    @staticmethod
    def _address(x: Tensor) -> int:
        return x.untyped_storage()._cdata

    def _count(self, x: Tensor) -> None:
        storage, address = x.untyped_storage(), self._address(x)
        elements = storage.nbytes() // x.element_size()
        self.largest, self.total = max(self.largest, elements), self.total + elements
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        self._known.add(address)
        finalize(storage, self._release, address, storage.nbytes())

    def _release(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.live -= nbytes
