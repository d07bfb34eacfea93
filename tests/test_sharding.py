"""Head slices under tensor parallelism, of every part whose numbers are indexed by head."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc import (
    AxesBias,
    Deberta,
    LearnedLogScale,
    MixedRope,
    MultiHeadAttention,
    Scheme,
    Shaw,
    T5Bias,
    TransformerXL,
    attention,
    causal,
    heads_of_rank,
)
from posenc.contracts import Block, RelativeKeyValue
from posenc.positions import grid, sequence
from support import assert_roundings, random

HEADS, DIM = 6, 8
FAR = torch.tensor([0, 1, 5, 6, 300, 301])
CELLS = grid(2, 3)

# Vectors and rotations with heads of their own, and the positions to read them at.
PER_HEAD: dict[str, tuple[Callable[[], Scheme], Tensor]] = {
    "shaw": (lambda: Scheme(relative=Shaw(DIM, max_distance=4, num_heads=HEADS)), FAR),
    "shaw key and query": (
        lambda: Scheme(relative=Shaw(DIM, max_distance=(9, 2), num_heads=HEADS, key_query=True)),
        sequence(6),
    ),
    "transformer-xl": (lambda: Scheme(relative=TransformerXL(HEADS, DIM)), sequence(6)),
    "transformer-xl scattered": (lambda: Scheme(relative=TransformerXL(HEADS, DIM)), FAR),
    "transformer-xl clamped": (lambda: Scheme(relative=TransformerXL(HEADS, DIM, clamp=7)), FAR),
    "transformer-xl alternating": (
        lambda: Scheme(relative=TransformerXL(HEADS, DIM, layout="alternating", biases=False)),
        FAR,
    ),
    "deberta": (
        lambda: Scheme(relative=Deberta(HEADS, DIM, num_buckets=8, max_distance=32)),
        FAR,
    ),
    "deberta, keys alone": (
        lambda: Scheme(relative=Deberta(HEADS, DIM, max_distance=4, terms=("c2p",))),
        sequence(6),
    ),
    "mixed rope": (lambda: Scheme(rotary=MixedRope(DIM, num_heads=HEADS)), CELLS),
}


def made(name: str) -> tuple[Scheme, dict[str, nn.Parameter], Tensor]:
    """A scheme with random parameters, these, and its positions."""
    build, at = PER_HEAD[name]
    torch.manual_seed(2)
    scheme = build()
    (module,) = scheme.modules().values()
    module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return scheme, dict(module.named_parameters()), at


def run_of(name: str, at: Tensor, impl: str) -> dict[str, Any]:
    mask = None if name.startswith(("deberta", "mixed")) else causal
    return {"mask": mask, "k_pos": at, "impl": impl}


@pytest.mark.parametrize("impl", ["reference", "sdpa"])
@pytest.mark.parametrize("num_ranks", [2, 3, 6])
@pytest.mark.parametrize("name", PER_HEAD)
def test_ranks_together_compute_what_one_would(name: str, num_ranks: int, impl: str) -> None:
    scheme, _, at = made(name)
    q, k, v = (random(2, HEADS, 6, DIM, seed=s) for s in (1, 2, 3))
    run = run_of(name, at, impl)
    whole, count = attention(q, k, v, scheme=scheme, **run), HEADS // num_ranks
    for rank in range(num_ranks):
        own = slice(rank * count, (rank + 1) * count)
        local = heads_of_rank(scheme, HEADS, rank, num_ranks)
        part = attention(q[:, own], k[:, own], v[:, own], scheme=local, **run)
        assert_roundings(part, whole[:, own], 64)


@pytest.mark.parametrize("name", PER_HEAD)
def test_a_rank_has_the_gradients_of_its_heads_and_no_others(name: str) -> None:
    scheme, parameters, at = made(name)
    q, k, v = (random(1, HEADS, 6, DIM, seed=s) for s in (1, 2, 3))
    run = run_of(name, at, "reference")
    whole = attention(q, k, v, scheme=scheme, **run)
    names, tensors = [*parameters], [*parameters.values()]
    expected = torch.autograd.grad(whole[:, 2:4].square().sum(), tensors, retain_graph=True)
    local = heads_of_rank(scheme, HEADS, 1, 3)
    (module,) = local.modules().values()
    assert [*dict(module.named_parameters())] == names  # a checkpoint of the whole loads
    part = attention(q[:, 2:4], k[:, 2:4], v[:, 2:4], scheme=local, **run)
    for got, wanted in zip(
        torch.autograd.grad(part.square().sum(), tensors), expected, strict=True
    ):
        assert wanted.abs().sum() > 0
        assert_roundings(got, wanted, 1024)


def test_a_cut_can_be_cut_again_and_leaves_the_whole_as_it_was() -> None:
    scheme, _, at = made("transformer-xl")
    q, k, v = (random(1, HEADS, 6, DIM, seed=s) for s in (1, 2, 3))
    before = attention(q, k, v, scheme=scheme, k_pos=at)
    local = heads_of_rank(heads_of_rank(scheme, HEADS, 1, 2), 3, 2, 3)  # the last head
    part = attention(q[:, 5:], k[:, 5:], v[:, 5:], scheme=local, k_pos=at)
    assert_roundings(part, before[:, 5:], 64)
    assert torch.equal(attention(q, k, v, scheme=scheme, k_pos=at), before)
    with pytest.raises(ValueError, match="vectors were made for 1 heads, queries have 6"):
        attention(q, k, v, scheme=local, k_pos=at)


def test_biases_of_boxes_and_learned_temperatures_are_cut_with_the_rest() -> None:
    """LayoutLM's three coordinates, and a scheme with two parts that have heads."""
    torch.manual_seed(3)
    boxes = Scheme(bias=AxesBias([T5Bias(HEADS, num_buckets=8, max_distance=20) for _ in "abc"]))
    learned = LearnedLogScale(HEADS)
    nn.init.normal_(learned.scale)
    both = Scheme(relative=TransformerXL(HEADS, DIM), query_scale=learned)
    places = {"boxes": torch.randint(0, 40, (6, 3)), "both": FAR}
    q, k, v = (random(2, HEADS, 6, DIM, seed=s) for s in (1, 2, 3))
    for scheme, at in ((boxes, places["boxes"]), (both, places["both"])):
        for module in scheme.modules().values():
            module.double()
        whole = attention(q, k, v, scheme=scheme, k_pos=at, mask=None)
        for rank in range(3):
            own, local = slice(2 * rank, 2 * rank + 2), heads_of_rank(scheme, HEADS, rank, 3)
            part = attention(q[:, own], k[:, own], v[:, own], scheme=local, k_pos=at, mask=None)
            assert_roundings(part, whole[:, own], 64)


def test_tables_made_ahead_are_cut_too() -> None:
    scheme, _, at = made("mixed rope")
    q, k, v = (random(1, HEADS, 6, DIM, seed=s) for s in (1, 2, 3))
    whole = attention(q, k, v, scheme=scheme, k_pos=at, mask=None)
    local = heads_of_rank(scheme.prepared(at, at), HEADS, 1, 3)
    for dtype in (torch.float64, torch.float32):  # in float64 they are made again
        mine = (x[:, 2:4].to(dtype) for x in (q, k, v))
        part = attention(*mine, scheme=local, mask=None)
        assert (part - whole[:, 2:4]).abs().max() < 2**-20 * whole.abs().max()


def test_a_layer_of_one_rank_has_the_columns_of_its_heads() -> None:
    """Column-parallel q, k and v, row-parallel output: the sum over ranks is the whole layer."""
    scheme, _, at = made("transformer-xl")
    layer = MultiHeadAttention(HEADS * DIM, HEADS, scheme=scheme).double()
    x = random(1, 6, HEADS * DIM)
    q, k, v = (
        project(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2)
        for project in (layer.q, layer.k, layer.v)
    )
    total = torch.zeros_like(x)
    for rank in range(2):
        own, local = slice(3 * rank, 3 * rank + 3), heads_of_rank(scheme, HEADS, rank, 2)
        part = attention(q[:, own], k[:, own], v[:, own], scheme=local, k_pos=at)
        rows = layer.out.weight[:, own.start * DIM : own.stop * DIM]
        total = total + part.transpose(1, 2).flatten(2) @ rows.T
    bias = 0 if layer.out.bias is None else layer.out.bias
    assert_roundings(total + bias, layer(x, at), 64)


class Own(RelativeKeyValue):
    """Vectors with heads of their own and no view of some."""

    head_dim, num_heads = DIM, HEADS

    def key_logits(self, q: Tensor, k: Tensor, block: Block) -> Tensor:
        return q @ k.mT


def test_a_class_without_such_a_view_is_refused() -> None:
    with pytest.raises(ValueError, match="relative= has heads of its own and cannot be cut"):
        heads_of_rank(Scheme(relative=Own()), HEADS, 0, 2)
    with pytest.raises(ValueError, match="rotary= was made for 4 heads, not 6"):
        heads_of_rank(Scheme(rotary=MixedRope(DIM, num_heads=4)), HEADS, 0, 2)
    shared = Scheme(relative=Shaw(DIM, max_distance=4))
    assert heads_of_rank(shared, HEADS, 0, 2) == shared
