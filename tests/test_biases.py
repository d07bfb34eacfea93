"""The options of the biases, each against its formula in plain floats; window tables; gradients."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import oracles
from posenc import (
    Alibi,
    AxesBias,
    BeitBias,
    Fire,
    Kerple,
    LogitBias,
    Sandwich,
    Scheme,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    attention,
    causal,
    heads_of_rank,
    same_segment,
    window,
)
from posenc.bias.alibi import slopes
from posenc.positions import from_lengths, from_padding_mask, grid, sequence, with_class_token
from support import HEAD_DIM, HEADS, assert_roundings, eps, heads, random

HEAD_COUNTS = [1, 2, 3, 5, 6, 7, 8, 12, 16, 20, 32, 40, 71, 112]


def filled(bias: LogitBias, seed: int = 0) -> Any:
    """The bias with parameters far from zero and from each other, in float64."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in bias.double().parameters():
        parameter.data.normal_(std=0.7, generator=generator)
    return bias


# --- ALiBi ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias_max", [8.0, 4.0, 16.0, 10.5])
@pytest.mark.parametrize("num_heads", HEAD_COUNTS)
def test_slopes_of_another_bias_max_are_in_the_order_of_mpt(
    num_heads: int, bias_max: float
) -> None:
    made = Alibi(num_heads, bias_max=bias_max).slopes().tolist()
    assert made == pytest.approx(oracles.alibi_slopes_of(num_heads, bias_max), rel=1e-14)


class Rounding(TorchFunctionMode):
    """As loaders of large models do: every tensor that is made comes out in bfloat16."""

    makers = (torch.tensor, torch.as_tensor, torch.empty, torch.full, torch.arange, torch.linspace)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        rounded = func in self.makers and made.is_floating_point()
        return made.bfloat16() if rounded else made


@pytest.mark.parametrize("options", [
    {}, {"slopes": [0.1] * 12}, {"slopes": torch.tensor(slopes(12)) / 3}, {"bias_max": 10.5},
    {"slope_dtype": torch.float32}, {"slope_dtype": torch.bfloat16, "scale": 0.125},
])  # fmt: skip
def test_slopes_made_where_new_tensors_are_rounded_are_exact(options: dict[str, Any]) -> None:
    expected = Alibi(12, **options).slopes()
    with Rounding():
        assert torch.tensor(0.1).dtype == torch.bfloat16
        made = Alibi(12, **options)
    assert torch.equal(made.slopes(), expected)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(Alibi(12, **options).slopes(), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_falcon_rounds_its_slopes_and_scales_its_bias(head_dim: int) -> None:
    falcon = Alibi(71, slope_dtype=torch.bfloat16, scale=head_dim**-0.5)
    for slope, exact in zip(falcon.slopes().tolist(), oracles.alibi_slopes(71), strict=True):
        fraction, exponent = math.frexp(exact)
        rounded = math.ldexp(round(fraction * 256), exponent - 8)  # 8 bits, ties to even
        assert slope == pytest.approx(rounded / math.sqrt(head_dim), rel=1e-15)
    # the logits of Falcon, (q·k + slope · distance) / √d, up to what a softmax leaves out
    q, k, v = heads(6, batch=1)
    bias = Alibi(HEADS, slope_dtype=torch.bfloat16, scale=HEAD_DIM**-0.5)
    plain = Alibi(HEADS, slope_dtype=torch.bfloat16).dense(
        sequence(6), sequence(6), dtype=torch.float64
    )
    logits = (q @ k.mT + plain) * HEAD_DIM**-0.5
    logits = logits.masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    assert_roundings(attention(q, k, v, scheme=Scheme(bias=bias)), logits.softmax(-1) @ v, 64)


def test_slopes_of_ones_own_and_of_a_rank() -> None:
    assert Alibi(3, slopes=[0.5, 0.0, 3.0]).slopes().tolist() == [0.5, 0.0, 3.0]
    rank = Alibi(4, slopes=torch.tensor(slopes(12)[4:8]))
    whole = heads_of_rank(Scheme(bias=Alibi(12)), 12, rank=1, num_ranks=3).bias
    at = torch.tensor([0, 5, 17])
    assert whole is not None
    assert_roundings(rank.dense(at, at), whole.dense(at, at, dtype=torch.float64), 1)
    learned = Alibi(2, learned=True, slopes=[0.25, 2.0], scale=0.5).slopes()
    assert learned.tolist() == pytest.approx([0.125, 1.0], rel=1e-6)


@pytest.mark.parametrize("bias", [Alibi(HEADS), Kerple(HEADS), Sandwich(HEADS)])
@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_packed_and_left_padded_rows_see_their_own_distances(bias: LogitBias, impl: Any) -> None:
    """Distances start anew in every document: a bias of storage indices would not."""
    q, k, v = heads(9)
    at, documents = from_lengths([4, 5])
    run: dict[str, Any] = {"scheme": Scheme(bias=bias), "impl": impl}
    packed = attention(q, k, v, k_pos=at, mask=causal & same_segment(documents), **run)
    for piece in (slice(0, 4), slice(4, 9)):
        alone = attention(*(x[:, :, piece] for x in (q, k, v)), **run)
        assert_roundings(packed[:, :, piece], alone, 64)
    real = torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
    padded = attention(
        q, k, v, k_pos=from_padding_mask(real), mask=causal & same_segment(real), **run
    )
    alone = attention(*(x[:1, :, 3:] for x in (q, k, v)), **run)
    assert_roundings(padded[:1, :, 3:], alone, 64)


# --- KERPLE, Sandwich, FIRE ----------------------------------------------------------------------

FAR = [0, 1, 2, 7, 100, 4095, 70_001]


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_is_the_papers_formula(form: Any) -> None:
    r1, r2 = [0.02, 0.5, 3.0], [1.9, 0.01, 0.7]
    bias = Kerple(3, form=form, r1=r1, r2=torch.tensor(r2)).double()
    for made, given in zip(bias.coefficients(), (r1, r2), strict=True):
        assert made.tolist() == pytest.approx(given, rel=1e-5)
    first, second = (x.tolist() for x in bias.coefficients())
    made = bias.dense(torch.tensor(FAR), torch.tensor(FAR), dtype=torch.float64)[0]
    for head in range(3):
        for i, p in enumerate(FAR):
            exact = [oracles.kerple(form, first[head], second[head], p, n) for n in FAR]
            assert made[head, i].tolist() == pytest.approx(exact, rel=1e-12)


def test_kerple_starts_as_released_and_stays_in_its_range() -> None:
    torch.manual_seed(0)
    for form, tops in (("log", (2.0, 1.0)), ("power", (1.0, 2.0))):
        bias = Kerple(4096, form=form)  # pyright: ignore[reportArgumentType]
        for made, top in zip(bias.coefficients(), tops, strict=True):
            assert 0.0099 < made.min() < 0.02 and 0.99 * top < made.max() <= top
            assert made.mean().item() == pytest.approx(top / 2, rel=0.05)
        for parameter in bias.parameters():
            parameter.data.fill_(50.0)  # whatever a step does
        assert bias.coefficients()[0].min() > 0
    assert bias.coefficients()[1].max() <= 2  # of the power


@pytest.mark.parametrize(("width", "base"), [(128, 10_000.0), (2, 10_000.0), (64, 500.0)])
def test_sandwich_is_the_inner_product_of_two_sinusoids(width: int, base: float) -> None:
    bias, num_heads = Sandwich(3, width=width, base=base), 3
    made = bias.dense(torch.tensor(FAR), torch.tensor(FAR), dtype=torch.float64)[0]
    for head in range(num_heads):
        for i, p in enumerate(FAR):
            if base == 10_000.0:
                exact = [oracles.sandwich(head, num_heads, p, n, width=width) for n in FAR]
                assert made[head, i].tolist() == pytest.approx(exact, abs=1e-9)
            assert made[head, i, i].item() == pytest.approx(width / 2 * 3 / (8 * (head + 1)))


def test_what_softmax_cancels_is_left_out_where_it_would_cost_bits() -> None:
    bias = Sandwich(2)
    at = torch.tensor([5, 6, 70])
    whole, shifted = (
        bias.dense(at, at, dtype=torch.float64, for_softmax=flag) for flag in (False, True)
    )
    assert shifted[0].diagonal(dim1=-2, dim2=-1).abs().max() < 1e-12
    gap = whole - shifted
    assert_roundings(gap, gap[:, :, :1, :1].expand_as(gap), 64)  # one number a head
    vector = bias.per_distance(torch.tensor([0, -1, -65]), for_softmax=True, dtype=torch.float64)
    assert_roundings(vector, shifted[0, :, 0], 64)
    assert torch.equal(
        Alibi(2).dense(at, at, for_softmax=True), Alibi(2).dense(at, at)
    )  # nothing to leave out
    rank = heads_of_rank(Scheme(bias=bias), 2, rank=1, num_ranks=2).bias
    assert rank is not None
    assert_roundings(
        rank.dense(at, at, dtype=torch.float64, for_softmax=True), shifted[:, 1:], 64, size=1.0
    )


def test_fire_depends_on_distance_alone_up_to_its_threshold() -> None:
    bias = filled(Fire(3, initial_threshold=64.0))
    bias.c.data.fill_(-0.3)  # the sign of c is free: ψ takes |c|
    bias.threshold_factor.data.fill_(0.5)
    near, far = torch.tensor([3, 20, 32]), torch.tensor([40, 57, 69])  # the threshold is 32
    same, moved = bias.dense(near, near), bias.dense(near - 3, near - 3)
    assert_roundings(moved, same.double(), 4)
    assert (bias.dense(far, far) - same).abs().max() > 0.01
    made = bias.dense(torch.tensor(FAR), torch.tensor(FAR), dtype=torch.float64)[0]
    first, offsets = bias.hidden.weight[:, 0].tolist(), bias.hidden.bias.tolist()
    for head in range(3):
        mlp = (first, offsets, bias.out.weight[head].tolist(), bias.out.bias[head].item())
        for i, p in enumerate(FAR):
            exact = [oracles.fire(mlp, -0.3, 32.0, p, n) for n in FAR[: i + 1]]
            assert made[head, i, : i + 1].tolist() == pytest.approx(exact, abs=1e-10)


def test_fire_is_finite_whatever_it_learns() -> None:
    bias = Fire(2)
    at = torch.tensor([-1, 0, 1, 10**7])
    for c, factor in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (-5.0, -2.0), (1e6, 1e-6)):
        bias.c.data.fill_(c)
        bias.threshold_factor.data.fill_(factor)
        assert bias.dense(at, at).isfinite().all()


def test_fire_without_a_causal_mask_is_an_error() -> None:
    q, k, v = heads(4)
    whole = Scheme(bias=Fire(HEADS))
    for scheme in (whole, heads_of_rank(whole, HEADS, rank=0, num_ranks=1)):
        for mask in (None, window(2), same_segment(torch.zeros(4, dtype=torch.int64))):
            with pytest.raises(ValueError, match="keys after the query: pass mask=causal"):
                attention(q, k, v, scheme=scheme, mask=mask)
        attention(q, k, v, scheme=scheme, mask=causal & window(2))


# --- Windows -------------------------------------------------------------------------------------

WINDOWS = [(1, 1), (1, 4), (4, 1), (3, 5), (7, 7)]


def pairs(window: tuple[int, int]) -> list[tuple[list[int], list[int]]]:
    cells = grid(*window).tolist()
    return [(q, k) for q in cells for k in cells]


@pytest.mark.parametrize("size", WINDOWS)
def test_swinv2_is_the_papers_formula_for_any_window(size: tuple[int, int]) -> None:
    """A side of 1 is 0 / 0 in the released formula."""
    for pretrained in (None, (6, 8)):
        bias = filled(SwinV2Bias(2, window=size, pretrained_window=pretrained, width=9))
        parts = [x.tolist() for x in (bias.hidden.weight, bias.hidden.bias)]
        cells = grid(*size)
        made = bias.dense(cells, cells, dtype=torch.float64)[0].flatten(1)
        for head in range(2):
            out = bias.out.weight[head].tolist()
            exact = [
                oracles.swinv2(
                    parts[0], parts[1], out, (q[0] - k[0], q[1] - k[1]), pretrained or size
                )
                for q, k in pairs(size)
            ]
            assert made[head].tolist() == pytest.approx(exact, rel=1e-12)


def test_swinv2_takes_its_mlp_to_another_window() -> None:
    bias = filled(SwinV2Bias(2, window=(4, 6)))
    larger = bias.at_window((8, 6))
    assert (larger.window, larger.pretrained_window) == ((8, 6), (4, 6))
    assert larger.at_window(3).pretrained_window == (4, 6)
    cells = grid(4, 6)
    assert torch.equal(larger.dense(cells, cells), bias.dense(cells, cells))


@pytest.mark.parametrize("size", WINDOWS)
def test_beit_keeps_three_rows_for_its_class_token(size: tuple[int, int]) -> None:
    bias = filled(BeitBias(2, window=size))
    cells = with_class_token(grid(*size))
    made = bias.dense(cells, cells, dtype=torch.float64)[0]
    at: list[Any] = [None, *map(tuple, grid(*size).tolist())]
    for i, q in enumerate(at):
        rows = [oracles.beit_row(q, k, size) for k in at]
        assert torch.equal(made[:, i], bias.weight[rows].T)
    last = len(bias.weight) - 1
    assert torch.equal(made[:, 0, 0], bias.weight[last])
    assert torch.equal(made[:, 0, -1], bias.weight[last - 2])
    assert torch.equal(made[:, -1, 0], bias.weight[last - 1])


@pytest.mark.parametrize("stride", [1, 2])
def test_levit_reads_absolute_offsets_in_raster_order(stride: int) -> None:
    bias = filled(SwinBias(2, window=(3, 4), symmetric=True))
    assert len(bias.weight) == 12
    queries, keys = grid(2, 2) * stride, grid(3, 4)
    made = bias.dense(queries, keys, dtype=torch.float64)[0]
    for i, (y, x) in enumerate(queries.tolist()):
        rows = [abs(y - r) * 4 + abs(x - c) for r, c in keys.tolist()]
        assert torch.equal(made[:, i], bias.weight[rows].T)


def test_a_bias_of_each_coordinate_is_their_sum() -> None:
    order, box = filled(T5Bias(2)), filled(T5Bias(2, num_buckets=64, max_distance=256), 1)
    bias = AxesBias([order, box, Alibi(2, symmetric=True)], scale=0.125)
    at = (random(2, 5, 3) * 90).long()
    made = bias.dense(at, at, dtype=torch.float64)
    for b in range(2):
        for i, q in enumerate(at[b].tolist()):
            for j, k in enumerate(at[b].tolist()):
                for head in range(2):
                    row = oracles.t5_bucket(k[0] - q[0])
                    other = oracles.t5_bucket(k[1] - q[1], num_buckets=64, max_distance=256)
                    exact = order.weight[row, head] + box.weight[other, head]
                    exact -= oracles.alibi_slopes(2)[head] * abs(q[2] - k[2])
                    assert made[b, head, i, j].item() == pytest.approx(exact.item() / 8, rel=1e-12)


# --- Tables of other windows ---------------------------------------------------------------------


def ramp(size: tuple[int, int]) -> SwinBias:
    """Head 0 holds the row offset, head 1 the column offset."""
    bias, (height, width) = SwinBias(2, window=size), size
    rows, columns = torch.arange(1 - height, height), torch.arange(1 - width, width)
    bias.weight.data.copy_(torch.cartesian_prod(rows, columns))
    return bias


@pytest.mark.parametrize(("old", "new"), [((7, 7), (12, 12)), ((3, 5), (6, 4)), ((4, 2), (2, 7))])
def test_resized_tables_are_bicubic_over_the_grid_of_offsets(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    bias = filled(SwinBias(2, window=old))
    made = bias.resized(new)
    assert made.window == new
    height, width = 2 * new[0] - 1, 2 * new[1] - 1
    for head in range(2):
        table = bias.weight[:, head].view(2 * old[0] - 1, 2 * old[1] - 1).tolist()
        exact = [
            oracles.bicubic(table, height, width, row, column)
            for row in range(height)
            for column in range(width)
        ]
        assert made.weight[:, head].tolist() == pytest.approx(exact, abs=1e-12)
    middle = len(made.weight) // 2  # the offset (0, 0) keeps its value
    assert_roundings(made.weight[middle], bias.weight[len(bias.weight) // 2], 8, size=1.0)


@pytest.mark.parametrize("kind", [SwinBias, BeitBias])
def test_b155_a_resized_window_has_exactly_the_size_asked_for(kind: Any) -> None:
    """dino#8, dinov2#333: a scale factor floors to one cell less at 61, 115, 122, 39, 43 and 78."""
    for old, sizes in ((14, (61, 115, 122)), (37, (39, 43, 78))):
        bias = kind(1, window=old)
        for new in sizes:
            rows = (2 * new - 1) ** 2 + 3 * (kind is BeitBias)
            assert bias.resized(new).weight.shape == (rows, 1)


def test_b156_a_window_that_is_not_square_is_resized_side_by_side() -> None:
    """dinov2#506: (10, 20) was read as 14 × 14."""
    made = ramp((10, 20)).resized((20, 10)).weight.view(39, 19, 2)
    rows, columns = made[:, 9, 0], made[19, :, 1]
    inner = slice(4, -4)  # edges repeat the last value; the cubic kernel bends a ramp by 0.05
    assert rows[inner].tolist() == pytest.approx(
        [(i + 0.5) * 19 / 39 - 9.5 for i in range(39)][inner],
        abs=0.06,  # the cubic kernel bends a ramp a little
    )
    assert columns[2:-2].tolist() == pytest.approx(
        [(i + 0.5) * 39 / 19 - 19.5 for i in range(19)][2:-2], abs=0.06
    )
    assert made[:, :, 1].std(0).max() < 1e-5  # no column leaks into the rows


def test_b159_resizing_to_the_same_window_is_nothing_and_transposes_with_it() -> None:
    """torchtitan#4244: x before y goes unseen in a square."""
    bias = ramp((3, 4))
    assert torch.equal(bias.resized((3, 4)).weight, bias.weight)
    tall, wide = ramp((3, 4)).resized((5, 9)), ramp((4, 3)).resized((9, 5))
    flipped = wide.weight.view(17, 9, 2).transpose(0, 1).flip(-1).flatten(0, 1)
    assert_roundings(tall.weight, flipped.double(), 4, size=4.0)


def test_b168_a_larger_window_resizes_the_table_and_keeps_the_class_rows() -> None:
    """Swin-Transformer#117, ViT-Adapter#189: BEiT from 14 to 32 goes from 732 rows to 3972."""
    bias = filled(BeitBias(3, window=14))
    assert bias.weight.shape == (732, 3)
    made = bias.resized(32)
    assert made.weight.shape == (3972, 3) and made.weight.dtype == torch.float64
    assert torch.equal(made.weight[-3:], bias.weight[-3:])
    old = bias.weight[:-3].T.reshape(1, 3, 27, 27)
    new = F.interpolate(old, size=(63, 63), mode="bicubic", align_corners=False)
    assert_roundings(made.weight[:-3], new.reshape(3, -1).T, 8, size=1.0)
    assert set(made.state_dict()) == {"weight"}  # no index that could clash
    fresh = BeitBias(3, window=32).double()
    fresh.load_state_dict(made.state_dict())


def test_resized_tables_keep_their_dtype_and_learn() -> None:
    bias = SwinBias(2, window=4).bfloat16()
    made = bias.resized(6)
    assert made.weight.dtype == torch.bfloat16 and made.weight.is_leaf
    assert made.weight.requires_grad and bias.weight.grad is None


# --- Gradients and precision ---------------------------------------------------------------------

LEARNED: dict[str, tuple[LogitBias, Tensor | None]] = {
    "alibi": (Alibi(HEADS, learned=True), None),
    "alibi scaled": (Alibi(HEADS, learned=True, symmetric=True, scale=0.3), None),
    "t5": (T5Bias(HEADS, num_buckets=8, max_distance=16), None),
    "kerple": (Kerple(HEADS), None),
    "kerple power": (Kerple(HEADS, form="power"), None),
    "fire": (Fire(HEADS, width=6, initial_threshold=5.0), None),
    "swin": (SwinBias(HEADS, window=(3, 4)), grid(3, 4)),
    "levit": (SwinBias(HEADS, window=(3, 4), symmetric=True), grid(3, 4)),
    "swinv2": (SwinV2Bias(HEADS, window=(3, 4), width=6), grid(3, 4)),
    "beit": (BeitBias(HEADS, window=(3, 4)), with_class_token(grid(3, 4))[:12]),
    "axes": (AxesBias([T5Bias(HEADS), Kerple(HEADS)]), grid(3, 4)),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_learned_bias_gets_its_gradient_through_every_implementation(name: str) -> None:
    """The finite difference of the loss, through the reference and through both fused paths."""
    bias, at = LEARNED[name]
    bias = filled(bias)
    mask = causal if at is None else None
    q, k, v = heads(12)
    weight = random(2, HEADS, 12, HEAD_DIM, seed=5)
    ways = [("reference", at), ("sdpa", sequence(12) if at is None else at)]
    ways += [("sdpa", None)] if at is None else []  # default positions: the path of distances

    def loss(impl: Any, k_pos: Tensor | None) -> Tensor:
        run: dict[str, Any] = {"mask": mask, "impl": impl, "k_pos": k_pos}
        return (attention(q, k, v, scheme=Scheme(bias=bias), **run) * weight).sum()

    for impl, k_pos in ways:
        parameters = list(bias.parameters())
        gradients = torch.autograd.grad(loss(impl, k_pos), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            direction = random(*parameter.shape, seed=9)
            step, ends = 1e-6, []
            for sign in (1, -2):
                parameter.data.add_(sign * step * direction)
                with torch.no_grad():
                    ends.append(loss("reference", at).item())
            parameter.data.add_(step * direction)
            slope = (ends[0] - ends[1]) / (2 * step)
            assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", LEARNED)
def test_a_bias_is_float32_or_wider_in_bfloat16_and_under_autocast(name: str) -> None:
    """Distances and products are never made in the dtype of the parameters."""
    bias, at = LEARNED[name]
    bias = filled(bias).bfloat16()
    at = torch.tensor([0, 1, 255, 257, 1000, 1001]) if at is None else at
    at = at + 256 if bias.num_axes == 2 and name == "axes" else at
    exact = bias.double().dense(at, at, dtype=torch.float64)  # the same bfloat16 parameters
    plain = bias.bfloat16().dense(at, at)
    with torch.autocast("cpu", torch.bfloat16):
        under = bias.dense(at, at)
    assert torch.equal(plain, under)
    size = exact.abs().max().item() + 1.0
    assert ((plain.double() - exact).abs() <= 64 * eps(torch.float32) * size).all()
