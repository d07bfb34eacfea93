"""Relative vectors in every option: formulas, laws, memory, shared parts, refusals."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import oracles
import oracles_relative
from posenc import (
    Block,
    Cope,
    Deberta,
    Decomposed,
    KVCache,
    MultiHeadAttention,
    RelativeKeyValue,
    Rope,
    Scheme,
    Shaw,
    SwinBias,
    TransformerXL,
    attention,
    causal,
    heads_of_rank,
    same_segment,
    window,
)
from posenc.attention import sdpa
from posenc.positions import from_lengths, from_padding_mask, grid, sequence
from posenc.relative.deberta import log_bucket_edges
from posenc.relative.distances import skewed, unskewed
from support import (
    DIM,
    HEAD_DIM,
    HEADS,
    Allocations,
    assert_as_good_as,
    assert_roundings,
    chunks,
    heads,
    plain_attention,
    random,
)

SHAW: dict[str, dict[str, Any]] = {
    "symmetric": {"max_distance": 3},
    "one-sided": {"max_distance": (4, 0)},
    "uneven": {"max_distance": (5, 2), "values": False},
    "heads": {"max_distance": 3, "num_heads": HEADS},
    "zero": {"max_distance": 2, "outside": "zero"},
    "zero one-sided heads": {"max_distance": (3, 0), "outside": "zero", "num_heads": HEADS},
    "key_query": {"max_distance": (4, 2), "key_query": True},
    "zero key_query": {"max_distance": (1, 2), "key_query": True, "outside": "zero"},
}
PARTS: dict[str, RelativeKeyValue] = {
    **{f"shaw {name}": Shaw(HEAD_DIM, **options) for name, options in SHAW.items()},
    "xl": TransformerXL(HEADS, HEAD_DIM),
    "xl alternating": TransformerXL(HEADS, HEAD_DIM, layout="alternating", dim=24),
    "xl clamp": TransformerXL(HEADS, HEAD_DIM, clamp=3),
    "xl gemma": TransformerXL(HEADS, HEAD_DIM, denominator="d-2", biases=False),
    "deberta": Deberta(HEADS, HEAD_DIM, max_distance=6),
    "deberta buckets": Deberta(HEADS, HEAD_DIM, max_distance=16, num_buckets=6),
    "deberta c2p": Deberta(HEADS, HEAD_DIM, max_distance=9, dim=12, terms=("c2p",)),
    "deberta p2c": Deberta(HEADS, HEAD_DIM, max_distance=9, terms=("p2c",)),
    "cope": Cope(HEAD_DIM, max_positions=4),
    "cope long": Cope(HEAD_DIM, max_positions=64),
}
_draw = torch.Generator().manual_seed(3)
for _part in PARTS.values():
    for _parameter in _part.parameters():
        _parameter.data.normal_(std=0.5, generator=_draw)
every_part = pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())


def layer(part: RelativeKeyValue, *, num_kv_heads: int = 2) -> MultiHeadAttention:
    torch.manual_seed(0)
    scheme = Scheme(relative=copy.deepcopy(part))
    return MultiHeadAttention(DIM, HEADS, num_kv_heads=num_kv_heads, scheme=scheme).double()


# --- Formulas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAW)
@pytest.mark.parametrize("is_placed", [True, False])
def test_every_table_of_shaw_is_read_at_the_row_of_the_offset(name: str, is_placed: bool) -> None:
    part, options = PARTS[f"shaw {name}"], SHAW[name]
    assert isinstance(part, Shaw)
    given = options["max_distance"]
    past, future = (given, given) if isinstance(given, int) else given
    outside, at = options.get("outside", "clip"), sequence(9)
    q, k, _ = heads(9, batch=1)
    block = Block(at, at) if is_placed else Block(at, at, first=(0, 0))
    actual = part.key_logits(q, k, block)
    weights = random(1, HEADS, 9, 9, seed=7)
    summed = part.value_sum(weights, block)
    for head in range(HEADS):
        keys, values = (
            None if x is None else (x[head] if x.ndim == 3 else x).tolist()
            for x in (part.keys, part.values)
        )
        for i in range(9):
            total = [0.0] * HEAD_DIM
            for j in range(9):
                row = oracles_relative.clipped_row(j - i, past, future, outside)
                vector = [0.0] * HEAD_DIM if row is None or keys is None else keys[row]
                expected = oracles.dot(q[0, head, i].tolist(), vector)
                if options.get("key_query"):
                    expected += oracles.dot(k[0, head, j].tolist(), vector)
                assert actual[0, head, i, j].item() == pytest.approx(expected, abs=1e-12)
                if values is not None and row is not None:
                    weight = weights[0, head, i, j].item()
                    total = [a + weight * b for a, b in zip(total, values[row], strict=True)]
            if summed is not None:
                assert summed[0, head, i].tolist() == pytest.approx(total, abs=1e-12)
    assert (summed is None) == (part.values is None)


@pytest.mark.parametrize("options", [
    {}, {"layout": "alternating"}, {"denominator": "d-2", "biases": False}, {"clamp": 4},
    {"dim": 20},
])  # fmt: skip
@pytest.mark.parametrize("is_placed", [True, False])
def test_transformer_xl_is_the_four_terms(options: dict[str, Any], is_placed: bool) -> None:
    part = TransformerXL(2, HEAD_DIM, **options).double()
    for parameter in part.parameters():
        parameter.data.normal_(std=0.5, generator=torch.Generator().manual_seed(5))
    q, k = random(1, 2, 4, HEAD_DIM, seed=1), random(1, 2, 7, HEAD_DIM, seed=2)
    q_pos, k_pos = sequence(4, start=103), sequence(7, start=100)  # three keys of a memory
    block = Block(q_pos, k_pos) if is_placed else Block(q_pos, k_pos, first=(103, 100))
    actual = q @ k.mT + part.key_logits(q, k, block)
    zeros = torch.zeros(2, HEAD_DIM)
    u, v = (zeros if x is None else x for x in (part.content_bias, part.position_bias))
    for head in range(2):
        weight = part.projection[head * HEAD_DIM : (head + 1) * HEAD_DIM].tolist()
        for i in range(4):
            for j in range(7):
                distance, clamp = 3 + i - j, options.get("clamp", 99)
                waves = oracles_relative.distance_sinusoid(
                    max(-clamp, min(clamp, distance)),
                    part.dim,
                    layout=part.layout,
                    denominator=part.denominator,
                )
                mine, key = q[0, head, i].tolist(), k[0, head, j].tolist()
                expected = oracles_relative.transformer_xl(
                    mine, key, u[head].tolist(), v[head].tolist(), weight, waves
                )
                assert actual[0, head, i, j].item() == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(256, 512), (32, 128), (8, 64), (6, 16), (4, 16), (320, 1280)]
)
def test_deberta_buckets_are_exact_at_every_edge(num_buckets: int, max_distance: int) -> None:
    part = Deberta(1, 4, num_buckets=num_buckets, max_distance=max_distance, terms=("c2p",))
    distances = torch.arange(-max_distance - 40, max_distance + 41)
    expected = [
        oracles_relative.deberta_row(int(d), num_buckets, max_distance, has_buckets=True)
        for d in distances
    ]
    assert part._row(distances).tolist() == expected
    bucket = part.bucket(distances[distances.abs() < max_distance])
    assert torch.equal(bucket, -bucket.flip(0))  # odd
    edges = log_bucket_edges(num_buckets, max_distance)
    assert edges[-1] == max_distance - 1 and edges == sorted(edges)


@pytest.mark.parametrize("terms", [("c2p",), ("p2c",), ("c2p", "p2c")])
def test_deberta_scales_by_the_number_of_terms(terms: tuple[str, ...]) -> None:
    part = Deberta(2, 64, terms=terms)
    assert part.scale == pytest.approx(1 / math.sqrt(64 * (1 + len(terms))))


def test_cope_counts_the_visible_keys_from_the_key_up_to_the_query() -> None:
    part = Cope(2, max_positions=4)
    part.embeddings.data = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    q = torch.tensor([[[[1.0, 0.0]]]]).expand(1, 1, 5, 2)
    k = torch.zeros(1, 1, 5, 2)  # every gate is a half
    at = sequence(5)
    seen = (causal, [2.5, 2.0, 1.5, 1.0, 0.5]), (causal & window(2), [1.0, 1.0, 1.0, 1.0, 0.5])
    for mask, last in seen:
        allowed = mask.allowed(at[None], at[None])[:, None]
        block = Block(at, at, allowed, scale=0.5)
        assert part.positions(q, k, block)[0, 0, -1].tolist() == last
        logits = part.key_logits(q, k, block)
        assert logits[0, 0, -1].tolist() == pytest.approx(last)
    everything = part.positions(q * 100, torch.ones_like(k), Block(at, at))
    assert everything[0, 0, -1].tolist() == pytest.approx([3, 3, 3, 2, 1])  # at most the last one


def test_keys_at_one_position_count_together_in_cope() -> None:
    part, at = Cope(HEAD_DIM, max_positions=9), torch.tensor([0, 1, 1, 2])
    q, k, _ = heads(4)
    positions = part.positions(q, k, Block(at, at))
    assert torch.equal(positions[..., 1], positions[..., 2])
    order = torch.tensor([2, 3, 0, 1])
    moved = part.positions(q, k[:, :, order], Block(at, at[order]))
    assert_roundings(moved, positions[..., order].detach(), 8)


# --- Laws, in every option -----------------------------------------------------------------------


@given(num_queries=st.integers(1, 6), num_keys=st.integers(1, 7))
def test_a_skewed_view_reads_row_by_row_one_entry_later(num_queries: int, num_keys: int) -> None:
    rows = random(2, num_queries, num_queries + num_keys)
    view = skewed(rows)
    for i in range(num_queries):
        start = num_queries - 1 - i
        assert torch.equal(view[:, i], rows[:, i, start : start + num_keys])
    back = unskewed(view)
    assert torch.equal(skewed(back), view)
    assert back.count_nonzero() == view.count_nonzero()


@every_part
@pytest.mark.parametrize(
    "mask", [None, causal, causal & window(4), window(3)], ids=["all", "causal", "sliding", "near"]
)
@pytest.mark.parametrize("num_queries", [13, 1, 6])
def test_views_equal_lookups_equal_the_reference_forward_and_backward(
    part: RelativeKeyValue, mask: Any, num_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdpa, "VECTOR_ELEMENTS", 1)  # blocks of 16 queries
    part = copy.deepcopy(part).double()
    q, k, v = (x.requires_grad_() for x in heads(29, num_queries=num_queries + 16))
    run: dict[str, Any] = {"scheme": Scheme(relative=part), "mask": mask}
    inputs = [q, k, v, *part.parameters()]
    exact = attention(q, k, v, impl="reference", **run)
    weight = random(*exact.shape, seed=4)
    wanted = torch.autograd.grad((exact * weight).sum(), inputs)
    places: list[dict[str, Any]] = [{}, {"k_pos": sequence(29, start=7)}]
    places.append({"k_pos": sequence(29).expand(2, -1)})
    for where in places:
        out = attention(q, k, v, **run, **where)
        assert_roundings(out, exact.detach(), 64)
        grads = torch.autograd.grad((out * weight).sum(), inputs)
        size = max(right.abs().max().item() for right in wanted)  # that of a key's bias is zero
        for grad, right in zip(grads, wanted, strict=True):
            assert_roundings(grad, right, 256, size=size)


@every_part
@given(sizes=st.lists(st.integers(1, 6), max_size=5))
def test_any_chunking_and_cached_decoding_equal_the_whole(
    part: RelativeKeyValue, sizes: list[int]
) -> None:
    model, x = layer(part), random(2, 11, DIM)
    cache = KVCache()
    pieces = [model(x[:, piece], cache=cache) for piece in chunks(11, sizes)]
    assert_roundings(torch.cat(pieces, 1), model(x), 64)


@every_part
def test_packed_and_padded_rows_equal_rows_alone(part: RelativeKeyValue) -> None:
    model, x = layer(part), random(2, 13, DIM)
    at, segments = from_lengths([5, 1, 7])
    packed = model(x, at, segments=segments)
    for n, start in ((5, 0), (1, 5), (7, 6)):
        assert_roundings(packed[:, start : start + n], model(x[:, start : start + n]), 64)
    real = torch.tensor([[0] * 6 + [1] * 7, [1] * 13])
    padded = model(x, from_padding_mask(real), segments=real)
    assert_roundings(padded[:1, 6:], model(x[:1, 6:]), 64)
    assert_roundings(padded[1:], model(x[1:]), 64)


@every_part
def test_bfloat16_is_as_good_as_plain_attention_in_every_option(part: RelativeKeyValue) -> None:
    q, k, v = heads(21, num_kv_heads=2, dtype=torch.bfloat16)
    run: dict[str, Any] = {"scheme": Scheme(relative=part), "mask": causal}
    exact = attention(q.double(), k.double(), v.double(), impl="reference", **run)
    low = {**run, "scheme": Scheme(relative=copy.deepcopy(part).bfloat16())}
    plain = plain_attention(q, k, v, k_pos=sequence(21), **low)
    for out in (attention(q, k, v, **run), attention(q, k, v, k_pos=sequence(21), **run)):
        assert_as_good_as(plain.detach(), out.detach(), exact.detach())


@pytest.mark.parametrize("name", ["shaw zero", "xl", "xl clamp", "deberta buckets", "cope"])
def test_default_positions_compile_without_a_graph_break(name: str) -> None:
    scheme = Scheme(relative=PARTS[name])
    q, k, v = heads(6, dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert_roundings(compiled(q, k, v, scheme=scheme), attention(q, k, v, scheme=scheme), 4)


# --- Rows and columns ----------------------------------------------------------------------------


def decomposed(window: tuple[int, int]) -> Decomposed:
    part = Decomposed(HEAD_DIM, window=window).double()
    for seed, table in enumerate(part.parameters()):
        table.data = random(*table.shape, seed=seed + 5)
    return part


@pytest.mark.parametrize("window", [(4, 4), (7, 2), (3, 9), (1, 5)])
def test_tables_of_rows_and_columns_are_resized_linearly_each_by_itself(
    window: tuple[int, int],
) -> None:
    part = decomposed((4, 3))
    made = part.resized(window)
    assert made.window == window
    for table, new in zip(part.parameters(), made.parameters(), strict=True):
        expected = oracles_relative.linear_table(table.tolist(), len(new))
        # a coordinate of up to 6 is rounded, on slopes of up to 4
        assert_roundings(new, torch.tensor(expected, dtype=torch.float64), 16)
    same = part.resized((4, 3))
    assert torch.equal(same.row_vectors, part.row_vectors)


def test_cells_of_each_row_of_a_batch_and_a_bias_of_the_same_cells() -> None:
    q, k, v = heads(6)
    cells = grid(2, 3)
    moved = torch.stack((cells, cells.flip(0)))
    scheme = Scheme(relative=decomposed((2, 3)), bias=SwinBias(HEADS, window=(2, 3)).double())
    run: dict[str, Any] = {"scheme": scheme, "mask": None}
    both = attention(q, k, v, q_pos=moved, k_pos=moved, **run)
    for row in range(2):
        at = {"q_pos": moved[row], "k_pos": moved[row]}
        alone = attention(q[row, None], k[row, None], v[row, None], **at, **run)
        assert_roundings(both[row, None], alone.detach(), 8)


@pytest.mark.parametrize("impl", ["sdpa", "reference"])
def test_the_softmax_scale_acts_on_scaled_terms_alone(impl: Any) -> None:
    """With scale=0 nothing is left but what is added after it."""
    q, k, v = heads(6)
    cells = grid(2, 3)
    part = decomposed((2, 3))
    at = {"q_pos": cells, "k_pos": cells}
    out = attention(q, k, v, scheme=Scheme(relative=part), scale=0.0, mask=None, impl=impl, **at)
    terms = part.key_logits(q, k, Block(cells, cells))
    assert_roundings(out, (terms.softmax(-1) @ v).detach(), 16)
    shaw = Scheme(relative=copy.deepcopy(PARTS["shaw uneven"]))
    even = attention(q, k, v, scheme=shaw, scale=0.0, mask=None, impl=impl)
    assert_roundings(even, v.mean(2, keepdim=True).expand_as(v), 16)


# --- Memory --------------------------------------------------------------------------------------


@every_part
def test_logits_of_a_long_sequence_are_never_whole(part: RelativeKeyValue) -> None:
    length = 3000
    q, k, v = heads(length, batch=1, dtype=torch.float32)
    with Allocations() as made, torch.no_grad():
        attention(q, k, v, scheme=Scheme(relative=part))
    assert made.largest <= 2 * sdpa.VECTOR_ELEMENTS + 16 * HEADS * length
    assert made.peak < HEADS * length * length * 4  # one whole [H, T, T]


# --- Shared parts --------------------------------------------------------------------------------


def test_layers_share_tables_and_projections_by_assignment() -> None:
    first, second = (Deberta(HEADS, HEAD_DIM, num_buckets=8, max_distance=32) for _ in range(2))
    layer = MultiHeadAttention(DIM, HEADS, scheme=Scheme(relative=second))
    second.table, second.key, second.query = first.table, layer.k, layer.q
    second.norm = nn.LayerNorm(DIM)
    layer(random(1, 9, DIM, dtype=torch.float32)).square().sum().backward()
    for gradient in (first.table.grad, layer.k.weight.grad, second.norm.weight.grad):
        assert gradient is not None and gradient.abs().sum() > 0


def test_vectors_that_all_heads_share_are_the_same_on_every_rank() -> None:
    shared = Scheme(relative=Cope(8, max_positions=4))
    assert heads_of_rank(shared, 4, 0, 2) == shared


# --- Refusals ------------------------------------------------------------------------------------


def bad(option: str) -> dict[str, Any]:
    return {option: "bad"}


WRONG: dict[str, tuple[Any, str]] = {
    "shaw: one row": (lambda: Shaw(8, max_distance=(0, 0)), r"positive, got 8 and \(0, 0\)"),
    "shaw: backwards": (lambda: Shaw(8, max_distance=(-1, 4)), r"positive, got 8 and \(-1, 4\)"),
    "shaw: outside": (lambda: Shaw(8, max_distance=2, **bad("outside")), r"'zero', got 'bad'"),
    "shaw: heads": (lambda: Shaw(8, max_distance=2, num_heads=0), r"None for shared, got 0"),
    "xl: odd": (lambda: TransformerXL(3, 5), r"dim even, got 3, 5 and 15"),
    "xl: layout": (lambda: TransformerXL(2, 4, **bad("layout")), r"layout must .* got 'bad'"),
    "xl: denominator": (lambda: TransformerXL(2, 4, **bad("denominator")), r"'d-2', got 'bad'"),
    "xl: clamp": (lambda: TransformerXL(2, 4, clamp=0), r"positive distance or None, got 0"),
    "xl: base": (lambda: TransformerXL(2, 4, base=-1.0), r"base must be .* got -1\.0"),
    "deberta: size": (lambda: Deberta(2, 4, max_distance=0), r"got 2, 4, 8 and 0"),
    "deberta: buckets": (
        lambda: Deberta(2, 4, num_buckets=8, max_distance=5), r"num_buckets / 2 \+ 1, got 8 and 5"
    ),
    "deberta: terms": (lambda: Deberta(2, 4, terms=("p2p",)), r"some of .* got \('p2p',\)"),
    "deberta: no terms": (lambda: Deberta(2, 4, terms=()), r"some of .* got \(\)"),
    "decomposed: size": (lambda: Decomposed(0, window=3), r"head_dim must be positive, got 0"),
    "decomposed: window": (
        lambda: Decomposed(8, window=(3, 0)), r"\(height, width\) of at least 1, got \(3, 0\)"
    ),
    "decomposed: a cell outside": (
        lambda: Decomposed(8, window=(2, 3)).key_logits(
            torch.zeros(1, 1, 9, 8), torch.zeros(1, 1, 9, 8), Block(grid(3, 3), grid(3, 3))
        ),
        r"row offsets in a side of 2 must lie in \[-1, 1\], got position",
    ),
    "decomposed: no axes": (
        lambda: attention(
            random(1, 2, 6, 8), random(1, 2, 6, 8), random(1, 2, 6, 8),
            scheme=Scheme(relative=Decomposed(8, window=3)), mask=None,
        ),
        r"needs positions with 2 axes",
    ),
    "decomposed: two kinds of positions": (
        lambda: Scheme(relative=Decomposed(8, window=3), rotary=Rope(8)),
        r"need positions with the same axes: rotary= reads 1, relative= reads 2",
    ),
    "cope: size": (lambda: Cope(8, max_positions=0), r"must be positive, got 8 and 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_vectors_made_for_other_heads_are_refused() -> None:
    q, k, v = heads(3)
    for part in (TransformerXL(2, HEAD_DIM), Shaw(HEAD_DIM, max_distance=2, num_heads=3)):
        with pytest.raises(ValueError, match=r"made for [23] heads, queries have 4"):
            attention(q, k, v, scheme=Scheme(relative=part))
    with pytest.raises(ValueError, match="have 4 channels, heads have 8"):
        attention(q, k, v, scheme=Scheme(relative=Cope(4, max_positions=2)))


def test_hidden_keys_move_no_position_of_cope() -> None:
    """Another document, padding and the future: their gates are closed."""
    scheme = Scheme(relative=PARTS["cope long"])
    q, k, v = heads(8, dtype=torch.float32)
    k = k.clone()
    documents = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    mask = causal & same_segment(documents)
    before = attention(q, k, v, scheme=scheme, mask=mask)
    k[:, :, :4] += 50.0
    after = attention(q, k, v, scheme=scheme, mask=mask)
    assert torch.equal(before[:, :, 4:], after[:, :, 4:])


def test_repr_names_every_option_that_was_chosen() -> None:
    shown = {
        "shaw zero key_query": "8, max_distance=(1, 2), values=True, outside='zero', key_query=True",
        "xl clamp": "4, 8, dim=32, base=10000.0, layout='concatenated', denominator='d', clamp=3, "
        "biases=True",
        "cope": "8, max_positions=4",
    }
    for name, text in shown.items():
        assert PARTS[name].extra_repr() == text
