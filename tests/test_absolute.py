"""Absolute encodings beyond the registry's defaults: forms of sinusoids, axes, tables of cells."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles_added
from posenc import (
    AxialLearned,
    AxialRope,
    AxialSinusoidal,
    FourierBands,
    Learned,
    RandomFourier,
    Rope,
    Scheme,
    Sinusoidal,
    SwinBias,
    attention,
    positions,
    resize_grid,
)
from posenc.positions import centred, from_pixel_mask, grid, unravel
from support import assert_roundings, heads, random

FORMS: dict[str, dict[str, Any]] = {
    f"{denominator} {layout} {first}": {
        "denominator": denominator,
        "layout": layout,
        "first": first,
    }
    for denominator in ("d", "d-2")
    for layout in ("alternating", "concatenated")
    for first in ("sine", "cosine")
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


def exact(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- Sinusoids -----------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("offset", [0, 2])
def test_every_form_of_a_sinusoid_is_its_formula(form: dict[str, Any], offset: int) -> None:
    at = [0, 1, 7, 511, 100_003, -5]
    made = Sinusoidal(12, offset=offset, **form).encode(torch.tensor(at))
    expected = [[oracles_added.sinusoid(p + offset, c, 12, **form) for c in range(12)] for p in at]
    assert_roundings(made, exact(expected))


@every_form
def test_every_form_shifts_by_a_fixed_matrix(form: dict[str, Any]) -> None:
    encoding = Sinusoidal(10, offset=2, **form)
    here, there = encoding.encode(torch.tensor([5, 5 + 7]), dtype=torch.float64)
    assert (encoding.shift(7) @ here - there).abs().max() < 1e-14


@pytest.mark.parametrize("first", ["sine", "cosine"])
@pytest.mark.parametrize("denominator", ["d", "d-2"])
def test_an_odd_width_keeps_one_more_of_the_first_kind_or_ends_in_zero(
    denominator: str, first: str
) -> None:
    options: Any = {"denominator": denominator, "first": first, "layout": "concatenated"}
    made = Sinusoidal(5, **options).encode(torch.tensor([3]), dtype=torch.float64)[0].tolist()
    one, other = (math.sin, math.cos) if first == "sine" else (math.cos, math.sin)
    if denominator == "d":
        speeds = [1.0, 10_000**-0.4, 10_000**-0.8]
        expected = [*(one(3 * s) for s in speeds), *(other(3 * s) for s in speeds[:2])]
    else:
        speeds = [1.0, 1e-4]
        expected = [*(one(3 * s) for s in speeds), *(other(3 * s) for s in speeds), 0.0]
    assert made == pytest.approx(expected, abs=1e-15)


def test_padding_adds_zeros_and_real_tokens_keep_their_vectors() -> None:
    """fairseq: the row of padding_idx is zero, the first token stands right after it."""
    plain = Sinusoidal(8, offset=2)
    padded = Sinusoidal(8, offset=2, zero_padding=True)
    at = torch.tensor([[-1, -1, 0, 1], [0, 1, 2, -1]])
    made = padded.encode(at)
    assert torch.equal(made[at == -1], torch.zeros(3, 8))
    assert torch.equal(made[at != -1], plain.encode(at)[at != -1])
    assert plain.encode(at)[0, 0].abs().max() > 0  # without the option −1 is a position


def test_amplitude_multiplies_before_the_one_rounding() -> None:
    at, factor = torch.arange(50), 12**-0.5
    wide = Sinusoidal(12).encode(at, dtype=torch.float64)
    assert torch.equal(Sinusoidal(12, amplitude=factor).encode(at), (factor * wide).float())


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
@given(time=st.floats(0, 1000, width=32))
def test_diffusion_times_by_the_words_of_diffusers(shift: int, flip: bool, time: float) -> None:
    encoding = Sinusoidal(
        16,
        layout="concatenated",
        denominator="d-2" if shift else "d",
        first="cosine" if flip else "sine",
        real_positions=True,
    )
    for scale in (1.0, 1000.0):
        scaled = torch.tensor([time], dtype=torch.float64) * scale
        expected = [
            oracles_added.timestep(
                time, c, 16, flip_sin_to_cos=flip, downscale_freq_shift=shift, scale=scale
            )
            for c in range(16)
        ]
        made = encoding.encode(scaled, dtype=torch.float64)
        assert (made - exact([expected])).abs().max() < 1e-9  # angles of 10**6 round at 2**-33


def test_real_positions_are_taken_only_where_they_are_meant() -> None:
    times = torch.tensor([0.25, 0.5])
    real = Sinusoidal(8, real_positions=True)
    assert real(torch.zeros(1, 2, 8), times).shape == (1, 2, 8)
    assert torch.equal(real.encode(torch.arange(4)), Sinusoidal(8).encode(torch.arange(4)))
    with pytest.raises(ValueError, match=r"must be integers \(int64\), got dtype torch.float32"):
        Sinusoidal(8).encode(times)
    with pytest.raises(ValueError, match=r"got dtype torch\.bfloat16"):
        real.encode(times.bfloat16())


def test_a_real_position_gets_a_gradient() -> None:
    time = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    made = Sinusoidal(2, real_positions=True).encode(time, dtype=torch.float64)
    made[0, 0].backward()
    assert time.grad is not None and time.grad.item() == pytest.approx(math.cos(0.5))


# --- Several coordinates -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["alternating", "concatenated"])
@pytest.mark.parametrize("axis_order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("bases", [(10_000.0, 10_000.0), (20.0, 30.0)])
def test_axial_sinusoids_are_their_formula(
    bases: tuple[float, float], axis_order: tuple[int, int], layout: Any
) -> None:
    cells = grid(3, 4) + 1
    encoding = AxialSinusoidal(16, base=bases, axis_order=axis_order, layout=layout)
    options: Any = {"bases": bases, "axis_order": axis_order, "layout": layout}
    expected = [
        [oracles_added.axial_sinusoid(cell, c, 16, **options) for c in range(16)]
        for cell in cells.tolist()
    ]
    assert_roundings(encoding.encode(cells), exact(expected))
    assert torch.equal(encoding.encode(cells[None])[0], encoding.encode(cells))


def test_boxes_have_four_axes_and_y_comes_first() -> None:
    box = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64) * (2 * math.pi)
    made = AxialSinusoidal(32, 4, axis_order=(1, 0, 2, 3)).encode(box, dtype=torch.float64)
    options: Any = {"bases": (1e4,) * 4, "axis_order": (1, 0, 2, 3)}
    expected = [oracles_added.axial_sinusoid(box[0].tolist(), c, 32, **options) for c in range(32)]
    assert (made - exact([expected])).abs().max() < 1e-14


@pytest.mark.parametrize("offset", [0.0, -0.5])
def test_coordinates_of_padded_images_count_real_cells(offset: float) -> None:
    rows = [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    mask = torch.tensor([rows, [[1] * 4] * 3], dtype=torch.bool)
    made = from_pixel_mask(mask, extent=2 * math.pi, offset=offset)
    options: Any = {"extent": 2 * math.pi, "offset": offset}
    expected = [
        [
            [oracles_added.detr_coordinate(image, row, column, axis, **options) for axis in (0, 1)]
            for row in range(3)
            for column in range(4)
        ]
        for image in mask.int().tolist()
    ]
    assert torch.allclose(made, exact(expected), rtol=1e-14, atol=1e-14)
    counts = from_pixel_mask(mask)
    assert counts.dtype == torch.int64
    assert torch.equal(counts[1], grid(3, 4) + 1)
    assert counts[0, 2].tolist() == [1, 3] and counts[0, 3].tolist() == [0, 3]


def test_axial_tables_side_by_side_and_added() -> None:
    cells = torch.tensor([[0, 4], [2, 1], [2, 4]])
    side = AxialLearned((3, 5), (2, 4), axis_order=(1, 0))
    tables = [table.tolist() for table in side.tables]
    expected = [
        [oracles_added.axial_learned(cell, c, tables, axis_order=(1, 0)) for c in range(6)]
        for cell in cells.tolist()
    ]
    assert torch.equal(side.encode(cells).double(), exact(expected))
    added = AxialLearned((3, 5), 4, combine="added")
    rows, columns = added.tables
    assert torch.equal(added.encode(cells), rows[[0, 2, 2]] + columns[[4, 1, 4]])


def test_a_folded_row_of_tokens_reads_line_and_place() -> None:
    """Reformer: position p reads line p // W and place p % W."""
    table = AxialLearned((4, 6), (2, 3))
    at = torch.tensor([[0, 7, 13], [23, 5, 6]])
    cells = unravel(at, (4, 6))
    assert cells.tolist() == [[[p // 6, p % 6] for p in row] for row in at.tolist()]
    lines, places = table.tables
    assert torch.equal(table.encode(cells), torch.cat((lines[at // 6], places[at % 6]), -1))
    with pytest.raises(ValueError, match=r"in a grid of \(4, 6\) must lie in \[0, 23\]"):
        unravel(torch.tensor([24]), (4, 6))


def test_embeddings_and_attention_may_be_counted_differently() -> None:
    """EVA-02: one table for all tokens, rotation by cells; Reformer: cells, and a causal mask."""
    for scheme in (
        Scheme(additive=Learned(20, 8), rotary=AxialRope(8)),
        Scheme(additive=AxialLearned((4, 5), (4, 4)), rotary=Rope(8)),
    ):
        assert scheme.num_axes == (2 if isinstance(scheme.rotary, AxialRope) else 1)
    q, k, v = heads(6)
    out = attention(q, k, v, scheme=Scheme(additive=AxialSinusoidal(8)))  # causal, in storage order
    assert torch.equal(out, attention(q, k, v))
    told = r"additive= reads 4|rotary= reads 2"
    with pytest.raises(ValueError, match=told):
        Scheme(additive=AxialSinusoidal(8, 4), rotary=AxialRope(8))
    with pytest.raises(ValueError, match=r"additive= reads 4"):
        Scheme(additive=AxialSinusoidal(8, 4), bias=SwinBias(2, window=(2, 2)))


# --- Fourier features ----------------------------------------------------------------------------


def test_random_frequencies_are_saved_and_learn_only_where_asked() -> None:
    fixed, learned = RandomFourier(8), RandomFourier(8, learned=True)
    assert not fixed.frequencies.requires_grad and list(fixed.state_dict()) == ["frequencies"]
    assert [(p.shape, p.requires_grad) for p in learned.parameters()] == [((2, 4), True)]
    points = random(5, 2, dtype=torch.float32)
    twin = RandomFourier(8)
    assert not torch.equal(twin.encode(points), fixed.encode(points))
    twin.load_state_dict(fixed.state_dict())
    assert torch.equal(twin.encode(points), fixed.encode(points))
    learned.encode(points).square()[:, 0].sum().backward()
    assert learned.frequencies.grad is not None
    assert learned.frequencies.grad[:, 0].abs().min() > 0


@pytest.mark.parametrize("num_axes", [1, 2, 3])
def test_random_fourier_is_its_formula(num_axes: int) -> None:
    encoding = RandomFourier(10, num_axes=num_axes, scale=3.0)
    points = random(4, num_axes, dtype=torch.float32)
    matrix = encoding.frequencies.tolist()
    expected = [
        [oracles_added.random_fourier(x, c, matrix) for c in range(10)] for x in points.tolist()
    ]
    made = encoding.encode(points if num_axes > 1 else points[:, 0])
    assert_roundings(made, exact(expected))


def test_frequencies_are_drawn_with_the_scale() -> None:
    torch.manual_seed(0)
    drawn = RandomFourier(20_000, scale=7.0).frequencies
    assert drawn.std().item() == pytest.approx(7.0, rel=0.02)
    assert drawn.mean().item() == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize("keep", [True, False])
def test_bands_are_their_formula(keep: bool) -> None:
    encoding = FourierBands(4, (6, 8), keep_positions=keep)
    assert encoding.dim == 16 + 2 * keep
    cells = centred(6, 8, ends=True)
    options: Any = {"num_bands": 4, "resolution": (6, 8), "keep_positions": keep}
    expected = [
        [oracles_added.fourier_bands(x, c, **options) for c in range(encoding.dim)]
        for x in cells.tolist()
    ]
    made = encoding.encode(cells, dtype=torch.float64)
    assert (made - exact(expected)).abs().max() < 1e-14
    sines = FourierBands(4, (6, 8), keep_positions=keep, sine_only=True)
    assert torch.equal(sines.encode(cells), made[:, : sines.dim].float())


# --- Tables of cells, resampled (B155, B156, B159) -----------------------------------------------

KERNELS: list[dict[str, Any]] = [
    {"kernel": kernel, "antialias": antialias, "align_corners": corners}
    for kernel in ("bicubic", "bilinear")
    for antialias, corners in ((False, False), (True, False), (False, True))
]
every_kernel = pytest.mark.parametrize(
    "kernel", KERNELS, ids=lambda k: "-".join(map(str, k.values()))
)


@every_kernel
@pytest.mark.parametrize(("old", "new"), [((3, 4), (5, 7)), ((6, 5), (4, 2)), ((4, 4), (7, 3))])
def test_a_resampled_table_is_the_weighted_sum_of_its_cells(
    old: tuple[int, int], new: tuple[int, int], kernel: dict[str, Any]
) -> None:
    table = random(2 + old[0] * old[1], 2, dtype=torch.float32)
    made = resize_grid(table, new, old_grid=old, num_prefix=2, **kernel)
    assert torch.equal(made[:2], table[:2])  # class tokens stay
    for channel in range(2):
        image = table[2:, channel].reshape(old).tolist()
        expected = oracles_added.resampled(image, new, **kernel)
        assert_roundings(made[2:, channel].reshape(new), exact(expected), 4)


@every_kernel
@pytest.mark.parametrize("side", [61, 115, 122])
def test_b155_the_target_grid_is_exact(side: int, kernel: dict[str, Any]) -> None:
    """facebookresearch/dino#8: 14 · (61 / 14) floors to 60 where a scale factor is passed."""
    made = resize_grid(random(1 + 14 * 14, 1), (side, side), num_prefix=1, **kernel)
    assert made.shape == (1 + side * side, 1)


@pytest.mark.parametrize("side", [39, 43, 78])
def test_b155_from_a_grid_of_37(side: int) -> None:
    made = Learned(1 + 37 * 37, 2).resized_grid((side, side), num_prefix=1)
    assert made.num_positions == 1 + side * side


def test_b156_a_grid_that_is_no_square_must_be_named() -> None:
    """facebookresearch/dinov2#506."""
    table = random(200, 3)
    with pytest.raises(ValueError, match=r"200 cells after 0 prefix rows are no square: give old"):
        resize_grid(table, (20, 20))
    assert torch.equal(resize_grid(table, (10, 20), old_grid=(10, 20)), table)
    with pytest.raises(ValueError, match=r"old_grid \(14, 14\) has 196 cells, but the table has"):
        resize_grid(table, (20, 20), old_grid=(14, 14))


def test_b156_a_square_number_of_cells_may_be_another_grid() -> None:
    """100 = 10 · 10 = 5 · 20: naming the grid wins over the square."""
    table = random(100, 1)
    wide = resize_grid(table, (10, 40), old_grid=(5, 20))
    square = resize_grid(table, (10, 40))
    assert not torch.allclose(wide, square)
    assert torch.equal(resize_grid(table, (5, 20), old_grid=(5, 20)), table)


@every_kernel
def test_b159_rows_stay_rows_and_columns_stay_columns(kernel: dict[str, Any]) -> None:
    """pytorch/torchtitan#4244: h = 3, w = 4. A square would hide an exchange of the two."""
    h, w = 3, 4
    ramp = torch.stack(torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij"), -1)
    table = ramp.reshape(h * w, 2).double()
    assert torch.equal(resize_grid(table, (h, w), old_grid=(h, w), **kernel), table)
    made = resize_grid(table, (6, 8), old_grid=(h, w), **kernel).reshape(6, 8, 2)
    assert torch.allclose(made[:, :1, 0].expand(6, 8), made[..., 0], atol=1e-12)  # rows: down only
    assert torch.allclose(made[:1, :, 1].expand(6, 8), made[..., 1], atol=1e-12)
    turned = ramp.transpose(0, 1).reshape(h * w, 2).double()
    back = resize_grid(turned, (8, 6), old_grid=(w, h), **kernel).reshape(8, 6, 2).transpose(0, 1)
    assert torch.allclose(back, made, atol=1e-12)


def test_b159_cells_of_an_image_are_row_major() -> None:
    image = AxialSinusoidal(8).encode(grid(3, 4)).reshape(3, 4, 8)
    assert torch.equal(image[2, 3], AxialSinusoidal(8).encode(torch.tensor([[2, 3]]))[0])
    rows, columns = image[..., :4], image[..., 4:]
    assert (rows[:, 0] == rows[:, 3]).all() and not torch.equal(rows[0, 0], rows[2, 0])
    assert (columns[0] == columns[2]).all() and not torch.equal(columns[0, 0], columns[0, 3])


def test_a_resized_table_learns_on_its_own_and_keeps_its_dtype() -> None:
    table = Learned(17, 3).to(torch.bfloat16)
    finer = table.resized_grid((6, 6), num_prefix=1)
    assert finer.weight.dtype == torch.bfloat16 and finer.weight.requires_grad
    wide = resize_grid(table.weight.detach().double(), (6, 6), num_prefix=1)
    assert_roundings(finer.weight.detach(), wide, 1)


# --- What is refused -----------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "first": (lambda: Sinusoidal(8, first="sin"), r"first must be 'sine' or 'cosine', got 'sin'"),  # pyright: ignore[reportArgumentType]
    "amplitude": (lambda: Sinusoidal(8, amplitude=0.0), r"finite number but 0, got 0\.0"),
    "offset": (lambda: Sinusoidal(8, offset=1.5), r"offset must be an int, got 1\.5"),  # pyright: ignore[reportArgumentType]
    "axes": (lambda: AxialSinusoidal(8, 1), r"at least two axes, got dim 8, num_axes 1"),
    "width": (lambda: AxialSinusoidal(10), r"multiple of 2 · num_axes.*got dim 10, num_axes 2"),
    "bases": (lambda: AxialSinusoidal(8, base=(1e4,)), r"one number, or 2, got \(10000\.0,\)"),
    "base": (lambda: AxialSinusoidal(8, base=(1e4, -1.0)), r"base must be a positive finite"),
    "order": (lambda: AxialSinusoidal(8, axis_order=(0, 0)), r"order the axes \(0, 1\), got"),
    "no positions": (
        lambda: AxialSinusoidal(8)(torch.zeros(1, 4, 8)),
        r"AxialSinusoidal reads positions with 2 axes, \[\.\.\., T, 2\]: give them",
    ),
    "one axis": (
        lambda: AxialSinusoidal(8).encode(torch.arange(5)),
        r"must have shape \[T, 2\] or \[B, T, 2\] with T = 5 tokens, got \[5\]",
    ),
    "a size": (lambda: AxialLearned((3, 0), (2, 2)), r"a size must be a positive int, got 0"),
    "one size": (lambda: AxialLearned((3,), (2,)), r"at least two axes, got \(3,\)"),
    "widths": (lambda: AxialLearned((3, 4), (2,)), r"a width for each of 2 axes, got \(2,\)"),
    "one width": (lambda: AxialLearned((3, 4), 4), r"concatenated have 2 widths, got 4"),
    "combine": (
        lambda: AxialLearned((3, 4), 4, combine="sum"),  # pyright: ignore[reportArgumentType]
        r"'concatenated' or 'added', got 'sum'",
    ),
    "outside": (
        lambda: AxialLearned((3, 4), (2, 2)).encode(torch.tensor([[0, 0], [3, 1]])),
        r"coordinate 0 of a table of 3 must lie in \[0, 2\], got position 3",
    ),
    "real cell": (
        lambda: AxialLearned((3, 4), (2, 2)).encode(torch.zeros(1, 2)),
        r"must be integers \(int64\), got dtype torch\.float32",
    ),
    "odd": (lambda: RandomFourier(7), r"dim must be even.*got 7"),
    "scale": (lambda: RandomFourier(8, scale=0.0), r"scale must be a positive.*got 0\.0"),
    "resolution": (lambda: FourierBands(4, ()), r"an entry for each axis, got \(\)"),
    "bands": (lambda: FourierBands(0, (4,)), r"num_bands must be a positive int, got 0"),
    "prefix": (
        lambda: resize_grid(torch.zeros(4, 2), (2, 2), num_prefix=4),
        r"leave at least one cell, got 4 of 4 rows",
    ),
    "grid": (lambda: resize_grid(torch.zeros(4, 2), 7), r"grid must be \(height, width\), got 7"),  # pyright: ignore[reportArgumentType]
    "side": (lambda: resize_grid(torch.zeros(4, 2), (0, 2)), r"a side of grid must be.*got 0"),
    "kernel": (
        lambda: resize_grid(torch.zeros(4, 2), (3, 3), kernel="nearest"),  # pyright: ignore[reportArgumentType]
        r"'bicubic' or 'bilinear', got 'nearest'",
    ),
    "both": (
        lambda: resize_grid(torch.zeros(4, 2), (3, 3), antialias=True, align_corners=True),
        r"antialias=True needs align_corners=False",
    ),
    "integers": (
        lambda: resize_grid(torch.zeros(4, 2, dtype=torch.int64), (3, 3)),
        r"floating \[rows, dim\], got torch\.int64 \[4, 2\]",
    ),
    "rows before": (
        lambda: Learned(9, 2, offset=2).resized_grid((4, 4)),
        r"no rows before its own, got offset 2",
    ),
    "mask": (
        lambda: from_pixel_mask(torch.ones(3, 4, dtype=torch.bool)),
        r"cells \[B, H, W\], got",
    ),
    "mask of reals": (lambda: from_pixel_mask(torch.ones(1, 3, 4)), r"got torch\.float32"),
    "mask of twos": (lambda: from_pixel_mask(torch.full((1, 3, 4), 2)), r"holds 0 and 1"),
    "offset of counts": (
        lambda: from_pixel_mask(torch.ones(1, 3, 4, dtype=torch.bool), offset=-0.5),
        r"offset -0\.5 shifts reals: give extent too",
    ),
    "sizes": (lambda: unravel(positions.sequence(3), (0, 3)), r"sizes must be positive.*\(0, 3\)"),
}


@pytest.mark.parametrize(("make", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_says_what_was_given(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
