"""Positions: packing, padding, decoding, shards, random positions, images and videos."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles_forms as oracles
from posenc import (
    Alibi,
    KVCache,
    Learned,
    MultiHeadAttention,
    Rope,
    Scheme,
    attention,
    heads_of_rank,
    rotate,
    same_segment,
)
from posenc.masks import causal
from posenc.positions import (
    Image,
    Text,
    Video,
    centred,
    check_positions,
    check_range,
    following,
    from_lengths,
    from_padding_mask,
    grid,
    multimodal,
    on_axes,
    padded_length,
    pose,
    query_key_positions,
    randomized,
    sequence,
    shard,
    unshard,
    volume,
)
from support import assert_roundings, random

DIM, HEADS = 16, 2


def layer(**parts: Any) -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(DIM, HEADS, scheme=Scheme(**parts)).double()


LAYERS: dict[str, Callable[[], MultiHeadAttention]] = {
    "rope": lambda: layer(rotary=Rope(DIM // HEADS)),
    "alibi": lambda: layer(bias=Alibi(HEADS)),
}


# --- Rows of tokens ------------------------------------------------------------------------------


def test_b106_phases_follow_values_not_lengths() -> None:
    """Megatron-LM#453 (B106): positions [7, 8, 9] and packed [0, 1, 2, 0, 1] are what they say."""
    rope = Rope(8)
    for values in ([7, 8, 9], [0, 1, 2, 0, 1]):
        table = rope.table(torch.tensor(values))
        for t, value in enumerate(values):
            assert torch.equal(table.cos[0, t], rope.table(torch.tensor([value])).cos[0, 0])


def test_b113_padding_rules_by_hand() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    assert from_padding_mask(mask).tolist() == [
        [-1, -1, 0, 1, 2],
        [0, 1, 2, 3, 4],
        [0, 1, -1, -1, -1],
    ]
    # RoBERTa (B113): ids start after the padding index, and padding keeps its own
    ids = torch.tensor([[0, 5, 6, 1, 1]])
    assert (from_padding_mask(ids != 1) + 1 + 1).tolist() == [[2, 3, 4, 1, 1]]
    with pytest.raises(ValueError, match="holds 0 and 1"):
        from_padding_mask(torch.tensor([[0, 2]]))


def test_b108_left_padding_without_a_mask_is_told_apart() -> None:
    """transformers#21080 (B108): a padded prompt's learned positions start at its first token."""
    table = Learned(8, DIM)
    x = random(1, 3, DIM, dtype=torch.float32)
    padded = torch.cat((torch.zeros(1, 2, DIM), x), 1)
    at = from_padding_mask(torch.tensor([[0, 0, 1, 1, 1]]), padding=0)
    assert torch.equal(table(padded, at)[:, 2:], table(x))
    assert not torch.equal(table(padded)[:, 2:], table(x))


@pytest.mark.parametrize("side", ["left", "right"])
def test_b109_next_positions_are_each_rows_own(side: str) -> None:
    """unsloth#3699 (B109): lengths 3 and 5, the next tokens are at 3 and 5, not 5 and 5."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    at = from_padding_mask(mask if side == "left" else mask.flip(-1))
    assert following(at, 2).tolist() == [[3, 4], [5, 6]]
    assert following(sequence(9), 1).tolist() == [9]
    assert following(torch.tensor([5, 0, 3]), 1).tolist() == [6]  # a rolled cache


def test_what_follows_an_image_is_text_after_its_largest_coordinate() -> None:
    at = multimodal([Text(2), Image(3, 5)])
    assert following(at, 2, num_axes=3).tolist() == [[7] * 3, [8] * 3]
    whole = multimodal([Text(2), Image(3, 5), Text(2)])
    batch = torch.stack((at, on_axes(sequence(17), 3)))
    assert torch.equal(following(batch, 2, num_axes=3)[0], whole[-2:])
    assert following(batch, 2, num_axes=3)[1].tolist() == [[17] * 3, [18] * 3]


def test_b118_an_offset_counts_keys_already_stored() -> None:
    """onnxruntime-genai#2354, tiny-llm#46 (B118): a prompt of 9 goes on at 9, one of 6 at 6."""
    for length in (9, 6):
        q_pos, k_pos = query_key_positions(1, length + 1, None, None)
        assert q_pos.tolist() == [length] and k_pos.tolist() == list(range(length + 1))
        assert following(sequence(length), 3).tolist() == [length, length + 1, length + 2]


def test_b115_virtual_tokens_come_before_the_query() -> None:
    """transformers#42508 (B115): with 5 virtual tokens, a decoded query stands at the past length."""
    keys = torch.cat((sequence(5), sequence(3, start=5)))
    assert following(keys, 1).tolist() == [8]
    q_pos, _ = query_key_positions(1, 9, None, None)
    assert q_pos.tolist() == [8]


@pytest.mark.parametrize("name", LAYERS)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_packed_documents_equal_separate_ones(name: str, lengths: list[int]) -> None:
    model, x = LAYERS[name](), random(1, sum(lengths), DIM)
    at, segments = from_lengths(lengths)
    packed = model(x, at, segments=segments)
    start = 0
    for n in lengths:
        alone = model(x[:, start : start + n])
        assert_roundings(packed[:, start : start + n], alone, 64)
        start += n


# --- A cache: drafts rejected, tokens evicted ----------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@given(drafts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=4))
def test_rejected_drafts_leave_no_trace(name: str, drafts: list[tuple[int, int]]) -> None:
    """Speculative decoding: tokens are added and the last few taken back, again and again."""
    model, cache = LAYERS[name](), KVCache()
    x = random(1, 30, DIM)
    model(x[:, :3], cache=cache)
    kept = [x[:, :3]]
    for step, (added, rejected) in enumerate(drafts):
        draft = random(1, added, DIM, seed=step + 1)
        model(draft, cache=cache)
        accepted = max(added - rejected, 0)
        cache.truncate(len(cache) - added + accepted)
        kept.append(draft[:, :accepted])
    last = model(x[:, -1:], cache=cache)
    whole = model(torch.cat((*kept, x[:, -1:]), 1))
    assert_roundings(last, whole[:, -1:], 64)
    assert cache.contiguous
    cache.truncate(0)
    assert len(cache) == 0
    assert_roundings(model(x[:, :4], cache=cache), model(x[:, :4]), 64)


@pytest.mark.parametrize("name", LAYERS)
def test_b125_tokens_left_after_an_eviction_stand_side_by_side(name: str) -> None:
    """streaming-llm#73 (B125): 4 sinks and a window of 8 at the 20th token are at 0 … 11."""
    model, cache = LAYERS[name](), KVCache()
    x = random(2, 21, DIM)
    model(x[:, :20], cache=cache)
    left = torch.cat((torch.arange(4), torch.arange(12, 20)))
    cache.keep(left)
    assert cache.positions is not None and cache.positions.tolist() == [left.tolist()]
    cache.move(torch.arange(12))
    assert cache.next_positions(1).tolist() == [[12]]
    out = model(x[:, 20:], cache=cache)
    # keys and values of one layer depend on their own tokens alone
    alone = model(torch.cat((x[:, left], x[:, 20:]), 1))
    again = model(x[:, :1], cache=cache)  # and once more, after moved and fresh keys were joined
    whole = model(torch.cat((x[:, left], x[:, 20:], x[:, :1]), 1))
    for got, expected in ((out, alone), (again, whole)):  # moved by tables in float32
        assert (got - expected[:, -1:]).abs().max() < 2**-21 * expected.abs().max()


def test_b128_many_moves_are_rounded_once() -> None:
    """ggml-org/llama.cpp#4097 (B128): a cache that slides by one, five hundred times."""
    rope, cache = Rope(8), KVCache()
    k = random(1, 1, 4, 8, seed=1)
    start = torch.arange(500, 504)
    turned = rotate(k, rope.table(start, dtype=torch.float64)).bfloat16()
    cache.append(turned, turned, start[None], None, rope)
    for shift in range(1, 501):
        cache.move(start - shift)
    moved = cache.keys_in_place()
    assert moved is not None and cache.positions is not None
    assert cache.positions.tolist() == [[0, 1, 2, 3]]
    assert_roundings(moved, rotate(k, rope.table(torch.arange(4), dtype=torch.float64)), 2)


def test_a_cache_says_what_does_not_fit() -> None:
    cache = KVCache()
    with pytest.raises(ValueError, match="empty cache"):
        cache.move(torch.arange(3))
    model = LAYERS["rope"]()
    model(random(1, 5, DIM), cache=cache)
    with pytest.raises(ValueError, match="between 0 and the 5 tokens held, got 6"):
        cache.truncate(6)
    with pytest.raises(ValueError, match="with T = 5 tokens"):
        cache.move(torch.arange(4))


# --- Shards --------------------------------------------------------------------------------------

LAYOUTS = ("contiguous", "zigzag", "striped")


def test_b182_zigzag_shards_by_hand() -> None:
    """Megatron-LM#560 (B182): 16 tokens over 2 ranks."""
    assert shard(16, 0, 2, layout="zigzag").tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert shard(16, 1, 2, layout="zigzag").tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
    assert shard(16, 1, 2).tolist() == list(range(8, 16))


def test_b185_tokens_that_do_not_divide_are_an_error() -> None:
    """EasyContext#47 (B185): 2,999 tokens over 4 ranks were shards of 750, 750, 750, 749."""
    with pytest.raises(ValueError, match=r"2999 tokens do not divide over 4 ranks .*: pad to 3000"):
        shard(2999, 0, 4, layout="zigzag")
    assert padded_length(2999, 4, layout="zigzag") == 3000
    assert padded_length(3001, 4, layout="zigzag") == 3008
    assert padded_length(3001, 4) == 3004


@pytest.mark.parametrize("layout", LAYOUTS)
@given(num_ranks=st.integers(1, 5), chunks=st.integers(1, 4))
def test_shards_are_the_formula_and_come_back_in_order(
    layout: Any, num_ranks: int, chunks: int
) -> None:
    num_tokens = 2 * num_ranks * chunks
    parts = [shard(num_tokens, rank, num_ranks, layout=layout) for rank in range(num_ranks)]
    assert [part.tolist() for part in parts] == oracles.shards(num_tokens, num_ranks, layout)
    gathered = torch.cat(parts)
    assert gathered[unshard(num_tokens, num_ranks, layout=layout)].tolist() == list(
        range(num_tokens)
    )


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shard_of_queries_equals_the_whole(name: str, layout: Any) -> None:
    """Each rank's queries against all keys, positions travelling with the tokens."""
    scheme = LAYERS[name]().scheme
    q, k, v = (random(1, HEADS, 16, DIM // HEADS, seed=s) for s in (1, 2, 3))
    whole = attention(q, k, v, scheme=scheme)
    gathered = torch.cat([shard(16, rank, 2, layout=layout) for rank in (0, 1)])
    outs = []
    for rank in (0, 1):
        own = shard(16, rank, 2, layout=layout)
        out = attention(
            q[:, :, own],
            k[:, :, gathered],  # keys arrive in the order of ranks
            v[:, :, gathered],
            scheme=scheme,
            q_pos=own,
            k_pos=gathered,
        )
        assert_roundings(out, whole[:, :, own], 64)
        outs.append(out)
    back = torch.cat(outs, 2)[:, :, unshard(16, 2, layout=layout)]
    assert_roundings(back, whole, 64)


def test_a_shard_keeps_documents_apart() -> None:
    scheme = Scheme(rotary=Rope(8))
    at, segments = from_lengths([5, 3, 8])
    q, k, v = (random(1, 1, 16, 8, seed=s) for s in (1, 2, 3))
    whole = attention(
        q, k, v, scheme=scheme, k_pos=at, q_pos=at, mask=causal & same_segment(segments)
    )
    own = shard(16, 1, 2, layout="zigzag")
    mask = causal & same_segment(segments, segments[own])
    out = attention(q[:, :, own], k, v, scheme=scheme, q_pos=at[own], k_pos=at, mask=mask)
    assert_roundings(out, whole[:, :, own], 64)


# --- Random positions ----------------------------------------------------------------------------


def test_randomized_positions_are_a_sorted_uniform_subset() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = randomized(5, 20, batch=4000, generator=generator)
    assert drawn.shape == (4000, 5) and drawn.dtype == torch.int64
    assert (drawn.diff(dim=-1) > 0).all() and drawn.min() == 0 and drawn.max() == 19
    share = torch.bincount(drawn.flatten(), minlength=20) / drawn.numel()
    assert (share - 1 / 20).abs().max() < 6 * math.sqrt(0.05 / drawn.numel())
    again = randomized(5, 20, batch=4000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)
    assert randomized(7, 7).tolist() == list(range(7))


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
def test_pose_skips_between_chunks_and_ends_within_the_target(num_chunks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = pose(8, 100, num_chunks=num_chunks, batch=500, generator=generator)
    assert drawn.shape == (500, 8) and (drawn[:, 0] == 0).all() and drawn.max() <= 99
    steps = drawn.diff(dim=-1)
    assert (steps >= 1).all() and ((steps > 1).sum(-1) <= num_chunks - 1).all()
    if num_chunks == 1:
        assert torch.equal(drawn[0], torch.arange(8))
        return
    skips = drawn[:, -1] - 7
    assert skips.max() > 80
    if num_chunks == 2:  # one skip, uniform over 0 … 92
        assert skips.min() < 12 and abs(skips.double().mean() - 46) < 6 * 27 / math.sqrt(500)
        cuts = (steps > 1).double().mean(0)
        assert (cuts - 1 / 7).abs().max() < 0.08  # every cut as likely as another


def test_pose_uses_all_the_room_there_is_and_no_more() -> None:
    assert pose(8, 8, num_chunks=3).tolist() == list(range(8))
    ends = pose(2, 4, batch=200, generator=torch.Generator().manual_seed(0))[:, -1]
    assert ends.unique().tolist() == [1, 2, 3]


def test_random_positions_leave_one_generator_to_the_caller() -> None:
    state = torch.random.get_rng_state()
    pose(8, 100, generator=torch.Generator().manual_seed(1))
    randomized(3, 9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.random.get_rng_state(), state)


# --- Images and videos ---------------------------------------------------------------------------

some_parts = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 4)),
        st.tuples(st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("after_time", [True, False])
@given(parts=some_parts)
def test_multimodal_positions_are_the_formula(
    after_time: bool, parts: list[tuple[int, ...]]
) -> None:
    kinds = {1: Text, 2: Image, 3: Video}
    made = multimodal(
        [kinds[len(part)](*part) for part in parts], advance="largest" if after_time else "grid"
    )
    expected = oracles.multimodal(parts, after_time=after_time)
    assert [tuple(cell) for cell in made.tolist()] == expected


@given(
    step=st.fractions(Fraction(1, 49), 3, max_denominator=49),
    tokens=st.fractions(Fraction(1, 2), 25, max_denominator=4),
)
def test_time_in_seconds_is_cut_after_the_product(step: Fraction, tokens: Fraction) -> None:
    parts = [Text(2), Video(50, 1, 2, float(step)), Image(2, 2), Text(1)]
    made = multimodal(parts, tokens_per_second=float(tokens))
    expected = oracles.multimodal(
        [(2,), (50, 1, 2), (2, 2), (1,)], seconds=step, tokens_per_second=tokens
    )
    assert [tuple(cell) for cell in made.tolist()] == expected


def test_b163_half_seconds_are_not_lost() -> None:
    """transformers#48669 (B163): seconds per grid were cut to 0 before the product."""
    for seconds, expected in ((0.5, [0, 1, 2, 3]), (0.75, [0, 1, 3, 4])):
        made = multimodal([Video(4, 1, 1, seconds)], tokens_per_second=2)
        assert made[:, 0].tolist() == expected


def test_b164_still_images_have_no_time_to_stretch() -> None:
    """transformers#45325 (B164): the clock of the videos does not move what follows an image."""
    plain = multimodal([Text(2), Image(2, 2), Text(1)])
    clocked = multimodal([Text(2), Image(2, 2), Text(1)], tokens_per_second=25)
    assert torch.equal(plain, clocked) and plain[-1].tolist() == [4, 4, 4]


def test_a_long_prompt_made_in_parts_equals_the_whole() -> None:
    parts = [Text(3), Image(2, 4), Text(2), Video(3, 2, 2), Text(4)]
    whole = multimodal(parts)
    first = multimodal(parts[:2])
    start = int(following(first, 1, num_axes=3)[0, 0])
    assert torch.equal(torch.cat((first, multimodal(parts[2:], start=start))), whole)


def test_grids_by_hand() -> None:
    assert grid(2, 3).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    merged = grid(2, 4, merge=2)
    assert merged.tolist() == [
        [0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3],
    ]  # fmt: skip
    assert volume(2, 1, 2).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]


@given(height=st.integers(1, 9), width=st.integers(1, 9))
def test_transposing_an_image_swaps_its_coordinates(height: int, width: int) -> None:
    """torchtitan#4244 (B159): (x, y) for (row, column) goes unseen in a square."""
    for made in (grid, centred):
        tall, wide = made(height, width), made(width, height)
        swapped = wide.flip(-1).view(width, height, 2).transpose(0, 1).reshape(-1, 2)
        assert torch.equal(tall, swapped)


def test_centred_coordinates_by_hand() -> None:
    assert centred(4, 1)[:, 0].tolist() == [-0.75, -0.25, 0.25, 0.75]
    assert centred(3, 2, extent=2.0, ends=True).tolist() == [
        [-2.0, -2.0], [-2.0, 2.0], [0.0, -2.0], [0.0, 2.0], [2.0, -2.0], [2.0, 2.0],
    ]  # fmt: skip
    fine, coarse = centred(8, 8), centred(2, 2)  # an image at four times the size covers the same
    assert fine.view(2, 4, 2, 4, 2).mean((1, 3)).flatten(0, 1).tolist() == coarse.tolist()


@pytest.mark.parametrize("ends", [False, True])
@given(
    sides=st.lists(st.integers(2, 5), min_size=2, max_size=3),
    extent=st.sampled_from([1.0, math.pi, 0.5]),
)
def test_centred_coordinates_are_the_formula(ends: bool, sides: list[int], extent: float) -> None:
    *frames, height, width = sides
    made = centred(height, width, frames=frames[0] if frames else None, extent=extent, ends=ends)
    assert made.dtype == torch.float64
    for got, expected in zip(made.tolist(), oracles.centred(sides, extent, ends=ends), strict=True):
        assert got == pytest.approx(expected, abs=1e-15 * extent)
    if frames:  # in the order of volume
        order = volume(frames[0], height, width).double()
        assert ((made.diff(dim=0) > 0) == (order.diff(dim=0) > 0)).all()


# --- What goes wrong -----------------------------------------------------------------------------

BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: sequence(0), "length must be at least 1, got 0"),
    (lambda: from_lengths([]), "lengths must be positive"),
    (lambda: from_lengths([3, 0]), r"got \[3, 0\]"),
    (lambda: grid(3, 4, merge=2), "multiple of merge, got height 3, merge 2"),
    (lambda: grid(0, 4), "height must be a positive multiple"),
    (lambda: volume(0, 2, 2), "frames must be at least 1"),
    (lambda: centred(1, 4, ends=True), "height must be at least 2, got 1"),
    (lambda: sequence(3, start=0.5), "start must be an int, got 0.5"),  # pyright: ignore
    (lambda: sequence(True), "length must be an int, got True"),
    (lambda: from_lengths([2.5, 1]), "length must be an int, got 2.5"),  # pyright: ignore
    (lambda: from_padding_mask([1, 0]), "mask must be a tensor, got list"),  # pyright: ignore
    (lambda: following(sequence(3), -1), "-1 positions cannot follow"),
    (lambda: shard(16.0, 0, 2), "num_tokens must be an int, got 16.0"),  # pyright: ignore
    (lambda: shard(16, False, 2), "rank must be an int, got False"),
    (lambda: padded_length(16, 2.0), "num_ranks must be an int, got 2.0"),  # pyright: ignore
    (lambda: randomized(3, 8.5), "num_positions must be an int, got 8.5"),  # pyright: ignore
    (lambda: pose(3, 8, batch=0), "batch must be at least 1, or None for one row, got 0"),
    (lambda: randomized(3, 8, batch=-1), "batch must be at least 1"),
    (lambda: pose(3, 8.0), "target_length must be an int, got 8.0"),  # pyright: ignore
    (lambda: Video(2, 2, 2, True), "seconds_per_frame must be positive, got True"),
    (lambda: Video(2, 2, 2, math.nan), "seconds_per_frame must be positive, got nan"),
    (
        lambda: multimodal([Video(2, 1, 1, 0.5)], tokens_per_second=-2),
        "tokens_per_second must be positive, got -2",
    ),
    (lambda: multimodal([Text(2)], start=0.5), "start must be an int, got 0.5"),  # pyright: ignore
    (lambda: grid(2.0, 2), "height must be an int, got 2.0"),  # pyright: ignore
    (lambda: volume("2", 2, 2), "frames must be an int, got '2'"),  # pyright: ignore
    (lambda: centred(2, 2, extent=math.nan), "extent must be positive and finite, got nan"),
    (lambda: centred(2.0, 2), "height must be an int, got 2.0"),  # pyright: ignore
    (lambda: Rope(8).at_length(True), "length must be an int, got True"),
    (lambda: Rope(8).at_length(9.5), "length must be an int, got 9.5"),  # pyright: ignore
    (lambda: heads_of_rank(Scheme(), 4, True, 2), "rank must be an int, got True"),
    (lambda: heads_of_rank(Scheme(), 0, 0, 2), "num_heads 0 must divide over num_ranks 2"),
    (lambda: centred(2, 2, frames=0), "frames must be at least 1, got 0"),
    (lambda: multimodal([]), "at least one Text, Image or Video"),
    (lambda: multimodal([3]), "parts must be Text, Image or Video, got 3"),  # pyright: ignore
    (lambda: multimodal([Text(1)], advance="max"), "advance must be"),  # pyright: ignore
    (lambda: Text(0), "num_tokens must be a positive int, got 0"),
    (lambda: Image(2, True), "width must be a positive int, got True"),
    (lambda: Video(1, 2, 2, 0.0), "seconds_per_frame must be positive"),
    (lambda: multimodal([Video(2, 1, 1, 0.5)]), "needs both seconds_per_frame and tokens_per"),
    (lambda: multimodal([Video(2, 1, 1)], tokens_per_second=2), "needs both"),
    (lambda: randomized(9, 8), "9 different positions cannot be drawn from 8"),
    (lambda: pose(9, 8), "target_length 8"),
    (lambda: pose(3, 8, num_chunks=4), "num_chunks 4"),
    (lambda: shard(8, 2, 2), "rank must be between 0 and num_ranks - 1, got 2 of 2"),
    (lambda: shard(8, 0, 2, layout="ring"), "layout must be"),  # pyright: ignore
    (lambda: padded_length(0, 2), "num_tokens and num_ranks must be at least 1"),
    (
        lambda: check_range(torch.tensor([3]), 0, 2, name="x"),
        r"x must lie in \[0, 2\], got position",
    ),
    (lambda: check_positions(torch.zeros(3), num_tokens=3), "must be integers"),
    (lambda: check_positions([1], num_tokens=1), "must be a tensor, got list"),  # pyright: ignore
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_mistakes_name_what_was_given(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()
