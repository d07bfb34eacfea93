"""Attention under a scheme beside attention without position: causal, 8 heads of 64 channels."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import (
    AttentionImpl,
    KVCache,
    MultiHeadAttention,
    attention,
    linear_attention,
)
from posenc.bench import peers
from posenc.bench.work import OURS, Case, Side, Target, Work
from posenc.bias import Alibi, Fire, Kerple, Sandwich, SwinBias, T5Bias
from posenc.contracts import LogitBias, Scheme
from posenc.positions import grid
from posenc.query_scale import LogScale
from posenc.relative import Cope, Deberta, Shaw
from posenc.rotary import Rope, XPos
from posenc.rotate import rotate, rotate_qk

__all__ = [
    "ATTENTION",
    "DENSE",
    "NONE",
    "dense",
    "gradients",
    "no_grad",
    "plain",
    "qkv",
    "seeded",
    "under",
]

HEADS, HEAD_DIM = 8, 64
DENSE_UP_TO = 4096  # a dense mask of 16k tokens is 8.6 GB
SOFTMAX_UP_TO = 16384
FLEX_UP_TO = 16384  # at 64k one call takes minutes
NONE, DENSE = "no position", "dense mask"
Tensors = tuple[Tensor, ...]


def qkv(
    length: int, *, batch: int = 1, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Tensors:
    """Queries, keys and values `[B, 8, T, 64]`."""
    draw, shape = torch.Generator().manual_seed(0), (batch, HEADS, length, HEAD_DIM)
    return tuple(torch.randn(shape, generator=draw).to(device, dtype) for _ in range(3))


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "rope": lambda: Scheme(rotary=Rope(HEAD_DIM)),
    "xpos": lambda: Scheme(rotary=XPos(Rope(HEAD_DIM), origin=16_384)),  # within reach to 32k
    "alibi": lambda: Scheme(bias=Alibi(HEADS)),
    "t5": lambda: Scheme(bias=T5Bias(HEADS, bidirectional=False)),
    "kerple": lambda: Scheme(bias=Kerple(HEADS)),
    "sandwich": lambda: Scheme(bias=Sandwich(HEADS)),
    "fire": lambda: Scheme(bias=Fire(HEADS)),
    "shaw": lambda: Scheme(relative=Shaw(HEAD_DIM, max_distance=16)),
    "deberta": lambda: Scheme(relative=Deberta(HEADS, HEAD_DIM)),
    "cope": lambda: Scheme(relative=Cope(HEAD_DIM, max_positions=64)),
    "log-scale": lambda: Scheme(rotary=Rope(HEAD_DIM), query_scale=LogScale(4096)),
    "rope-alibi": lambda: Scheme(rotary=Rope(HEAD_DIM), bias=Alibi(HEADS)),
}


def seeded(name: str, device: str = "cpu") -> Scheme:
    """The scheme, its parameters drawn from a fixed seed."""
    with _fixed_seed():
        scheme = SCHEMES[name]()
    for part in scheme.modules().values():
        part.to(device)
    return scheme


@contextmanager
def _fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Causal attention without position."""
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True),)


def under(scheme: Scheme, impl: AttentionImpl = "auto") -> Side:
    """Causal attention under a scheme."""
    return lambda q, k, v: (attention(q, k, v, scheme=scheme, impl=impl),)


def dense(scheme: Scheme) -> Side:
    """The bias written out for every pair of tokens, and the causal mask with it."""
    bias = scheme.bias
    assert bias is not None

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        positions = torch.arange(q.shape[2], device=q.device)
        mask = bias.dense(positions, positions, dtype=q.dtype)
        hidden = positions[:, None] < positions
        mask = mask.masked_fill(hidden, float("-inf"))
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)

    return run


def _biased(
    length: int, against: frozenset[str], *, name: str, flex_up_to: int = FLEX_UP_TO
) -> Work:
    scheme = seeded(name)
    sides = {OURS: no_grad(under(scheme)), NONE: no_grad(plain)}
    if length <= DENSE_UP_TO:
        sides[DENSE] = no_grad(dense(scheme))
    if "flex" in against and scheme.bias is not None and length <= flex_up_to:
        sides["flex"] = no_grad(peers.flex_attention(length, _looked_up(scheme.bias, length)))
    return Work(qkv(length), sides, no_grad(under(scheme, "reference")), 2e-5, frozenset({NONE}))


def _looked_up(bias: LogitBias, length: int) -> Callable[..., Tensor]:
    """As a user of FlexAttention would write a bias of distance: an entry of a vector per head."""
    with torch.no_grad():
        vector = bias.per_distance(torch.arange(1 - length, length))
    last = torch.full((), length - 1)  # as a number it is compiled into C++ that is none
    return lambda score, b, h, q, k: score + vector[h, q - k + last]


def no_grad(side: Side) -> Side:
    """As in inference."""
    return torch.no_grad()(side)


def _biased_training(length: int, against: frozenset[str], *, name: str) -> Work:
    """Gradients of q, k, v and of the bias's own parameters."""
    del against
    scheme = seeded(name)
    inputs = tuple(x.requires_grad_() for x in qkv(length))
    sides = {OURS: under(scheme), DENSE: dense(scheme), NONE: plain}
    return Work(
        inputs,
        {side: gradients(run, scheme if side != NONE else Scheme()) for side, run in sides.items()},
        gradients(under(scheme, "reference"), scheme),
        1e-3,
        frozenset({NONE}),
    )


def gradients(side: Side, scheme: Scheme) -> Side:
    """Those of q, k, v and of all that the scheme learns."""
    parameters = [p for part in scheme.modules().values() for p in part.parameters()]

    def run(*inputs: Tensor) -> Tensors:
        with torch.enable_grad():
            inputs = tuple(x if x.requires_grad else x.requires_grad_() for x in inputs)
            (out,) = side(*inputs)
            return torch.autograd.grad(out, [*inputs, *parameters], torch.ones_like(out))

    return run


def _shaw(length: int, against: frozenset[str]) -> Work:
    del against
    scheme = seeded("shaw")
    sides = {
        OURS: no_grad(under(scheme)),
        "gathered vectors": no_grad(_gathered(scheme)),
        NONE: no_grad(plain),
    }
    return Work(qkv(length), sides, no_grad(under(scheme, "reference")), 2e-5, frozenset({NONE}))


WINDOW, WINDOWS = 8, 64  # tokens along a side of a window, windows of an image


def _swin(length: int, against: frozenset[str]) -> Work:
    """The windows of one image, `[64, 8, 64, 64]`, each token of a window seeing all of it."""
    del against
    side = math.isqrt(length)
    with _fixed_seed():
        scheme = Scheme(bias=SwinBias(HEADS, window=side))
    assert scheme.bias is not None
    cells = grid(side, side)
    draw = torch.Generator().manual_seed(0)
    shape = (WINDOWS, HEADS, length, HEAD_DIM)
    inputs = tuple(torch.randn(shape, generator=draw) for _ in range(3))

    def run(impl: AttentionImpl) -> Side:
        options = {"scheme": scheme, "q_pos": cells, "k_pos": cells, "mask": None}
        return lambda q, k, v: (attention(q, k, v, impl=impl, **options),)

    def indexed(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        assert scheme.bias is not None
        mask = scheme.bias.dense(cells, cells, dtype=q.dtype)
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)

    sides: dict[str, Side] = {
        OURS: run("auto"),
        DENSE: indexed,
        NONE: lambda q, k, v: (F.scaled_dot_product_attention(q, k, v),),
    }
    sides = {name: no_grad(side) for name, side in sides.items()}
    return Work(inputs, sides, no_grad(run("reference")), 2e-5, frozenset({NONE}))


def _gathered(scheme: Scheme) -> Side:
    """The T x T x d form of Shaw et al.: a vector for each pair of tokens."""
    shaw = scheme.relative
    assert isinstance(shaw, Shaw) and shaw.values is not None
    tables, reach = (shaw.keys, shaw.values), shaw.max_distance
    assert isinstance(reach, int)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        positions = torch.arange(q.shape[2])
        relative = positions - positions[:, None]
        index = relative.clamp(-reach, reach) + reach
        keys, values = (table[index].to(q.dtype) for table in tables)  # [T, T, D] each
        logits = (q @ k.transpose(-1, -2) + torch.einsum("bhqd,qkd->bhqk", q, keys)) * (
            q.shape[-1] ** -0.5
        )
        weights = logits.masked_fill(relative > 0, float("-inf")).softmax(-1)
        return (weights @ v + torch.einsum("bhqk,qkd->bhqd", weights, values),)

    return run


def _linear(length: int, against: frozenset[str]) -> Work:
    del against
    scheme = seeded("rope")

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        return (linear_attention(q, k, v, scheme=scheme),)

    sides = {OURS: no_grad(ours)}
    if length <= SOFTMAX_UP_TO:
        sides["softmax"] = no_grad(under(scheme))
    return Work(qkv(length), sides, _written_out, 1e-4, frozenset({"softmax"}))


def _written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The definition of linear attention, every pair of tokens weighed."""
    positions = torch.arange(q.shape[2])
    q, k = F.elu(q) + 1, F.elu(k) + 1
    tables = Rope(HEAD_DIM).tables(positions, positions, dtype=q.dtype)
    turned_q, turned_k = rotate_qk(q, k, tables, impl="reference")
    seen = positions[:, None] >= positions
    total = ((q @ k.transpose(-1, -2)) * seen).sum(-1, keepdim=True)
    return (((turned_q @ turned_k.transpose(-1, -2)) * seen) @ v / total,)


def _decode(length: int, against: frozenset[str], *, name: str) -> Work:
    """One new token behind a cache of `length`, through a whole layer with its projections."""
    del against
    layers = {OURS: seeded(name), NONE: Scheme()}
    draw = torch.Generator().manual_seed(0)
    width = HEADS * HEAD_DIM
    x, past = (torch.randn(1, n, width, generator=draw) for n in (1, length))
    sides = {side: _step(scheme, past) for side, scheme in layers.items()}
    return Work((x,), sides, _whole(layers[OURS], past), 1e-4, frozenset({NONE}))


def _layer(scheme: Scheme) -> MultiHeadAttention:
    with _fixed_seed():
        layer = MultiHeadAttention(HEADS * HEAD_DIM, HEADS, scheme=scheme)
    return layer.eval().requires_grad_(False)


def _step(scheme: Scheme, past: Tensor) -> Side:
    layer = _layer(scheme)
    filled = _filled(layer, past)

    def run(x: Tensor) -> Tensors:
        with torch.no_grad():  # the cache grows by a token a call: nothing beside what it holds
            return (layer(x, cache=filled),)

    return run


def _filled(layer: MultiHeadAttention, past: Tensor) -> KVCache:
    """What attending over the past would leave behind, without attending."""
    cache, at = KVCache(), torch.arange(past.shape[1])[None]
    k, v = (
        project(past).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (layer.k, layer.v)
    )
    encoding = layer.scheme.rotary
    if encoding is not None:
        made = encoding.tables(at, at)
        k, encoding = rotate(k, made.k), made.encoding
    cache.append(k, v, at, None, encoding)
    return cache


def _whole(scheme: Scheme, past: Tensor) -> Side:
    """The last token of the full forward pass, no cache."""

    def run(x: Tensor) -> Tensors:
        with torch.no_grad():
            layer = copy.deepcopy(_layer(scheme)).double()
            return (layer(torch.cat((past.double(), x), 1))[:, -1:],)

    return run


BIASED = (1024, 4096, 16384)
BESIDE_OUTPUT = 64e6  # bytes of memory that a bias by distance may take at 16k tokens
LIMITS = {16384: BESIDE_OUTPUT + 4 * HEADS * HEAD_DIM * 16384}
TITLES = {
    "t5": "T5's bias",
    "kerple": "KERPLE",
    "sandwich": "Sandwich",
    "alibi": "ALiBi",
}
FLEX = Target("flex", 1.0)


def _bias_cases() -> Iterator[Case]:
    for name in ("t5", "kerple", "sandwich"):
        flex_up_to = FLEX_UP_TO if name == "t5" else 4096  # the same kernel, compiled for minutes
        yield Case(
            f"attention-{name}",
            f"Attention under {TITLES[name]}",
            BIASED,
            partial(_biased, name=name, flex_up_to=flex_up_to),
            (
                Target(NONE, 1.1, (1024,)),
                Target(NONE, 1.2, (4096,)),
                Target(NONE, 1.15, (16384,)),
                FLEX,
            ),
            gate_length=600,
            memory=True,
            peak_limits=LIMITS,
        )


def _training_cases() -> Iterator[Case]:
    for name, lengths in (("t5", (1024, 4096)), ("kerple", (4096,))):
        yield Case(
            f"attention-{name}-training",
            f"Attention under {TITLES[name]}, forward and backward",
            lengths,
            partial(_biased_training, name=name),
            (Target(DENSE, 1 / 3, (4096,)), Target(DENSE, 1 / 3, (4096,), "peak_bytes")),
            gate_length=600,
            memory=True,
        )


ATTENTION: tuple[Case, ...] = (
    Case(
        "attention-alibi",
        "Attention under ALiBi",
        (*BIASED, 65536),
        partial(_biased, name="alibi"),
        (
            Target(NONE, 1.05, (1024,)),
            Target(NONE, 0.85, (4096,)),
            Target(NONE, 0.5, (16384,)),
            Target(NONE, 0.3, (65536,)),
            FLEX,
        ),
        gate_length=600,
        memory=True,
        peak_limits=LIMITS,
    ),
    *_bias_cases(),
    Case(
        "attention-swin",
        "Attention in 64 windows of 8 x 8 under Swin's bias",
        (WINDOW**2,),
        _swin,
        (Target(NONE, 1.1), Target(DENSE, 1.1)),
        gate_length=WINDOW**2,
    ),
    *_training_cases(),
    Case(
        "attention-shaw",
        "Attention under Shaw's vectors",
        (512, 2048),
        _shaw,
        (Target("gathered vectors", 1 / 5, (2048,)),),
        gate_length=600,
        memory=True,
    ),
    Case(
        "linear-attention",
        "Linear attention with rotary",
        (4096, 8192, 16384, 32768, 65536),
        _linear,
        (Target("softmax", 1.0, (8192, 16384)),),
        gate_length=600,
        memory=True,
        per_token=1.15,
    ),
    *(
        Case(
            f"decode-{name}",
            f"One token behind a cache of 32k: {name}",
            (32768,),
            partial(_decode, name=name),
            (Target(NONE, 1.1),),
        )
        for name in SCHEMES
    ),
)
