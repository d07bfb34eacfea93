"""Vectors added to embeddings: the rows of that section of docs/differences.md."""

import math
from typing import Any

import pytest
import torch

import oracles
import oracles_added
from differences.rows import flat, row
from posenc import (
    AxialSinusoidal,
    Learned,
    Sinusoidal,
    resize_grid,
)
from posenc.positions import (
    from_padding_mask,
    from_pixel_mask,
    grid,
    sequence,
)
from support import assert_roundings, random


@row("Sinusoids: denominator")
def sinusoid_denominator() -> None:
    for denominator, last in (("d", 1.0366e-4), ("d-2", 1e-4)):
        made = Sinusoidal(512, denominator=denominator)  # pyright: ignore[reportArgumentType]
        assert made.inv_freq()[-1].item() == pytest.approx(last, rel=1e-4)
    assert Sinusoidal(512).denominator == "d"


@row("Sinusoids: layout")
def sinusoid_layout() -> None:
    at = torch.tensor([1])
    f = oracles.frequency(1, 4, 1e4)
    sin, cos = [math.sin(1), math.sin(f)], [math.cos(1), math.cos(f)]
    assert Sinusoidal(4).encode(at)[0].tolist() == pytest.approx([sin[0], cos[0], sin[1], cos[1]])
    made = Sinusoidal(4, layout="concatenated").encode(at)[0].tolist()
    assert made == pytest.approx(sin + cos)
    with pytest.raises(ValueError, match="layout must be 'alternating' or 'concatenated'"):
        Sinusoidal(4, layout="cosines")  # pyright: ignore[reportArgumentType]


@row("Sinusoids: odd width")
def sinusoid_odd() -> None:
    at = torch.tensor([1])
    assert Sinusoidal(5).encode(at)[0, 4].item() == pytest.approx(
        math.sin(oracles.frequency(2, 5, 1e4))
    )
    assert Sinusoidal(5, denominator="d-2").encode(at)[0, 4] == 0


@row("Sinusoids: one pair under d − 2")
def sinusoid_one_pair() -> None:
    made = Sinusoidal(2, denominator="d-2").encode(torch.tensor([0, 3]))
    assert made.flatten().tolist() == pytest.approx([0, 1, math.sin(3), math.cos(3)])


@row("Sinusoids: first position")
def sinusoid_first() -> None:
    at, made = sequence(4), Sinusoidal(6)
    x = torch.zeros(1, 4, 6)
    assert torch.equal(made(x), made(x, at))
    assert made(x)[0, 0].tolist() == [0, 1, 0, 1, 0, 1]
    for first in (1, 2):
        assert torch.equal(made(x, at + first)[0, 0], made.encode(torch.tensor([first]))[0])


@row("Sinusoids: padding")
def sinusoid_padding() -> None:
    at = torch.tensor([-1, 0, 1])
    made = Sinusoidal(4).encode(at)
    assert made[0].tolist() == pytest.approx(
        [oracles_added.sinusoid(-1, c, 4) for c in range(4)], rel=1e-6
    )
    marked = Sinusoidal(4, zero_padding=True).encode(at)
    assert (marked[0] == 0).all() and torch.equal(marked[1:], made[1:])


@row("Sinusoids: amplitude and precision")
def sinusoid_precision() -> None:
    at = torch.tensor([0, 1857, 1_000_003])
    made = Sinusoidal(64).encode(at)
    exact = [[math.sin(p * f) for f in oracles.frequencies(64, 1e4)] for p in at.tolist()]
    assert_roundings(made[:, 0::2], torch.tensor(exact, dtype=torch.float64), 1)
    assert made.abs().max() == 1
    with pytest.raises(ValueError, match="must be integers"):
        Sinusoidal(64).encode(at / at.max())


@row("Sinusoids: how a power is written")
def sinusoid_powers() -> None:
    exact = [10_000.0 ** (-i / 31) for i in range(32)]
    made = Sinusoidal(64, denominator="d-2").inv_freq()
    assert made.tolist() == pytest.approx(exact, rel=1e-15)
    rounded = (torch.arange(32).float() * (-math.log(10_000.0) / 31)).exp()
    assert not torch.equal(rounded, made.float())
    assert rounded.tolist() == pytest.approx(exact, rel=2e-6)
    with pytest.raises(TypeError, match="angle_dtype"):
        Sinusoidal(64, angle_dtype=torch.float32)  # pyright: ignore[reportCallIssue]


@row("Sinusoids of two axes: order")
def two_axes_order() -> None:
    point = (3, 5)
    named: list[dict[str, Any]] = [
        {}, {"axis_order": (1, 0)}, {"layout": "concatenated"}, {"base": (100.0, 20.0)},
    ]  # fmt: skip
    for options in named:
        made = AxialSinusoidal(16, **options).encode(torch.tensor([point]))[0].tolist()
        told = {"bases" if name == "base" else name: x for name, x in options.items()}
        expected = [oracles_added.axial_sinusoid(point, c, 16, **told) for c in range(16)]
        assert made == pytest.approx(expected, abs=1e-6)
    assert AxialSinusoidal(16).axis_order == (0, 1)


@row("Sinusoids of two axes: normalised cells")
def two_axes_cells() -> None:
    assert grid(2, 2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    mask = [[1, 1, 0], [1, 1, 0]]
    for offset in (0.0, -0.5):
        made = from_pixel_mask(torch.tensor([mask]), extent=2 * math.pi, offset=offset)[0]
        for index in (0, 1, 3, 4):
            for axis in (0, 1):
                expected = oracles_added.detr_coordinate(
                    mask, index // 3, index % 3, axis, extent=2 * math.pi, offset=offset
                )
                assert made[index, axis].item() == pytest.approx(expected, rel=1e-12)
    coarse = from_pixel_mask(torch.tensor([mask]), extent=2.0, eps=1.0)[0]
    assert coarse[0].tolist() == pytest.approx([2 / 3, 2 / 3])


@row("Sinusoids of several axes: widths")
def axes_widths() -> None:
    cell, dim = (7, 3, 5), 16
    at = torch.tensor([cell])
    equal = AxialSinusoidal(12, num_axes=3).encode(at)[0].tolist()
    bases = (1e4,) * 3
    expected = [
        oracles_added.axial_sinusoid(cell, c, 12, bases=bases, axis_order=(0, 1, 2))
        for c in range(12)
    ]
    assert equal == pytest.approx(expected, abs=1e-6)
    time = Sinusoidal(dim // 4, layout="concatenated").encode(at[:, 0])
    cells = AxialSinusoidal(3 * dim // 4, layout="concatenated", axis_order=(1, 0))
    uneven = torch.cat((time, cells.encode(at[:, 1:])), -1)[0].tolist()
    assert uneven == pytest.approx(
        [oracles_added.diffusers_3d(cell, c, dim) for c in range(dim)], abs=1e-6
    )
    with pytest.raises(ValueError, match=r"a multiple of 2 · num_axes.* got dim 62, num_axes 2"):
        AxialSinusoidal(62)


@row("Learned table: first row")
def learned_first() -> None:
    mask = torch.tensor([[0, 1, 1]])
    at = from_padding_mask(mask)
    for options, rows in (({"offset": 2}, [1, 2, 3]), ({"padding_idx": 1}, [1, 2, 3])):
        table = Learned(8, 4, **options)
        assert torch.equal(table.encode(at)[0], table.weight[rows])
    table = Learned(8, 4)
    assert torch.equal(table.encode(sequence(8)), table.weight)
    with pytest.raises(ValueError, match=r"\[0, 7\], got position -1"):
        table.encode(at)


@row("Learned table: rows")
def learned_rows() -> None:
    assert Learned(8, 4).weight.shape[0] == 8
    assert Learned(2048, 4, offset=2).weight.shape[0] == 2050
    table = Learned(512, 4, padding_idx=1)
    assert table.weight.shape[0] == 514
    assert torch.equal(table.encode(torch.tensor([511]))[0], table.weight[513])
    with pytest.raises(ValueError, match="512"):
        table.encode(torch.tensor([512]))


@row("Learned table: scale")
def learned_scale() -> None:
    table = Learned(8, 4)
    assert torch.equal(table.encode(sequence(8)), table.weight)


@row("Learned grid at another size")
def learned_grid() -> None:
    table = random(12, 1, seed=4)
    image = table.view(3, 4).tolist()
    named: list[dict[str, Any]] = [
        {}, {"kernel": "bilinear"}, {"antialias": True}, {"align_corners": True},
    ]  # fmt: skip
    for options in named:
        for size in ((2, 3), (5, 7)):
            made = resize_grid(table, size, old_grid=(3, 4), **options)
            told = {"kernel": "bicubic", **options}
            expected = oracles_added.resampled(image, size, **told)
            assert made.flatten().tolist() == pytest.approx(flat(expected), abs=1e-12)
    with pytest.raises(TypeError, match="scale_factor"):
        resize_grid(table, (2, 3), old_grid=(3, 4), scale_factor=0.7)  # pyright: ignore
