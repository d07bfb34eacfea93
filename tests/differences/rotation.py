"""Rotation: the rows of that section of docs/differences.md."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import oracles
import oracles_forms
from differences.rows import row, speeds
from posenc import (
    AxialRope,
    LongRope,
    MixedRope,
    MRope,
    Proportional,
    Rope,
    Table,
    XPos,
    rotate,
)
from posenc.contracts import Pairing
from posenc.interop.gguf import scheme_from_fields
from posenc.interop.hf import scheme_from_config
from posenc.positions import (
    centred,
    grid,
    sequence,
)
from support import assert_roundings, random


@row("Partial rotation: exponents and place")
def partial() -> None:
    x = random(1, 1, 1, 16)
    for placement, kept in (("leading", slice(8, 16)), ("trailing", slice(0, 8))):
        rope = Rope(16, rotary_dim=8, placement=placement)  # pyright: ignore[reportArgumentType]
        assert speeds(rope) == pytest.approx(oracles.frequencies(8, 1e4))
        out = rotate(x, rope.table(torch.tensor([3])))
        assert torch.equal(out[..., kept], x[..., kept]) and (out != x).sum() == 8
    over_head = speeds(Rope(16, scaling=Proportional(0.5)))
    assert over_head[:4] == pytest.approx(oracles.frequencies(16, 1e4)[:4])
    with pytest.raises(ValueError, match="must be even"):
        Rope(16, rotary_dim=5)


@row("Partial rotation: how many channels")
def partial_count() -> None:
    neox = {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 1, "max_position_embeddings": 64}  # fmt: skip
    for share, channels in ((0.25, 4), (0.3, 4), (0.5, 8)):
        rope: Any = scheme_from_config({**neox, "rotary_pct": share}).scheme.rotary
        assert rope.rotary_dim == channels == int(share * 16)
    with pytest.raises(ValueError, match=r"expected an even number of rotated channels.*gives 5"):
        scheme_from_config({**neox, "rotary_pct": 0.32})


@row("Partial rotation: default width")
def partial_width() -> None:
    assert Rope(64).rotary_dim == 64
    for width in (32, 16):
        rope = Rope(64, rotary_dim=width)
        assert speeds(rope) == pytest.approx(oracles.frequencies(width, 1e4))
        assert rope.table(sequence(3)).rotary_dim == width


@row("Which heads turn")
def heads_that_turn() -> None:
    x, at = random(1, 4, 3, 8), torch.tensor([0, 2, 9])
    table = Rope(8).table(at, dtype=torch.float64)
    every = rotate(x, table)
    assert all((every[0, head, 1:] != x[0, head, 1:]).all() for head in range(4))
    last = torch.cat((x[:, :-2], rotate(x[:, -2:], table)), 1)
    for head in range(4):
        for token, position in enumerate(at.tolist()):
            row_of = x[0, head, token].tolist()
            turned = oracles.rotated(row_of, position, oracles.frequencies(8, 1e4))
            expected = turned if head >= 2 else row_of
            assert last[0, head, token].tolist() == pytest.approx(expected, rel=1e-12)
    with pytest.raises(TypeError, match="num_heads"):
        Rope(8, num_heads=2)  # pyright: ignore[reportCallIssue]


@row("Pairing")
def pairing() -> None:
    assert Rope(8).pairing == "half"
    x = [1.0, 2.0, 3.0, 4.0]
    for name in ("half", "adjacent"):
        rope = Rope(4, pairing=name)
        out = rotate(torch.tensor(x).view(1, 1, 1, 4).double(), rope.table(torch.tensor([1])))
        expected = oracles.rotated(x, 1, oracles.frequencies(4, 1e4), pairing=name)
        assert out.flatten().tolist() == pytest.approx(expected, rel=1e-6)


@row("Order of the result's channels")
def result_order() -> None:
    x, at = random(1, 2, 4, 8), torch.tensor([0, 3, 5, 9])
    rope = Rope(8, pairing="adjacent")
    assert torch.equal(rotate(x, rope.table(torch.zeros_like(at))), x)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    mixed = rotate(x[..., order], Rope(8).table(at))  # as those come back
    out = rotate(x, rope.table(at))
    assert torch.equal(mixed, out[..., order]) and not torch.equal(mixed, out)
    assert_roundings(mixed @ mixed.mT, out @ out.mT, 8)


@row("Tables: width and order")
def table_columns() -> None:
    x, at = random(1, 1, 2, 8), torch.tensor([1, 7])
    forms: dict[Pairing, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
        "half": (
            lambda cos: torch.cat((cos, cos), -1),
            lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1),
        ),
        "adjacent": (
            lambda cos: cos.repeat_interleave(2, -1),
            lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2),
        ),
    }
    for pairing, (widen, partner) in forms.items():
        table = Rope(8, pairing=pairing).table(at, dtype=torch.float64)
        assert table.cos.shape == table.sin.shape == (1, 2, 4)
        doubled = x * widen(table.cos)[:, None] + partner(x) * widen(table.sin)[:, None]
        assert_roundings(doubled, rotate(x, table), 2)
    with pytest.raises(ValueError, match="holds one column for each pair"):
        Table(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8), "half", 8)


@row("Arithmetic of the rotation")
def arithmetic() -> None:
    x, at = random(1, 1, 64, 8, dtype=torch.bfloat16), sequence(64)
    rope = Rope(8)
    exact = rotate(x.double(), rope.table(at, dtype=torch.float64))
    out = rotate(x, rope.table(at))
    assert out.dtype == torch.bfloat16
    assert_roundings(out, exact, 0.51)
    rounded = rope.tables(at, at, dtype=torch.bfloat16).q
    assert torch.equal(rounded.cos, rope.table(at).cos.bfloat16())
    assert rotate(x, rounded).dtype == torch.bfloat16 and not torch.equal(rotate(x, rounded), out)


@row("Frequencies")
def frequencies() -> None:
    assert speeds(Rope(128)) == pytest.approx(oracles.frequencies(128, 1e4), rel=1e-15)
    made = Rope(128, angle_dtype=torch.float32)
    exponents = torch.arange(0, 128, 2, dtype=torch.int64).float() / 128
    theirs = 1.0 / (10_000.0**exponents)
    assert torch.equal(made.frequencies().inv_freq, theirs)
    at = torch.tensor([0, 1, 100_003])
    assert torch.equal(made.table(at).cos[0], (at.float()[:, None] * theirs).cos())


@row("Frequencies: how a power is written")
def powers() -> None:
    exponent = torch.arange(0, 128, 2).float() / 128
    theirs = 1.0 / 1e4**exponent
    logs = (-math.log(1e4) * exponent).exp()
    negative = 1e4 ** (-exponent)
    exact = oracles.frequencies(128, 1e4)
    made = Rope(128, angle_dtype=torch.float32).frequencies().inv_freq
    assert torch.equal(made, theirs)
    for other in (logs, negative):
        assert not torch.equal(other, theirs)
        assert other.tolist() == pytest.approx(exact, rel=2e-6)
    one_by_one = [math.exp(-math.log(1e4) * 2 * i / 128) for i in range(64)]
    assert speeds(Rope(128)) == pytest.approx(exact, rel=1e-15)
    assert one_by_one == pytest.approx(exact, rel=4e-15)
    with pytest.raises(ValueError, match="angle_dtype must be float64 or float32, got"):
        Rope(128, angle_dtype=torch.bfloat16)


@row("Positions: precision")
def position_precision() -> None:
    at = [2**24 + 1, 2**40 + 1]
    exact = [[math.sin(p * f) for f in oracles.frequencies(8, 1e4)] for p in at]
    made = Rope(8).table(torch.tensor(at), dtype=torch.float64).sin[0]
    assert made.flatten().tolist() == pytest.approx([x for line in exact for x in line], abs=2e-4)
    alike = torch.tensor([2**24, 2**24 + 1])
    rounded = Rope(8, angle_dtype=torch.float32).table(alike).sin[0]
    assert torch.equal(rounded[0], rounded[1])
    kept = Rope(8).table(alike).sin[0]
    assert not torch.equal(kept[0], kept[1])
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(ValueError, match="positions must be integers"):
            Rope(8).table(torch.tensor([1.0], dtype=dtype))


@row("M-RoPE: which pairs")
def mrope_pairs() -> None:
    rope = Rope(16)
    assert MRope(rope, (2, 3, 3)) == MRope(rope, (2, 3, 3), "contiguous")
    for order, sections in (("contiguous", (2, 3, 3)), ("interleaved", (3, 3, 2))):
        made = MRope(rope, sections, order)  # pyright: ignore[reportArgumentType]
        assert list(made.axis_of_pair) == [
            oracles_forms.mrope_axis(pair, sections, order) for pair in range(8)
        ]
    assert MRope(rope, (2, 3, 3), "alternating").axis_of_pair == (1, 2, 1, 2, 1, 2, 0, 0)
    listed = (0, 1, 2, 0, 1, 2, 1, 2)
    assert MRope(rope, (2, 3, 3), listed).axis_of_pair == listed


@row("M-RoPE: what sections count")
def mrope_counts() -> None:
    made = MRope(Rope(16), (2, 3, 3))
    assert [made.axis_of_pair.count(axis) for axis in range(3)] == [2, 3, 3]
    for sections in ((4, 6, 6), (2, 3, 3, 2, 3, 3)):
        with pytest.raises(ValueError, match=r"add up to the 8 pairs .* = 16"):
            MRope(Rope(16), sections)


@row("M-RoPE: sections that turns do not fill")
def mrope_left_over() -> None:
    made = MRope(Rope(128), (24, 20, 20), "interleaved").axis_of_pair
    assert made == tuple(
        oracles_forms.mrope_axis(pair, (24, 20, 20), "interleaved") for pair in range(64)
    )
    assert made[57:] == (0, 1, 2, 0, 0, 0, 0)
    with pytest.raises(ValueError, match=r"\(22, 21, 21\) of the 64 pairs, not sections \(20, 22"):
        MRope(Rope(128), (20, 22, 22), "interleaved")


@row("M-RoPE: fourth axis")
def mrope_fourth() -> None:
    axes = tuple(oracles_forms.ggml_axis(pair, (24, 20, 20, 0)) for pair in range(64))
    assert [pair for pair in range(64) if axes[pair] == 3] == [61, 62]
    made = MRope(Rope(128), tuple(axes.count(axis) for axis in range(4)), axes)
    assert made.sections == (22, 20, 20, 2) and made.num_axes == 4
    place = (40, 3, 7, 5)
    speed = oracles.frequencies(128, 1e4)
    expected = [math.sin(place[axis] * s) for axis, s in zip(axes, speed, strict=True)]
    table = made.table(torch.tensor([place]), dtype=torch.float64)
    assert table.sin.flatten().tolist() == pytest.approx(expected, abs=1e-12)
    three = MRope(Rope(128), (24, 20, 20), "interleaved")
    with pytest.raises(ValueError, match="positions"):
        three.table(torch.tensor([place]))
    whole = MRope(Rope(128), (16, 24, 24, 0))
    assert whole.axis_of_pair == MRope(Rope(128), (16, 24, 24)).axis_of_pair
    fields = {"general.architecture": "qwen2", "qwen2.block_count": 1, "qwen2.embedding_length": 64,
              "qwen2.attention.head_count": 1,
              "qwen2.rope.dimension_sections": [16, 24, 24, 0]}  # fmt: skip
    with pytest.raises(ValueError, match=r"rope.dimension_sections = .*no such key"):
        scheme_from_fields(fields)


@row("M-RoPE: speeds")
def mrope_speeds() -> None:
    made = MRope(Rope(16), (4, 4)).frequencies().inv_freq.tolist()
    assert made == pytest.approx(oracles.frequencies(16, 1e4))
    anew = AxialRope(16).frequencies().inv_freq.tolist()
    assert anew == pytest.approx(oracles.frequencies(8, 1e4) * 2)


@row("Images: coordinates")
def coordinates() -> None:
    assert grid(2, 3).tolist() == [[r, c] for r in range(2) for c in range(3)]
    assert (grid(2, 3) + 1).tolist() == [[r, c] for r in (1, 2) for c in (1, 2, 3)]
    spread = centred(4, 1, extent=2 * math.pi)[:, 0].tolist()
    assert spread == pytest.approx([2 * math.pi * (2 * (i + 0.5) / 4 - 1) for i in range(4)])
    ends = centred(3, 5, extent=math.pi, ends=True)[:5, 1].tolist()
    assert ends == pytest.approx([math.pi * (-1 + 2 * i / 4) for i in range(5)])


@row("Images: order of axes")
def axes() -> None:
    at = (3, 5)
    named: list[dict[str, Any]] = [
        {}, {"axis_order": (1, 0)}, {"order": "alternating"}, {"spectrum": "dealt"},
    ]  # fmt: skip
    for options in named:
        form = AxialRope(16, **options)
        expected = oracles_forms.axial_angles(
            at,
            (8, 8),
            1e4,
            axis_order=form.axis_order,
            alternating=form.order == "alternating",
            dealt=form.spectrum == "dealt",
        )
        made = form.table(torch.tensor([at]), dtype=torch.float64).sin.flatten().tolist()
        assert made == pytest.approx([math.sin(angle) for angle in expected])
    assert AxialRope(16).axis_order == (0, 1) and AxialRope(16).axis_of_pair[0] == 0


@row("Images: class token")
def class_token() -> None:
    x = random(1, 1, 1, 16)
    assert torch.equal(rotate(x, AxialRope(16).table(torch.tensor([[0, 0]]))), x)
    assert (rotate(x, AxialRope(16).table(torch.tensor([[-2, -2]]))) != x).all()


@row("Images: base")
def image_base() -> None:
    named: list[tuple[dict[str, Any], float]] = [({}, 1e4), ({"base": 100.0}, 100.0)]
    for options, base in named:
        made = AxialRope(16, **options).frequencies().inv_freq.tolist()
        assert made == pytest.approx(oracles.frequencies(8, base) * 2)
    named = [({}, 10.0), ({"base": 50.0}, 50.0)]
    for options, base in named:
        weight = MixedRope(16, **options).weight.detach()
        made = weight.norm(dim=0).tolist()  # both directions of each speed
        assert made == pytest.approx(oracles.frequencies(8, base) * 2, rel=1e-5)


@row("Images: speeds")
def image_speeds() -> None:
    geometric = oracles.frequencies(8, 1e4)
    assert AxialRope(16).frequencies().inv_freq.tolist() == pytest.approx(geometric * 2)
    wanted = [math.pi * (1 + i * (10 / 2 - 1) / 3) for i in range(4)]  # max_freq 10
    divisors = tuple(g / w for g, w in zip(geometric, wanted, strict=True))
    linear = AxialRope(16, scaling=LongRope(divisors, divisors, 1.0, 2, attention_factor=1.0))
    made = linear.frequencies()
    assert made.inv_freq.tolist() == pytest.approx(wanted * 2) and made.attention_factor == 1


@row("Images: three axes")
def image_three_axes() -> None:
    at = (7, 3, 5)
    equal = AxialRope(64, split=3)
    assert equal.axis_dims == (20, 20, 20) and equal.rotary_dim == 60
    for width in (64, 128):
        split = (width // 4, 3 * width // 8, 3 * width // 8)
        form = AxialRope(width, split=split, pairing="adjacent")
        expected = oracles_forms.axial_angles(at, split, 1e4, axis_order=(0, 1, 2))
        made = form.table(torch.tensor([at]), dtype=torch.float64)
        assert made.sin.flatten().tolist() == pytest.approx([math.sin(x) for x in expected])
        x = random(1, 1, 1, width)
        turned = oracles_forms.turned(x.flatten().tolist(), expected, pairing="adjacent")
        assert rotate(x, made).flatten().tolist() == pytest.approx(turned)
    with pytest.raises(ValueError, match="an even number of channels for each"):
        AxialRope(64, split=(16, 23, 25))


@row("xPos: centre")
def xpos_centre() -> None:
    whole = XPos(Rope(8)).tables(sequence(9), sequence(9)).k
    alone = XPos(Rope(8)).tables(sequence(1, start=8), sequence(1, start=8)).k
    assert torch.equal(whole.cos[:, 8:], alone.cos)
    assert XPos(Rope(8)).origin == 0
    moved = XPos(Rope(8), origin=8).table(torch.tensor([8]), side="key", dtype=torch.float64)
    plain = Rope(8).table(torch.tensor([8]), dtype=torch.float64)
    assert torch.equal(moved.cos, plain.cos)


@row("xPos: amplitudes")
def xpos_amplitude() -> None:
    at = [0, 1, 700, 5000]
    for side in ("query", "key"):
        made = XPos(Rope(8)).table(torch.tensor(at), side=side)
        exact = []
        for p in at:
            sizes = oracles_forms.xpos_amplitudes(p, 8, side, base=512.0, origin=0, gamma=0.4)
            turns = [math.cos(p * s) for s in oracles.frequencies(8, 1e4)]
            exact.append([a * c for a, c in zip(sizes, turns, strict=True)])
        wanted = torch.tensor(exact, dtype=torch.float64)
        assert_roundings(made.cos[0], wanted, 1, size=wanted.abs())
