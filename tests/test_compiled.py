"""Compiled models: one graph, made once for all lengths and positions, and the numbers of eager."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from posenc import (
    Alibi,
    MultiHeadAttention,
    Rope,
    Scheme,
    T5Bias,
    Yarn,
    attention,
    causal,
    linear_attention,
    rotate_qk,
    same_segment,
    window,
)
from posenc.masks import Mask
from posenc.positions import sequence
from support import DIM, HEAD_DIM, HEADS, assert_roundings, heads, random

YARN = Rope(HEAD_DIM, scaling=Yarn(factor=4.0, original_length=16))
SCHEMES: dict[str, tuple[Callable[[], Scheme], Mask | None]] = {
    "none": (Scheme, causal),
    "rope": (lambda: Scheme(rotary=Rope(HEAD_DIM)), causal),
    "adjacent": (lambda: Scheme(rotary=Rope(HEAD_DIM, pairing="adjacent")), causal),
    "yarn": (lambda: Scheme(rotary=YARN), causal),
    "yarn-window": (lambda: Scheme(rotary=YARN), causal & window(5)),
    "alibi": (lambda: Scheme(bias=Alibi(HEADS)), causal),
    "alibi-window": (lambda: Scheme(bias=Alibi(HEADS)), causal & window(5)),
    "t5": (lambda: Scheme(bias=learned(T5Bias(HEADS, num_buckets=8, max_distance=16))), causal),
    "t5-both-ways": (lambda: Scheme(bias=learned(T5Bias(HEADS))), None),
    "rope-t5-window": (
        lambda: Scheme(rotary=YARN, bias=learned(T5Bias(HEADS))),
        causal & window(5),
    ),
}
LENGTHS = (16, 23, 40, 9)
every_scheme = pytest.mark.parametrize("name", SCHEMES)


def learned(bias: T5Bias) -> T5Bias:
    for parameter in bias.parameters():
        parameter.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    return bias


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Graphs of other tests are neither used nor kept."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(run: Any, *, backend: str = "eager") -> tuple[Any, CompileCounterWithBackend]:
    """`run` as one graph for every length, and how often it was compiled."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(run, backend=counter, fullgraph=True, dynamic=True), counter


def places(length: int) -> Iterator[Tensor]:
    """Positions of a row: from 0, later, and with a gap."""
    at = sequence(length)
    yield from (at, at + 1000, at + 3 * (at > length // 2))


@every_scheme
def test_attention_is_compiled_once_for_all_lengths(name: str) -> None:
    made, mask = SCHEMES[name]
    scheme = made()
    run, counter = compiled(attention)
    with torch.no_grad():
        for length in LENGTHS:
            q, k, v = heads(length)
            out = run(q, k, v, scheme=scheme, mask=mask)
            assert_roundings(out, attention(q, k, v, scheme=scheme, mask=mask), 16)
    assert counter.frame_count == 1


@every_scheme
def test_a_layer_is_compiled_once_for_all_lengths_and_positions(name: str) -> None:
    made, mask = SCHEMES[name]
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, HEADS, num_kv_heads=2, scheme=made(), mask=mask).double()
    run, counter = compiled(layer)
    with torch.no_grad():
        for length in LENGTHS:
            x = random(2, length, DIM)
            for at in places(length):
                assert_roundings(run(x, at), layer(x, at), 16)
    assert counter.frame_count == 1


@every_scheme
def test_a_step_of_decoding_is_compiled_once_for_all_keys(name: str) -> None:
    made, mask = SCHEMES[name]
    scheme = made()
    run, counter = compiled(attention)
    with torch.no_grad():
        for length in LENGTHS:
            q, k, v = heads(length, num_queries=1)
            at: dict[str, Any] = {
                "q_pos": sequence(1, start=length + 6),
                "k_pos": sequence(length, start=7),
            }
            out = run(q, k, v, scheme=scheme, mask=mask, **at)
            assert_roundings(out, attention(q, k, v, scheme=scheme, mask=mask, **at), 16)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["rope", "yarn", "alibi", "t5", "yarn-window"])
def test_a_gradient_is_compiled_once_for_all_lengths(name: str) -> None:
    made, mask = SCHEMES[name]
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, HEADS, scheme=made(), mask=mask).double()
    run, counter = compiled(layer, backend="aot_eager")
    counts = []
    for length in LENGTHS:
        x = random(2, length, DIM).requires_grad_()
        wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
        mine = torch.autograd.grad(run(x, sequence(length)).square().sum(), wanted)
        right = torch.autograd.grad(layer(x, sequence(length)).square().sum(), wanted)
        for one, other in zip(mine, right, strict=True):
            assert_roundings(one, other, 256)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * len(LENGTHS)


SEEN: dict[str, Callable[[Tensor], Mask | None]] = {
    "all": lambda ids: None,
    "causal": lambda ids: causal,
    "sliding": lambda ids: causal & window(70),
    "window": lambda ids: window(5),
    "documents": same_segment,
    "causal-documents": lambda ids: causal & same_segment(ids),
}
LONGER = (16, 150, 23, 300)  # within one chunk, and over several


def summed(seen: str) -> Callable[..., Tensor]:
    """Linear attention under a mask, with rotation."""

    def run(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
        return linear_attention(q, k, v, scheme=Scheme(rotary=YARN), mask=SEEN[seen](ids))

    return run


@pytest.mark.parametrize("seen", SEEN)
def test_linear_attention_is_compiled_once_for_all_lengths(seen: str) -> None:
    run, counter = compiled(summed(seen))
    with torch.no_grad():
        for length in LONGER:
            given = (*heads(length, num_kv_heads=2), sequence(length) // 13)
            assert_roundings(run(*given), summed(seen)(*given), 64)
    assert counter.frame_count == 1


def test_a_gradient_of_linear_attention_is_compiled_once_for_all_lengths() -> None:
    run, counter = compiled(summed("causal"), backend="aot_eager")
    counts = []
    for length in LONGER[:3]:
        ids = sequence(length) // 13
        given = [x.requires_grad_() for x in heads(length)]
        mine = torch.autograd.grad(run(*given, ids).square().sum(), given)
        right = torch.autograd.grad(summed("causal")(*given, ids).square().sum(), given)
        for one, other in zip(mine, right, strict=True):
            assert_roundings(one, other, 256)
        counts.append(counter.frame_count)
    assert counts == counts[:1] * len(counts)


def test_a_step_of_linear_attention_is_compiled_once_for_all_keys() -> None:
    run, counter = compiled(summed("causal"))
    with torch.no_grad():
        for length in LONGER:
            given = (*heads(length, num_queries=1), sequence(length))
            assert_roundings(run(*given), summed("causal")(*given), 64)
    assert counter.frame_count == 1


@pytest.mark.parametrize("rope", [Rope(HEAD_DIM), Rope(HEAD_DIM, pairing="adjacent"), YARN])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_rotation_is_compiled_once_for_all_lengths_and_positions(
    rope: Rope, inplace: bool
) -> None:
    def turn(q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_qk(q, k, rope.tables(at, at), inplace=inplace)

    run, counter = compiled(turn)
    with torch.no_grad():
        for length in LENGTHS:
            q, k, _ = heads(length, num_kv_heads=2)
            for at in places(length):
                made, right = run(q.clone(), k.clone(), at), turn(q.clone(), k.clone(), at)
                for one, other in zip(made, right, strict=True):
                    assert_roundings(one, other, 4)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["yarn-window", "alibi", "t5"])
def test_a_second_length_is_the_last_that_compiles_by_default(name: str) -> None:
    """`torch.compile` without `dynamic=`: the first length as a number, from the second a symbol."""
    made, mask = SCHEMES[name]
    torch.manual_seed(0)
    layer = MultiHeadAttention(DIM, HEADS, scheme=made(), mask=mask).double()
    counter = CompileCounterWithBackend("eager")
    run = torch.compile(layer, backend=counter, fullgraph=True)
    with torch.no_grad():
        for length in (*LENGTHS, 31):
            x = random(2, length, DIM)
            for at in places(length):
                assert_roundings(run(x, at), layer(x, at), 16)
    assert counter.frame_count == 2
