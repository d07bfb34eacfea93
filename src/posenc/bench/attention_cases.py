"""Attention under a scheme beside attention without position: causal, 8 heads of 64 channels."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.attention import KVCache, MultiHeadAttention, attention, linear_attention
from posenc.bench import peers
from posenc.bench.work import OURS, Case, Side, Target, Work
from posenc.bias import Alibi, Kerple, Sandwich, T5Bias
from posenc.contracts import Scheme
from posenc.relative import Shaw
from posenc.rotary import Rope
from posenc.rotate import rotate_qk

__all__ = ["ATTENTION"]

HEADS, HEAD_DIM = 8, 64
DENSE_UP_TO = 4096  # a dense mask of 16k tokens is 8.6 GB
SOFTMAX_UP_TO = 16384
NONE, DENSE = "no position", "dense mask"
Tensors = tuple[Tensor, ...]


def _qkv(length: int) -> Tensors:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, HEADS, length, HEAD_DIM, generator=draw) for _ in range(3))


def _schemes() -> dict[str, Callable[[], Scheme]]:
    return {
        "rope": lambda: Scheme(rotary=Rope(HEAD_DIM)),
        "alibi": lambda: Scheme(bias=Alibi(HEADS)),
        "t5": lambda: Scheme(bias=T5Bias(HEADS, bidirectional=False)),
        "kerple": lambda: Scheme(bias=Kerple(HEADS)),
        "sandwich": lambda: Scheme(bias=Sandwich(HEADS)),
        "shaw": lambda: Scheme(relative=Shaw(HEAD_DIM, max_distance=16)),
    }


def _seeded(name: str) -> Scheme:
    with _fixed_seed():
        return _schemes()[name]()


@contextmanager
def _fixed_seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True),)


def _under(scheme: Scheme, impl: str = "auto") -> Side:
    return lambda q, k, v: (attention(q, k, v, scheme=scheme, impl=impl),)  # pyright: ignore


def _dense(scheme: Scheme) -> Side:
    bias = scheme.bias
    assert bias is not None

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        positions = torch.arange(q.shape[2])
        mask = bias.dense(positions, positions, dtype=q.dtype)
        hidden = positions[:, None] < positions
        mask = mask.masked_fill(hidden, float("-inf"))
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)

    return run


def _biased(length: int, against: frozenset[str], *, name: str) -> Work:
    scheme = _seeded(name)
    sides = {OURS: _no_grad(_under(scheme)), NONE: _no_grad(_plain)}
    if length <= DENSE_UP_TO:
        sides[DENSE] = _no_grad(_dense(scheme))
    if "flex" in against and scheme.bias is not None:
        positions = torch.arange(length)
        sides["flex"] = _no_grad(
            peers.flex_attention(length, scheme.bias.score_mod(positions, positions))
        )
    return Work(_qkv(length), sides, _no_grad(_under(scheme, "reference")), 2e-5, frozenset({NONE}))


def _no_grad(side: Side) -> Side:
    return torch.no_grad()(side)


def _biased_training(length: int, against: frozenset[str], *, name: str) -> Work:
    """Gradients of q, k, v and of the bias's own parameters."""
    del against
    scheme = _seeded(name)
    inputs = tuple(x.requires_grad_() for x in _qkv(length))
    sides = {OURS: _under(scheme), DENSE: _dense(scheme), NONE: _plain}
    return Work(
        inputs,
        {
            side: _gradients(run, scheme if side != NONE else Scheme())
            for side, run in sides.items()
        },
        _gradients(_under(scheme, "reference"), scheme),
        1e-3,
        frozenset({NONE}),
    )


def _gradients(side: Side, scheme: Scheme) -> Side:
    parameters = [p for part in scheme.modules().values() for p in part.parameters()]

    def run(*inputs: Tensor) -> Tensors:
        with torch.enable_grad():
            inputs = tuple(x if x.requires_grad else x.requires_grad_() for x in inputs)
            (out,) = side(*inputs)
            return torch.autograd.grad(out, [*inputs, *parameters], torch.ones_like(out))

    return run


def _shaw(length: int, against: frozenset[str]) -> Work:
    del against
    scheme = _seeded("shaw")
    sides = {
        OURS: _no_grad(_under(scheme)),
        "gathered vectors": _no_grad(_gathered(scheme)),
        NONE: _no_grad(_plain),
    }
    return Work(_qkv(length), sides, _no_grad(_under(scheme, "reference")), 2e-5, frozenset({NONE}))


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
    scheme = _seeded("rope")

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        return (linear_attention(q, k, v, scheme=scheme),)

    sides = {OURS: _no_grad(ours)}
    if length <= SOFTMAX_UP_TO:
        sides["softmax"] = _no_grad(_under(scheme))
    return Work(_qkv(length), sides, _written_out, 1e-4, frozenset({"softmax"}))


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
    layers = {OURS: _seeded(name), NONE: Scheme()}
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
    layer, filled = _layer(scheme), KVCache()
    with torch.no_grad():
        for chunk in past.split(8192, 1):
            layer(chunk, cache=filled)

    def run(x: Tensor) -> Tensors:
        with torch.no_grad():  # the cache grows by a token a call: nothing beside what it holds
            return (layer(x, cache=filled),)

    return run


def _whole(scheme: Scheme, past: Tensor) -> Side:
    """The last token of the full forward pass, no cache."""

    def run(x: Tensor) -> Tensors:
        with torch.no_grad():
            layer = copy.deepcopy(_layer(scheme)).double()
            return (layer(torch.cat((past.double(), x), 1))[:, -1:],)

    return run


BIASED = (1024, 4096, 16384)
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
        ),
        gate_length=600,
        memory=True,
    ),
    *(
        Case(
            f"attention-{name}",
            f"Attention under {title}",
            BIASED,
            partial(_biased, name=name),
            (
                Target(NONE, 1.1, (1024,)),
                Target(NONE, 1.2, (4096,)),
                Target(NONE, 1.15, (16384,)),
            ),
            gate_length=600,
            memory=True,
        )
        for name, title in (
            ("t5", "T5's bias"),
            ("kerple", "KERPLE"),
            ("sandwich", "Sandwich"),
        )
    ),
    *(
        Case(
            f"attention-{name}-training",
            f"Attention under {title}, forward and backward",
            lengths,
            partial(_biased_training, name=name),
            (Target(DENSE, 1 / 3, (4096,)),),
            gate_length=600,
            memory=True,
        )
        for name, title, lengths in (
            ("t5", "T5's bias", (1024, 4096)),
            ("kerple", "KERPLE", (4096,)),
        )
    ),
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
    ),
    *(
        Case(
            f"decode-{name}",
            f"One token behind a cache of 32k: {name}",
            (32768,),
            partial(_decode, name=name),
            (Target(NONE, 1.1),),
        )
        for name in ("rope", "alibi", "t5", "shaw")
    ),
)
