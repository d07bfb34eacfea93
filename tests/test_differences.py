"""Each row of docs/differences.md: the default, and the readings that have a name or a refusal."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import oracles
import oracles_added
import oracles_forms
import oracles_relative
from posenc import (
    NTK,
    Alibi,
    AxialRope,
    AxialSinusoidal,
    BeitBias,
    Block,
    Cope,
    Deberta,
    Decomposed,
    DynamicNTK,
    Fire,
    Kerple,
    Learned,
    Linear,
    Llama3,
    LongRope,
    MRope,
    NTKByParts,
    Proportional,
    Rope,
    Sandwich,
    Scheme,
    Sinusoidal,
    Spectrum,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    TransformerXL,
    XPos,
    Yarn,
    attention,
    resize_grid,
    rotate,
)
from posenc.interop.hf import scheme_from_config
from posenc.positions import (
    centred,
    from_padding_mask,
    from_pixel_mask,
    grid,
    sequence,
    with_class_token,
)
from posenc.scaling.yarn import ramp_ends
from support import assert_roundings, random

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROWS: dict[str, Callable[[], None]] = {}
Check = Callable[[], None]


def row(name: str) -> Callable[[Check], Check]:
    def keep(check: Check) -> Check:
        assert name not in ROWS
        ROWS[name] = check
        return check

    return keep


def rows_of(page: str) -> list[str]:
    """The first cells of the tables of a page."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines if line.startswith("|")]
    return [cell for cell in cells if cell not in ("difference", "分歧", "---")]


def test_every_row_of_the_page_is_checked_and_every_check_is_a_row() -> None:
    assert rows_of("differences.md") == list(ROWS)
    assert len(rows_of("differences.zh-CN.md")) == len(ROWS)


def test_both_pages_name_the_same_options() -> None:
    code = [
        [sorted(re.findall(r"`[^`]+`", line)) for line in text.splitlines() if line.startswith("|")]
        for text in ((DOCS / p).read_text("utf-8") for p in PAGES)
    ]
    assert code[0] == code[1]


PAGES = ("differences.md", "differences.zh-CN.md")


def speeds(rope: Rope) -> list[float]:
    return rope.frequencies().inv_freq.tolist()


def flat(rows: Iterable[Iterable[float]]) -> list[float]:
    return [x for line in rows for x in line]


def spectrum(width: int, base: float) -> Spectrum:
    per_radian = [1 / speed for speed in oracles.frequencies(width, base)]
    return Spectrum(torch.tensor(per_radian, dtype=torch.float64), base, width)


# --- Scaling methods -----------------------------------------------------------------------------


@row("YaRN: ends of the ramp")
def yarn_ends() -> None:
    for truncate, ends in ((True, (8, 18)), (False, (8.092779115512, 17.398024501589))):
        assert oracles.yarn_ramp_ends(64, 150_000.0, 4096, 32.0, 1.0, truncate) == pytest.approx(
            ends
        )
        method = Yarn(32.0, 4096, truncate=truncate)
        assert ramp_ends(method, spectrum(64, 150_000.0)) == pytest.approx(ends)
    assert Yarn(32.0, 4096).truncate


@row("YaRN: upper end")
def yarn_upper() -> None:
    assert ramp_ends(Yarn(4.0, 131_072), spectrum(64, 1e4))[1] == 35
    assert math.ceil(32 * math.log(131_072 / (2 * math.pi), 1e4)) == 35 > 64 // 2 - 1


@row("YaRN: a ramp of no width")
def yarn_width() -> None:
    method = Yarn(8.0, 4096, beta_fast=4.0, beta_slow=4.0, truncate=False)
    low, high = ramp_ends(method, spectrum(64, 1e4))
    assert high - low == pytest.approx(0.001)
    assert all(math.isfinite(speed) for speed in speeds(Rope(64, scaling=method)))


@row("YaRN: direction and blend")
def yarn_direction() -> None:
    made, plain = speeds(Rope(64, scaling=Yarn(40.0, 4096))), oracles.frequencies(64, 1e4)
    assert made[0] / plain[0] == pytest.approx(1.0) and made[-1] / plain[-1] == pytest.approx(
        1 / 40
    )
    low, high = oracles.yarn_ramp_ends(64, 1e4, 4096, 32.0, 1.0, True)
    pair = round((low + high) / 2)
    share = (pair - low) / (high - low)
    assert made[pair] == pytest.approx(plain[pair] * (1 - share + share / 40))


@row("YaRN: attention factor")
def yarn_factor() -> None:
    both: list[tuple[float | None, float | None, float]] = [
        (None, None, 1.369), (1.0, 1.0, 1.0), (0.707, None, 1.369), (None, 1.0, 1.369),
        (0.707, 0.0, 1.369),
    ]  # fmt: skip
    for mscale, all_dim, expected in both:
        method = Yarn(40.0, 4096, mscale=mscale, mscale_all_dim=all_dim)
        made = Rope(64, scaling=method).frequencies().attention_factor
        assert made == pytest.approx(expected, abs=5e-4)
    assert oracles.yarn_amplitude(40.0, 0.707) == pytest.approx(1.261, abs=5e-4)
    for given in (1.261, 1.0):
        method = Yarn(40.0, 4096, attention_factor=given)
        assert Rope(64, scaling=method).frequencies().attention_factor == given


@row("YaRN: where the factor lands")
def yarn_lands() -> None:
    at, factor = torch.tensor([0]), oracles.yarn_amplitude(40.0)
    table = Rope(8, scaling=Yarn(40.0, 64)).table(at, dtype=torch.float64)
    assert table.cos.flatten().tolist() == pytest.approx([factor] * 4)
    for scaled, expected in ((True, oracles.yarn_amplitude(40.0, 1.0) ** 2), (False, 1.0)):
        method = Yarn(40.0, 64, mscale=1.0, mscale_all_dim=1.0, scale_softmax=scaled)
        assert Rope(8, scaling=method).frequencies().softmax_scale == pytest.approx(expected)


@row("YaRN: what may be left out")
def yarn_required() -> None:
    for arguments in ((), (8.0,)):
        with pytest.raises(TypeError, match="missing"):
            Yarn(*arguments)  # pyright: ignore
    with pytest.raises(ValueError, match="beta_fast >= beta_slow > 0 is needed, got 0 and 0"):
        Yarn(8.0, 4096, beta_fast=0, beta_slow=0)


@row("NTK by parts")
def ntk_by_parts() -> None:
    made = Rope(64, scaling=NTKByParts(8.0, 4096)).frequencies()
    assert made.attention_factor == 1.0
    expected = oracles.yarn_frequencies(64, 1e4, 8.0, 4096)
    assert made.inv_freq.tolist() == pytest.approx(expected)


@row("NTK: what is stretched")
def ntk_rules() -> None:
    plain, rules = oracles.frequencies(64, 1e4), ("bloc97", "fixed", "plain")
    assert NTK(4.0) == NTK(4.0, rule="bloc97")
    ratios = {}
    for rule in rules:
        made = speeds(Rope(64, scaling=NTK(4.0, rule=rule)))  # pyright: ignore[reportArgumentType]
        assert made == pytest.approx(oracles.ntk_frequencies(64, 1e4, 4.0, rule))
        ratios[rule] = made[0] / plain[0], made[-1] / plain[-1]
    assert ratios["bloc97"] == pytest.approx((1.0, 1 / 4))
    assert ratios["fixed"] == pytest.approx((4.0 ** (-2 / 64), 1 / 4))
    assert ratios["plain"] == pytest.approx((1.0, 4.0 ** (-62 / 64)))
    b = 0.625
    a = math.log(4.0) / 32**b
    divisors = tuple(math.exp(a * (i + 1) ** b) for i in range(32))
    mixed = LongRope(divisors, divisors, 4.0, 4096, attention_factor=1.0)
    made = Rope(64, scaling=mixed).frequencies()
    assert made.inv_freq.tolist() == pytest.approx(
        [s / math.exp(a * (i + 1) ** b) for i, s in enumerate(plain)]
    )
    assert made.attention_factor == 1.0
    assert made.inv_freq[-1] / plain[-1] == pytest.approx(1 / 4)


@row("Dynamic NTK: within the trained length")
def dynamic_within() -> None:
    rope = Rope(128, scaling=DynamicNTK(2.0, 4096))
    plain = oracles.frequencies(128, 1e4)
    for length in (1, 4096):
        assert speeds(rope.at_length(length)) == pytest.approx(plain)
    constant = speeds(rope.at_length(2 * 4096))
    assert constant == pytest.approx(oracles.frequencies(128, 1e4 * 3.0 ** (128 / 126)))


@row("Dynamic NTK: whose length")
def dynamic_length() -> None:
    rope = Rope(128, scaling=DynamicNTK(2.0, 4096))
    for length, stretch in ((6144, 2.022), (8192, 3.053), (16_384, 7.22)):
        base = oracles.dynamic_ntk_base(128, 1e4, 2.0, 4096, length)
        assert base / 1e4 == pytest.approx(stretch, rel=1e-3)
        assert speeds(rope.at_length(length)) == pytest.approx(oracles.frequencies(128, base))
    rope.table(sequence(9000))  # a long batch says nothing
    assert speeds(rope) == pytest.approx(oracles.frequencies(128, 1e4))


@row("Dynamic linear")
def dynamic_linear() -> None:
    made = speeds(Rope(64, scaling=Linear(10_000 / 4096)))
    assert made == pytest.approx(oracles.linear_frequencies(64, 1e4, 10_000 / 4096))


@row("LongRoPE: attention factor")
def longrope_factor() -> None:
    ones = (1.0,) * 4
    said: list[tuple[dict[str, Any], float, float]] = [
        ({}, 1.1902381, 1.1902381),
        ({"attention_rule": "yarn"}, 0.1 * math.log(32) + 1, 0.1 * math.log(32) + 1),
        ({"attention_factor": 1.3}, 1.3, 1.3),
        ({"short_attention_factor": 1.5, "long_attention_factor": 1.7}, 1.5, 1.7),
    ]
    assert oracles.longrope_amplitude(32.0, 4096) == pytest.approx(1.1902381)
    for options, short, long in said:
        rope = Rope(8, scaling=LongRope(ones, ones, 32.0, 4096, **options))
        assert rope.frequencies().attention_factor == pytest.approx(short)
        assert rope.at_length(4097).frequencies().attention_factor == pytest.approx(long)


@row("LongRoPE: where it switches")
def longrope_switch() -> None:
    rope = Rope(4, scaling=LongRope((1.0, 2.0), (4.0, 8.0), 2.0, 4096, attention_factor=1.0))
    for length, first in ((4095, 1.0), (4096, 1.0), (4097, 1 / 4)):
        longer = rope.at_length(length)
        assert speeds(longer)[0] == first
        angle = longer.table(torch.tensor([1, 4096]), dtype=torch.float64)
        assert angle.sin[0, :, 0].tolist() == pytest.approx(
            [math.sin(first), math.sin(4096 * first)]
        )


@row("Llama 3: bands")
def llama3_bands() -> None:
    assert Llama3(8.0, 8192) == Llama3(8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    with pytest.raises(TypeError, match="missing"):
        Llama3(8.0)  # pyright: ignore[reportCallIssue]
    for low, high in ((1.0, 4.0), (1.0, 32.0)):
        made = speeds(Rope(128, 5e5, scaling=Llama3(16.0, 8192, low, high)))
        assert made == pytest.approx(oracles.llama3_frequencies(128, 5e5, 16.0, 8192, low, high))


@row("Llama 3: equal edges")
def llama3_edge() -> None:
    made = speeds(Rope(128, 5e5, scaling=Llama3(16.0, 8192, 1.0, 1.0)))
    for scaled, plain in zip(made, oracles.frequencies(128, 5e5), strict=True):
        assert scaled == pytest.approx(plain if 2 * math.pi / plain < 8192 else plain / 16)


@row("Linear: what is divided")
def linear_divides() -> None:
    at = torch.tensor([1, 7, 4095, 100_003])
    made = Rope(64, scaling=Linear(4.0)).table(at)
    exact = [[math.cos(p / 4 * s) for s in oracles.frequencies(64, 1e4)] for p in at.tolist()]
    assert_roundings(made.cos[0], torch.tensor(exact, dtype=torch.float64), 1)


@row("Proportional: how many pairs turn")
def proportional_count() -> None:
    for fraction, count in ((0.25, 16), (0.334, 21), (1.0, 64)):
        made = speeds(Rope(128, scaling=Proportional(fraction)))
        assert sum(speed > 0 for speed in made) == count
        assert made == pytest.approx(oracles.proportional_frequencies(128, 1e4, fraction))
    x = torch.eye(8)[None, None, :1]
    whole = rotate(x, Rope(8, scaling=Proportional(0.25)).table(torch.tensor([1])))
    partial = rotate(x, Rope(8, rotary_dim=2).table(torch.tensor([1])))
    assert whole.flatten().nonzero().flatten().tolist() == [0, 4]
    assert partial.flatten().nonzero().flatten().tolist() == [0, 1]


# --- Rotation ------------------------------------------------------------------------------------


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


# --- Biases --------------------------------------------------------------------------------------


@row("ALiBi: head counts that are no power of two")
def alibi_heads() -> None:
    made = Alibi(12).slopes().tolist()
    assert made == pytest.approx(
        [2.0**-h for h in range(1, 9)] + [2.0 ** -(h + 0.5) for h in range(4)]
    )
    smooth = [2.0 ** (-8 * h / 12) for h in range(1, 13)]
    assert made != pytest.approx(smooth)
    assert Alibi(12, slopes=smooth).slopes().tolist() == pytest.approx(smooth)
    assert Alibi(8, bias_max=16.0).slopes().tolist() == pytest.approx(
        oracles.alibi_slopes_of(8, 16.0)
    )


@row("ALiBi: form")
def alibi_form() -> None:
    at = sequence(4)
    slope = oracles.alibi_slopes(1)[0]
    one_sided, both = (
        Alibi(1, symmetric=s).dense(at, at, dtype=torch.float64)[0, 0] for s in (False, True)
    )
    for i in range(4):
        for j in range(4):
            assert one_sided[i, j].item() == pytest.approx(-slope * max(i - j, 0))
            assert both[i, j].item() == pytest.approx(-slope * abs(i - j))
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    by_key = (slope * at.double()).expand(4, 4)
    forms = [x.masked_fill(hidden, -math.inf).softmax(-1) for x in (one_sided, by_key)]
    assert_roundings(forms[0], forms[1], 4)


@row("ALiBi: precision")
def alibi_precision() -> None:
    at = sequence(2048)
    exact = [-(2.0**-0.5) * d for d in range(2048)]
    made = Alibi(16).per_distance(at)[0]
    assert_roundings(made, torch.tensor(exact, dtype=torch.float64), 0.51, size=0.0)
    assert at.bfloat16().unique().numel() == 641
    falcon = {"model_type": "falcon", "alibi": True, "hidden_size": 256, "num_attention_heads": 16,
              "num_hidden_layers": 1, "multi_query": True}  # fmt: skip
    bias: Any = scheme_from_config(falcon).scheme.bias
    rounded = torch.tensor(2.0**-0.5).bfloat16().item()
    assert bias.slopes()[0].item() == pytest.approx(rounded / math.sqrt(16), rel=1e-12)


@row("ALiBi: positions of padded rows")
def alibi_padding() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    bloom = (mask.cumsum(-1) - 1) * mask
    assert torch.equal(from_padding_mask(mask, padding=0), bloom)
    q, k, v = (random(1, 2, 5, 8, seed=s) for s in range(3))
    scheme = Scheme(bias=Alibi(2))
    told = attention(q, k, v, scheme=scheme, k_pos=sequence(5))
    assert_roundings(attention(q, k, v, scheme=scheme), told, 16)


@row("T5: edges of the buckets")
def t5_edges() -> None:
    relative = list(range(-300, 301))
    for both in (True, False):
        made = T5Bias(1, bidirectional=both).bucket(torch.tensor(relative)).tolist()
        assert made == [oracles.t5_bucket(r, bidirectional=both) for r in relative]
    made = T5Bias(1).bucket(torch.tensor([-16, -32, -90, 1])).tolist()
    assert made == [10, 12, 14, 17]


@row("T5: scale of the scores")
def t5_scale() -> None:
    q, k, v = (random(1, 1, 3, 4, seed=s) for s in range(3))
    scheme = Scheme(bias=T5Bias(1).double())
    assert scheme.bias is not None
    at = sequence(3)
    named: list[tuple[dict[str, Any], float]] = [({}, 0.5), ({"scale": 1.0}, 1.0)]
    for options, scale in named:
        logits = scale * (q @ k.mT) + scheme.bias.dense(at, at, dtype=torch.float64)
        out = attention(q, k, v, scheme=scheme, mask=None, **options)
        assert_roundings(out, logits.softmax(-1) @ v, 16)


@row("T5: size of the table")
def t5_size() -> None:
    assert T5Bias(1).weight.shape == (32, 1) and T5Bias(1).max_distance == 128
    wide = T5Bias(1, num_buckets=320, max_distance=800)
    relative = [-900, -800, -81, -80, -79, 0, 79, 80, 799]
    assert wide.bucket(torch.tensor(relative)).tolist() == [
        oracles.t5_bucket(r, bidirectional=True, num_buckets=320, max_distance=800)
        for r in relative
    ]


@row("KERPLE: coefficients")
def kerple_coefficients() -> None:
    bias = Kerple(64)
    r1, r2 = bias.coefficients()
    assert r1.min() >= 0.0099 and 1 < r1.max() <= 2.0001 and 0.5 < r2.max() <= 1.0001
    with torch.no_grad():
        bias.log_r1.fill_(math.log(1e-4))  # a step may go below 0.01: nothing is clamped
    assert bias.coefficients()[0].max().item() == pytest.approx(1e-4)
    given = Kerple(2, r1=[0.5, 1.0], r2=[1.0, 0.3])
    at = torch.tensor([0, 3, 50])
    made = given.dense(at, at)[0]
    for head, (a, b) in enumerate(((0.5, 1.0), (1.0, 0.3))):
        expected = [[oracles.kerple("log", a, b, i, j) for j in (0, 3, 50)] for i in (0, 3, 50)]
        assert made[head].flatten().tolist() == pytest.approx(flat(expected), rel=1e-6)


@row("Sandwich: width and direction")
def sandwich_width() -> None:
    at = torch.tensor([0, 3, 900])
    for options in ({}, {"width": 64}):
        made = Sandwich(2, **options).dense(at, at, dtype=torch.float64)[0]
        for head in range(2):
            expected = [
                oracles.sandwich(head, 2, i, j, **options) for i in at.tolist() for j in at.tolist()
            ]
            assert made[head].flatten().tolist() == pytest.approx(expected)
        assert torch.equal(made, made.mT)
    assert Sandwich(2).width == 128
    assert (
        Sandwich(2, base=500.0).dense(at, at)[0, 0, 0, 2] != Sandwich(2).dense(at, at)[0, 0, 0, 2]
    )


@row("FIRE: denominator")
def fire_denominator() -> None:
    bias = Fire(1, width=4).double()
    with torch.no_grad():
        bias.threshold_factor.zero_()  # L is 0: ψ(0) / ψ(0) at position 0
    mlp = (
        bias.hidden.weight[:, 0].tolist(), bias.hidden.bias.tolist(),
        bias.out.weight[0].tolist(), bias.out.bias.item(),
    )  # fmt: skip
    at = torch.tensor([0, 5])
    made = bias.dense(at, at, dtype=torch.float64)[0, 0]
    for i, j in ((0, 0), (1, 0), (1, 1)):
        expected = oracles.fire(mlp, 0.1, 0.0, int(at[i]), int(at[j]))
        assert made[i, j].item() == pytest.approx(expected, rel=1e-7)


@row("Swin v2: coordinates")
def swinv2_coordinates() -> None:
    for window, by in ((4, None), (8, 4)):
        bias = SwinV2Bias(1, window=(window, 1), pretrained_window=by and (by, 1))
        made = bias.coordinates()
        sides = range(1 - window, window)
        expected = [oracles.swinv2_coordinate(d, by or window) for d in sides]
        assert made[:, 0].tolist() == pytest.approx(expected) and (made[:, 1] == 0).all()
    assert SwinV2Bias(1, window=4).width == 512
    assert SwinV2Bias(1, window=4, width=128).hidden.weight.shape == (128, 2)


@row("Swin v2: range")
def swinv2_range() -> None:
    bias = SwinV2Bias(1, window=3)
    with torch.no_grad():
        bias.out.weight.fill_(100.0)
        assert bias.table().max().item() == pytest.approx(16.0)
        bias.out.weight.zero_()
        assert (bias.table() == 8).all()


@row("BEiT: class token")
def beit_token() -> None:
    bias = BeitBias(1, window=(2, 3))
    with torch.no_grad():
        bias.weight.copy_(torch.arange(len(bias.weight))[:, None])
    cells = with_class_token(grid(2, 3))
    made = bias.dense(cells, cells)[0, 0]
    known = [None, *((r, c) for r in range(2) for c in range(3))]
    assert made.tolist() == [[oracles.beit_row(q, k, (2, 3)) for k in known] for q in known]
    assert len(bias.weight) - 3 == made[0, 1] < made[1, 0] < made[0, 0]


@row("Swin, BEiT: table at another window")
def windows_resized() -> None:
    table = random(9, 1, seed=3, dtype=torch.float32)
    image = table.view(3, 3).tolist()
    named: list[dict[str, Any]] = [{}, {"kernel": "bilinear"}]
    for options in named:
        expected = oracles_added.resampled(image, (5, 5), kernel=options.get("kernel", "bicubic"))
        for kind, more in ((SwinBias, 0), (BeitBias, 3)):
            bias = kind(1, window=2)
            with torch.no_grad():
                bias.weight[:9] = table
            made = bias.resized(3, **options)
            assert made.weight[:25, 0].tolist() == pytest.approx(flat(expected), abs=1e-6)
            assert more == 0 or torch.equal(made.weight[25:], bias.weight[9:])


# --- Relative vectors ----------------------------------------------------------------------------


@row("CoPE: which keys count")
def cope_counts() -> None:
    q, k = (random(1, 1, 6, 4, seed=s) for s in range(2))
    at, allowed = sequence(6), torch.ones(6, 6, dtype=torch.bool).tril()
    part = Cope(4, max_positions=3).double()
    made = part.positions(q, k, Block(at, at, allowed, scale=0.5))[0, 0]
    logits = (0.5 * q @ k.mT)[0, 0]
    for i in range(6):
        for j in range(i + 1):
            expected = oracles_relative.cope_position(
                i, j, range(6), lambda i, n: logits[i, n].item(), lambda i, n: n <= i, 3
            )
            assert made[i, j].item() == pytest.approx(expected)
    assert made.max() == 2 and 0 < made[0, 0] < 1


@row("CoPE: between two positions")
def cope_between() -> None:
    part = Cope(2, max_positions=4).double()
    with torch.no_grad():
        part.embeddings.copy_(random(4, 2))
    q, k, at = random(1, 1, 3, 2, seed=1), random(1, 1, 3, 2, seed=2), sequence(3)
    block = Block(at, at, scale=1.0)
    places, made = part.positions(q, k, block)[0, 0], part.key_logits(q, k, block)[0, 0]
    for i in range(3):
        for j in range(3):
            expected = oracles_relative.cope_term(
                q[0, 0, i].tolist(), part.embeddings.tolist(), places[i, j].item()
            )
            assert made[i, j].item() == pytest.approx(expected)


@row("DeBERTa: buckets")
def deberta_buckets() -> None:
    part = Deberta(1, 4, num_buckets=32, max_distance=128)
    distances = list(range(-127, 128))  # farther ones share the last row
    made = part.bucket(torch.tensor(distances)).tolist()
    assert made == [oracles_relative.deberta_bucket(d, 32, 128) for d in distances]
    assert made == [-x for x in reversed(made)]
    assert part.bucket(torch.tensor(17)) == 17 != T5Bias(1).bucket(torch.tensor(-17))


@row("DeBERTa: scale of the scores")
def deberta_scale() -> None:
    assert Deberta(2, 4).scale == pytest.approx(1 / math.sqrt(4 * 3))
    assert Deberta(2, 4, terms=("c2p",)).scale == pytest.approx(1 / math.sqrt(4 * 2))


def transformer_xl_logits(part: TransformerXL, q: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """What joins the logits of one head with an identity for W and no biases."""
    with torch.no_grad():
        part.projection.copy_(torch.eye(q.shape[-1]))
    return part.key_logits(q, torch.zeros_like(q), Block(at, at))[0, 0]


@row("Transformer-XL: direction")
def transformer_xl_direction() -> None:
    q, at = random(1, 1, 5, 4), sequence(5)
    made = transformer_xl_logits(TransformerXL(1, 4).double(), q, at)
    for i in range(5):
        for j in range(5):
            waves = oracles_relative.distance_sinusoid(i - j, 4)
            expected = oracles.dot(q[0, 0, i].tolist(), waves)
            assert made[i, j].item() == pytest.approx(expected, abs=1e-12)
    # Their way, for the keys that a decoder sees: distances from far to near, then a shift.
    far = [oracles_relative.distance_sinusoid(d, 4) for d in range(4, -1, -1)]
    by_distance = q[0, 0] @ torch.tensor(far, dtype=torch.float64).mT
    padded = torch.cat((by_distance.new_zeros(5, 1), by_distance), 1).view(6, 5)[1:]
    assert padded.tril().flatten().tolist() == pytest.approx(made.tril().flatten().tolist())


@row("Transformer-XL: waves")
def transformer_xl_waves() -> None:
    q, at = random(1, 1, 5, 6), torch.tensor([0, 1, 2, 3, 40])
    named: list[dict[str, Any]] = [
        {}, {"layout": "alternating"}, {"denominator": "d-2"}, {"clamp": 3},
    ]  # fmt: skip
    for options in named:
        made = transformer_xl_logits(TransformerXL(1, 6, **options).double(), q, at)
        waves = {name: x for name, x in options.items() if name != "clamp"}
        most = options.get("clamp", 100)
        for i in range(5):
            for j in range(5):
                distance = max(-most, min(most, int(at[i] - at[j])))
                wave = oracles_relative.distance_sinusoid(distance, 6, **waves)
                expected = oracles.dot(q[0, 0, i].tolist(), wave)
                assert made[i, j].item() == pytest.approx(expected, abs=1e-12)


@row("Decomposed: scale")
def decomposed_scale() -> None:
    q, k, v = (random(1, 1, 6, 4, seed=s) for s in range(3))
    cells, part = grid(2, 3), Decomposed(4, window=(2, 3)).double()
    with torch.no_grad():
        part.row_vectors.copy_(random(3, 4, seed=5))
        part.column_vectors.copy_(random(5, 4, seed=6))
    tables = (part.row_vectors.tolist(), part.column_vectors.tolist())
    logits = torch.tensor(
        [
            [
                oracles_relative.decomposed(
                    q[0, 0, i].tolist(), k[0, 0, j].tolist(),
                    (cells[i] - cells[j]).tolist(), tables, (2, 3),
                )
                for j in range(6)
            ]
            for i in range(6)
        ],
        dtype=torch.float64,
    )  # fmt: skip
    scheme = Scheme(relative=part)
    made = attention(q, k, v, scheme=scheme, q_pos=cells, k_pos=cells, mask=None)
    assert_roundings(made[0, 0], logits.softmax(-1) @ v[0, 0], 32)


# --- Added to embeddings -------------------------------------------------------------------------


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


@row("Sinusoids: first position")
def sinusoid_first() -> None:
    at, made = sequence(4), Sinusoidal(6)
    x = torch.zeros(1, 4, 6)
    assert torch.equal(made(x), made(x, at))
    assert made(x)[0, 0].tolist() == [0, 1, 0, 1, 0, 1]
    for first in (1, 2):
        assert torch.equal(made(x, at + first)[0, 0], made.encode(torch.tensor([first]))[0])


@row("Sinusoids: amplitude and precision")
def sinusoid_precision() -> None:
    at = torch.tensor([0, 1857, 1_000_003])
    made = Sinusoidal(64).encode(at)
    exact = [[math.sin(p * f) for f in oracles.frequencies(64, 1e4)] for p in at.tolist()]
    assert_roundings(made[:, 0::2], torch.tensor(exact, dtype=torch.float64), 1)
    assert made.abs().max() == 1
    with pytest.raises(ValueError, match="must be integers"):
        Sinusoidal(64).encode(at / at.max())


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


@pytest.mark.parametrize("name", ROWS)
def test_the_row_is_what_it_says(name: str) -> None:
    ROWS[name]()
