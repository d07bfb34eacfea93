"""FlexAttention as an implementation: equal to the definition, or refused with the reason."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from posenc import Alibi, Rope, Scheme, Shaw, attention, causal, same_segment, window
from posenc.attention.flex import _block_mask
from posenc.attention.problem import checked
from posenc.masks import Mask
from support import (
    BIASES,
    HEAD_DIM,
    HEADS,
    NAMES,
    assert_as_good_as,
    assert_roundings,
    build,
    heads,
    mask_of,
    plain_attention,
    random,
)

GRID = {name: build(name) for name in BIASES}
BY_DISTANCE = tuple(name for name, made in GRID.items() if made.bias and made.bias.by_distance)
EXPRESSED = tuple(
    name
    for name in NAMES
    if build(name).num_axes == 1 and build(name).relative is None
    and (name not in BIASES or name in BY_DISTANCE)
)  # fmt: skip
SEGMENTS = torch.tensor([[0] * 60 + [1] * 90, [3] * 149 + [4]])


def assert_the_definition(q: Tensor, k: Tensor, v: Tensor, **run: Any) -> None:
    with torch.no_grad():
        exact = attention(q, k, v, impl="reference", **run)
        assert_roundings(attention(q, k, v, impl="flex", **run), exact, 64)


@pytest.mark.parametrize("name", EXPRESSED)
def test_every_scheme_that_it_expresses_is_the_definition(name: str) -> None:
    for num_queries in (150, 7, 1):
        q, k, v = heads(150, num_kv_heads=2, num_queries=num_queries)
        assert_the_definition(q, k, v, scheme=build(name, length=150), mask=mask_of(name))


@pytest.mark.parametrize(
    "mask",
    [
        None,
        causal,
        window(20),
        causal & window(130),
        causal & same_segment(SEGMENTS),
        same_segment(SEGMENTS) & window(9),
    ],
    ids=repr,
)
@pytest.mark.parametrize("bias", [None, Alibi(HEADS, symmetric=True)], ids=["none", "alibi"])
def test_masks_in_storage_order_and_at_given_positions(
    mask: Mask | None, bias: Alibi | None
) -> None:
    q, k, v = heads(150)
    scheme = Scheme(bias=bias)
    assert_the_definition(q, k, v, scheme=scheme, mask=mask)
    at = torch.stack((torch.arange(150) * 3 - 100, torch.arange(150).flip(0)))
    assert_the_definition(q, k, v, scheme=scheme, mask=mask, k_pos=at)
    assert_the_definition(q, k, v, scheme=scheme, mask=mask, k_pos=at[0])


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    q, k, v = heads(5)
    at = torch.arange(5)
    out = attention(q, k, v, scheme=Scheme(bias=Alibi(HEADS)), q_pos=at, k_pos=at + 2, impl="flex")
    assert torch.equal(out[:, :, :2], torch.zeros_like(out[:, :, :2]))
    assert out[:, :, 2:].abs().min() > 0


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_far_blocks_of_keys_are_left_out_head_by_head(scale: float) -> None:
    """And what is left out is below rounding, whatever q and k are."""
    q, k, v = (scale * random(1, HEADS, 1000, HEAD_DIM, seed=i) for i in range(3))
    scheme = Scheme(bias=Alibi(HEADS, slopes=[2.0, 0.15, 0.05, 0.001]))
    blocks = _block_mask(checked(q, k, v, scheme, None, None, causal, None))
    assert blocks is not None and blocks.full_kv_num_blocks is not None
    read = (blocks.kv_num_blocks + blocks.full_kv_num_blocks).sum(-1)[0].tolist()
    if scale == 1:
        assert read[0] < read[1] < read[3] == 36 and read[0] == 15  # of 8 x 8 blocks, causal
    exact = attention(q, k, v, scheme=scheme, impl="reference")
    out = attention(q, k, v, scheme=scheme, impl="flex")
    assert (out - exact).abs().max() <= 2**-23 * v.abs().max()


@pytest.mark.parametrize("mask", [causal, window(300), causal & window(129)], ids=repr)
@pytest.mark.parametrize(("num_queries", "num_keys"), [(700, 700), (130, 700), (256, 512)])
def test_blocks_by_their_corners_are_the_mask(mask: Mask, num_queries: int, num_keys: int) -> None:
    """A block is left out only where every pair is hidden, and full only where every one is seen."""
    q = torch.zeros(1, 1, num_queries, HEAD_DIM)
    k = torch.zeros(1, 1, num_keys, HEAD_DIM)
    problem = checked(q, k, k, Scheme(), None, None, mask, None)
    blocks = _block_mask(problem)
    allowed = problem.allowed()
    assert blocks is not None and allowed is not None and blocks.full_kv_num_blocks is not None
    pad = (-num_queries % 128, -num_keys % 128)
    tiles = torch.nn.functional.pad(allowed[0, 0], (0, pad[1], 0, pad[0]))
    tiles = tiles.unflatten(1, (-1, 128)).unflatten(0, (-1, 128)).sum((1, 3))
    for row in range(tiles.shape[0]):
        partial = blocks.kv_indices[0, 0, row, : blocks.kv_num_blocks[0, 0, row]].tolist()
        assert blocks.full_kv_indices is not None
        full = blocks.full_kv_indices[0, 0, row, : blocks.full_kv_num_blocks[0, 0, row]].tolist()
        assert sorted(partial + full) == tiles[row].nonzero()[:, 0].tolist()
        assert full == (tiles[row] == 128 * 128).nonzero()[:, 0].tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["rope", "alibi", "t5"])
def test_compiles_whole(name: str) -> None:
    scheme = build(name)
    torch._dynamo.reset()
    run = torch.compile(
        lambda q, k, v: attention(q, k, v, scheme=scheme, impl="flex"),
        fullgraph=True,
        backend="eager",
    )
    q, k, v = (x.float() for x in heads(150))
    with torch.no_grad():
        exact = attention(q, k, v, scheme=scheme, impl="reference")
        assert_roundings(run(q, k, v), exact, 64)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_score_mod_is_compiled_for_a_cpu(name: str) -> None:
    scheme = build(name)
    assert scheme.bias is not None
    q, k, v = heads(24, dtype=torch.float32)
    mod = scheme.bias.score_mod(torch.arange(24) + 3, torch.arange(24) + 3)
    torch._dynamo.reset()
    with torch.no_grad():
        out = torch.compile(flex_attention)(q, k, v, score_mod=mod)
    exact = attention(q, k, v, scheme=scheme, mask=None, impl="reference")
    assert_roundings(out, exact, 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_in_low_precision_it_is_as_good_as_a_plain_evaluation(dtype: torch.dtype) -> None:
    wide = heads(150)
    q, k, v = (x.to(dtype) for x in wide)
    run: dict[str, Any] = {"scheme": build("t5"), "mask": causal}
    exact = attention(q.double(), k.double(), v.double(), impl="reference", **run)
    plain = plain_attention(q, k, v, k_pos=torch.arange(150), **run)
    with torch.no_grad():
        assert_as_good_as(plain, attention(q, k, v, impl="flex", **run), exact)


@pytest.mark.parametrize(
    ("scheme", "told"),
    [
        (Scheme(relative=Shaw(HEAD_DIM, max_distance=4)), "Shaw adds vectors"),
        (build("fire"), "Fire is no function of distance alone"),
        (build("t5"), "no backward pass on a CPU"),
        (Scheme(rotary=Rope(HEAD_DIM)), "no backward pass on a CPU"),
    ],
)
def test_what_it_cannot_do_is_refused(scheme: Scheme, told: str) -> None:
    q, k, v = (x.float().requires_grad_() for x in heads(9))
    with pytest.raises(ValueError, match=rf"impl='flex' cannot do this: .*{told}.*impl='auto' can"):
        attention(q, k, v, scheme=scheme, impl="flex")


def test_positions_too_far_apart_are_refused() -> None:
    q, k, v = heads(2)
    scheme, far = Scheme(bias=Alibi(HEADS)), torch.tensor([0, 1 << 23])
    with pytest.raises(ValueError, match="distances from -8388608 to 8388608"):
        attention(q, k, v, scheme=scheme, k_pos=far, impl="flex")
