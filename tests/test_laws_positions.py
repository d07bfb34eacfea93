"""Laws of the helpers for positions, over the whole registry: an encoding reads where tokens stand.

`test_laws.py` has packing, left padding, chunks and cached decoding.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import KVCache, attention, heads_of_rank
from posenc.positions import from_padding_mask, pose, randomized, sequence, shard, unshard
from support import (
    CAUSAL,
    DIM,
    HEADS,
    NAMES,
    assert_roundings,
    build,
    heads,
    layer,
    mask_of,
    positions_of,
    random,
)

ROOM = 24  # places that tables and windows of the entries are built for


def standing(name: str, places: Tensor) -> Tensor:
    """Positions of tokens at some places of a whole sequence."""
    return positions_of(name, ROOM)[places]


@pytest.mark.parametrize("name", NAMES)
def test_right_padding_equals_no_padding(name: str) -> None:
    model, x = layer(name), random(3, 6, DIM)
    lengths = [2, 6, 5]
    real = torch.tensor([[1] * n + [0] * (6 - n) for n in lengths])
    at = standing(name, from_padding_mask(real, padding=0))
    out = model(x, at, segments=real)
    assert out.isfinite().all()
    for row, n in enumerate(lengths):
        alone = model(x[row : row + 1, :n], standing(name, sequence(n)))
        assert_roundings(out[row : row + 1, :n], alone, 64)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_prefix_of_another_call_and_rejected_drafts_leave_no_trace(name: str) -> None:
    model, x, drafts = layer(name), random(2, 9, DIM), random(2, 9, DIM, seed=7)
    cache = KVCache()
    outs = [model(x[:, :3], cache=cache)]
    for start, stop, rejected in ((3, 5, 4), (5, 6, 1), (6, 9, 3)):
        model(drafts[:, :rejected], cache=cache)
        cache.truncate(start)
        outs.append(model(x[:, start:stop], cache=cache))
    assert_roundings(torch.cat(outs, 1), model(x), 64)


@pytest.mark.parametrize("name", CAUSAL)
def test_tokens_left_after_an_eviction_stand_where_they_stood(name: str) -> None:
    model, x = layer(name), random(2, 13, DIM)
    left, cache = torch.tensor([0, 1, 7, 8, 9, 10, 11]), KVCache()
    model(x[:, :12], cache=cache)
    cache.keep(left)
    out = model(x[:, 12:], sequence(1, start=12), cache=cache)
    at = torch.cat((left, torch.tensor([12])))
    assert_roundings(out, model(x[:, at], at)[:, -1:], 64)


@pytest.mark.parametrize("name", [n for n in CAUSAL if build(n).additive is None])
def test_tokens_moved_together_after_an_eviction_stand_side_by_side(name: str) -> None:
    model, x = layer(name), random(2, 13, DIM)
    left, cache = torch.tensor([0, 1, 7, 8, 9, 10, 11]), KVCache()
    model(x[:, :12], cache=cache)
    cache.keep(left)
    cache.move(sequence(7))
    out = model(x[:, 12:], cache=cache)
    alone = model(torch.cat((x[:, left], x[:, 12:]), 1))[:, -1:]
    assert (out - alone).abs().max() < 2**-21 * alone.abs().max()  # tables in float32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_shards_of_a_context_equal_the_whole(name: str, layout: Any) -> None:
    """Each rank's queries against all keys, in the order of ranks."""
    run: dict[str, Any] = {"scheme": build(name), "mask": mask_of(name)}
    (q, k, v), at = heads(16), standing(name, sequence(16))
    whole = attention(q, k, v, q_pos=at, k_pos=at, **run)
    gathered = torch.cat([shard(16, rank, 2, layout=layout) for rank in (0, 1)])
    outs = []
    for rank in (0, 1):
        own = shard(16, rank, 2, layout=layout)
        places = {"q_pos": at[own], "k_pos": at[gathered]}
        outs.append(attention(q[:, :, own], k[:, :, gathered], v[:, :, gathered], **places, **run))
    assert_roundings(torch.cat(outs, 2)[:, :, unshard(16, 2, layout=layout)], whole, 64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("drawn", [pose, randomized])
def test_skipped_positions_are_read_as_they_are(name: str, drawn: Any) -> None:
    """PoSE and randomised positions: as the reference has them, and not as 0 … T − 1."""
    generator = torch.Generator().manual_seed(3)
    at = standing(name, drawn(9, ROOM, generator=generator))
    run: dict[str, Any] = {"scheme": build(name), "mask": mask_of(name), "q_pos": at, "k_pos": at}
    q, k, v = heads(9)
    out = attention(q, k, v, **run)
    assert_roundings(out, attention(q, k, v, impl="reference", **run), 256)
    near = standing(name, sequence(9))
    other = attention(q, k, v, **{**run, "q_pos": near, "k_pos": near})
    reads = {"rotary", "bias", "relative", "query_scale"} & {
        field for field in ("rotary", "bias", "relative", "query_scale")
        if getattr(run["scheme"], field) is not None
    }  # fmt: skip
    assert (not reads or name in COUNTED) == torch.equal(out, other)


COUNTED = {"cope"}  # by what keys hold: gaps between positions are no tokens


@pytest.mark.parametrize("name", NAMES)
def test_heads_of_two_ranks_are_those_of_the_whole(name: str) -> None:
    scheme, (q, k, v), at = build(name), heads(7), standing(name, sequence(7))
    run: dict[str, Any] = {"mask": mask_of(name), "q_pos": at, "k_pos": at}
    whole, outs, half = attention(q, k, v, scheme=scheme, **run), [], HEADS // 2
    for rank in (0, 1):
        local, mine = heads_of_rank(scheme, HEADS, rank, 2), slice(rank * half, (rank + 1) * half)
        outs.append(attention(q[:, mine], k[:, mine], v[:, mine], scheme=local, **run))
    assert_roundings(torch.cat(outs, 1), whole, 64)
