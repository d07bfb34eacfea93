"""A cache that grows: what is in use is never written over."""

import copy

import pytest
import torch
from torch import Tensor

from posenc import KVCache, MultiHeadAttention, Rope, Scheme
from support import random

LAYER = MultiHeadAttention(32, 4, scheme=Scheme(rotary=Rope(8))).double().requires_grad_(False)
TOKENS = random(2, 40, 32)


def whole(tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return LAYER(tokens)


def test_a_token_is_written_where_there_is_room() -> None:
    cache, homes = KVCache(), set()
    with torch.no_grad():
        outs = []
        for token in TOKENS.split(1, 1):
            outs.append(LAYER(token, cache=cache))
            assert cache.keys is not None and cache.values is not None
            homes.add((cache.keys.data_ptr(), cache.values.data_ptr()))
    torch.testing.assert_close(torch.cat(outs, 1), whole(TOKENS))
    assert len(homes) < 16  # a copy of the cache for each token would have 40


@pytest.mark.parametrize("branch", [copy.copy, copy.deepcopy])
def test_two_that_share_a_beginning_do_not_meet(branch: object) -> None:
    assert callable(branch)
    cache = KVCache()
    with torch.no_grad():
        LAYER(TOKENS[:, :20], cache=cache)
        LAYER(TOKENS[:, 20:21], cache=cache)
        other = branch(cache)
        mine = [LAYER(token, cache=cache) for token in TOKENS[:, 21:24].split(1, 1)]
        its = [LAYER(token, cache=other) for token in TOKENS[:, 30:33].split(1, 1)]
        mine.append(LAYER(TOKENS[:, 24:25], cache=cache))
    torch.testing.assert_close(torch.cat(mine, 1), whole(TOKENS[:, :25])[:, 21:])
    joined = torch.cat((TOKENS[:, :21], TOKENS[:, 30:33]), 1)
    torch.testing.assert_close(torch.cat(its, 1), whole(joined)[:, 21:])


def test_rejected_drafts_are_written_over_by_nobody_else() -> None:
    cache = KVCache()
    with torch.no_grad():
        for part in TOKENS[:, :21].split([18, 1, 1, 1], 1):
            LAYER(part, cache=cache)
        cache.truncate(19)
        out = LAYER(TOKENS[:, 30:31], cache=cache)
    joined = torch.cat((TOKENS[:, :19], TOKENS[:, 30:31]), 1)
    torch.testing.assert_close(out, whole(joined)[:, -1:])


def test_inference_mode_and_plain_steps_in_turns() -> None:
    cache, outs = KVCache(), []
    for index, token in enumerate(TOKENS.split(1, 1)):
        with torch.inference_mode(index % 3 == 0), torch.no_grad():
            outs.append(LAYER(token, cache=cache).clone())
    torch.testing.assert_close(torch.cat([x.detach() for x in outs], 1), whole(TOKENS))


def test_what_autograd_kept_is_not_written_over() -> None:
    cache = KVCache()
    with torch.no_grad():
        LAYER(TOKENS[:, :5], cache=cache)
        LAYER(TOKENS[:, 5:6], cache=cache)
    x = TOKENS[:, 6:8].clone().requires_grad_()
    out = LAYER(x, cache=cache)
    with torch.no_grad():
        LAYER(TOKENS[:, 8:9], cache=cache)
    mine = torch.autograd.grad(out.sum(), x)[0]
    full = TOKENS[:, :8].clone().requires_grad_()
    right = torch.autograd.grad(LAYER(full)[:, 6:].sum(), full)[0][:, 6:]
    torch.testing.assert_close(mine, right)
