"""Keys that a falling bias makes invisible are not read, and nothing that counts is lost."""

import math

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from posenc import Alibi, Mask, Scheme, T5Bias, attention, causal, window
from posenc.attention import distance
from posenc.attention.problem import Problem, checked
from support import random

LENGTH = 1500


def problem_of(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> Problem:
    return checked(q, k, v, scheme, None, None, causal, None)


def firsts_of(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> list[list[int]]:
    problem = problem_of(q, k, v, scheme)
    blocks = distance._blocks(q.shape[2], 256)
    farthest = distance.farthest_distances(problem, distance.distance_vector(problem), blocks)
    return distance.first_keys(problem, farthest, blocks)


def qkv(kind: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (random(1, 4, LENGTH, 16, seed=seed, dtype=torch.float32) for seed in range(3))
    if kind == "one loud key far away":
        k[:, :, 3] = 40 * q[:, :, -1]
    elif kind == "a query that turns from its own key":
        q[:, :, -1] = -30 * k[:, :, -1]
    elif kind == "large everything":
        q, k = 12 * q, 12 * k
    elif kind == "silent":
        q, k = 0 * q, 0 * k
    return q, k, v


KINDS = (
    "random",
    "one loud key far away",
    "a query that turns from its own key",
    "large everything",
    "silent",
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_weighs_less_than_half_a_unit(kind: str) -> None:
    q, k, v = qkv(kind)
    scheme = Scheme(bias=Alibi(4))
    bias = scheme.bias
    assert bias is not None
    positions = torch.arange(LENGTH)
    logits = q.double() @ k.double().transpose(-1, -2) / 4
    logits = logits + bias.dense(positions, positions, dtype=torch.float64)
    logits = logits.masked_fill(positions[:, None] < positions, -math.inf)
    weights = logits.softmax(-1)
    for index, heads in enumerate(firsts_of(q, k, v, scheme)):
        block = slice(256 * index, min(256 * (index + 1), LENGTH))
        for head, first in enumerate(heads):
            assert weights[:, head, block, :first].sum(-1).max() <= 2.0**-24


@pytest.mark.parametrize("kind", KINDS)
def test_skipping_equals_the_reference(kind: str) -> None:
    q, k, v = qkv(kind)
    scheme = Scheme(bias=Alibi(4))
    right = attention(q.double(), k.double(), v.double(), scheme=scheme, impl="reference")
    # logits of size s are known to s roundings in float32: that, not the skipping, is the error
    size = float((q.double() @ k.double().transpose(-1, -2)).abs().max()) / 4
    assert float((attention(q, k, v, scheme=scheme) - right).abs().max()) <= 2e-6 * max(size, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_a_block_what_no_query_must_read_has_no_weight(kind: str) -> None:
    """Or steep heads weigh keys with subnormal numbers, which are slow."""
    q, k, v = qkv(kind)
    problem = problem_of(q, k, v, Scheme(bias=Alibi(4)))
    vector = distance.distance_vector(problem)
    blocks = distance._blocks(LENGTH, 256)
    farthest = distance.farthest_distances(problem, vector, blocks)
    short = distance._without(vector, farthest, problem)
    for head in range(4):
        reach = int(farthest[head].max())
        read = slice(LENGTH - 1 - reach, LENGTH)
        assert torch.equal(short[head, read], vector[head, read])
        assert short[head, : LENGTH - 1 - reach].eq(-math.inf).all()
        if kind == "random" and head == 0:
            assert short[head, read].min() > -60  # exp(-87) is the last normal weight


def test_far_keys_of_steep_heads_are_not_read() -> None:
    firsts = firsts_of(*qkv("random"), Scheme(bias=Alibi(4)))
    assert firsts[-1][0] > 1000  # slope 1/4: about 130 distances
    assert firsts[-1][-1] == 0  # slope 1/256: all of them count
    assert all(first == 0 for first in firsts[0])


def test_a_key_that_is_not_finite_hides_nothing() -> None:
    q, k, v = qkv("random")
    k[:, :, 5] = math.nan
    assert {first for heads in firsts_of(q, k, v, Scheme(bias=Alibi(4))) for first in heads} == {0}


def test_a_bias_that_does_not_fall_leaves_out_nothing() -> None:
    firsts = firsts_of(*qkv("random"), Scheme(bias=T5Bias(4, bidirectional=False)))
    assert {first for heads in firsts for first in heads} == {0}


@pytest.mark.parametrize("mask", [causal & window(700), causal])
@pytest.mark.parametrize("num_queries", [1, 300, LENGTH])
def test_grouped_keys_windows_and_late_queries(mask: Mask, num_queries: int) -> None:
    q, k, v = qkv("random")
    q, k, v = q[:, :, -num_queries:], k[:, :2], v[:, :2]
    scheme = Scheme(bias=Alibi(4))
    right = attention(
        q.double(), k.double(), v.double(), scheme=scheme, mask=mask, impl="reference"
    )
    torch.testing.assert_close(
        attention(q, k, v, scheme=scheme, mask=mask).double(), right, rtol=0, atol=1e-5
    )


def test_the_gradient_through_what_was_read() -> None:
    scheme = Scheme(bias=Alibi(4))
    inputs = [x.requires_grad_() for x in qkv("random")]
    out = attention(*inputs, scheme=scheme)
    mine = torch.autograd.grad(out, inputs, torch.ones_like(out))
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = attention(*wide, scheme=scheme, impl="reference")
    right = torch.autograd.grad(out, wide, torch.ones_like(out))
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-4)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # PyTorch's vmap
@pytest.mark.parametrize("which", [0, 1, 2])
def test_under_a_transform_of_one_of_them_nothing_is_asked(which: int) -> None:
    """Keys of a transform have no numbers to bound, though the queries have."""
    inputs = [x[:, :, :600] for x in qkv("random")]

    def loss(x: Tensor) -> Tensor:
        given = [x if index == which else held for index, held in enumerate(inputs)]
        q, k, v = given
        return attention(q, k, v, scheme=Scheme(bias=Alibi(4))).sum()

    mine = torch.func.grad(loss)(inputs[which])
    leaf = inputs[which].clone().requires_grad_()
    torch.testing.assert_close(mine, torch.autograd.grad(loss(leaf), leaf)[0], rtol=0, atol=2e-5)
    several = torch.stack([inputs[which], inputs[which] / 2])
    alone = torch.stack([loss(x) for x in several])
    torch.testing.assert_close(torch.vmap(loss)(several), alone, rtol=1e-4, atol=1e-3)


def test_a_recorded_graph_leaves_out_no_keys() -> None:
    """What may be left out is known of one input, not of the next."""
    scheme = Scheme(bias=Alibi(4))
    q, k, v = qkv("random")
    graph = make_fx(lambda q, k, v: attention(q, k, v, scheme=scheme))(q * 0.01, k * 0.01, v)
    right = attention(10 * q, 10 * k, v, scheme=scheme, impl="reference")
    torch.testing.assert_close(graph(10 * q, 10 * k, v), right, rtol=0, atol=1e-2)


def test_float64_is_as_exact_as_float64() -> None:
    zero = torch.zeros(1, 1, 1024, 8, dtype=torch.float64)
    v, scheme = random(1, 1, 1024, 8), Scheme(bias=Alibi(1, slopes=[3.0]))
    right = attention(zero, zero, v, scheme=scheme, impl="reference")
    torch.testing.assert_close(attention(zero, zero, v, scheme=scheme), right, rtol=0, atol=1e-14)
