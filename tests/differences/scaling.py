"""Scaling methods: the rows of that section of docs/differences.md."""

import math
from typing import Any

import pytest
import torch

import oracles
from differences.rows import row, spectrum, speeds
from posenc import (
    NTK,
    DynamicNTK,
    KVCache,
    Linear,
    Llama3,
    LongRope,
    MultiHeadAttention,
    NTKByParts,
    Proportional,
    Rope,
    Scheme,
    Yarn,
    rerotate,
    rotate,
)
from posenc.interop.hf import scheme_from_config
from posenc.positions import (
    sequence,
)
from posenc.scaling.yarn import ramp_ends
from support import assert_roundings, random

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
}  # fmt: skip


def rope_in(**keys: Any) -> Any:
    """The rope of a small Llama with further keys."""
    rotary: Any = scheme_from_config({**LLAMA, **keys}).scheme.rotary
    return rotary


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


@row("YaRN: how much of the ramp")
def yarn_share() -> None:
    for key in ("extrapolation_factor", "ext_factor"):
        with pytest.raises(TypeError, match=key):
            Yarn(8.0, 4096, **{key: 1.0})  # pyright: ignore[reportArgumentType]
        section = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
        with pytest.raises(ValueError, match=rf"{key} = 0.5: expected no such key"):
            rope_in(rope_scaling={**section, key: 0.5})


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


@row("YaRN: channels that do not turn")
def yarn_still() -> None:
    method = Yarn(40.0, 64, scale_softmax=True, mscale_all_dim=1.0)
    x, at = random(1, 1, 2, 8), torch.tensor([0, 5])
    for placement, start in (("leading", 0), ("trailing", 4)):
        rope = Rope(8, rotary_dim=4, scaling=method, placement=placement)  # pyright: ignore
        made = rotate(x, rope.table(at, dtype=torch.float64))
        still = slice(4 - start, 8 - start)
        assert torch.equal(made[..., still], x[..., still])
        for token, position in enumerate(at.tolist()):
            expected = oracles.rotated(
                x[0, 0, token].tolist(), position, oracles.yarn_frequencies(4, 1e4, 40.0, 64),
                amplitude=oracles.yarn_amplitude(40.0), start=start,
            )  # fmt: skip
            assert made[0, 0, token].tolist() == pytest.approx(expected, rel=1e-12)
        assert rope.frequencies().softmax_scale == pytest.approx(oracles.yarn_amplitude(40.0) ** 2)


@row("YaRN: what may be left out")
def yarn_required() -> None:
    for arguments in ((), (8.0,)):
        with pytest.raises(TypeError, match="missing"):
            Yarn(*arguments)  # pyright: ignore
    with pytest.raises(ValueError, match="beta_fast >= beta_slow > 0 is needed, got 0 and 0"):
        Yarn(8.0, 4096, beta_fast=0, beta_slow=0)


@row("YaRN: whose length")
def yarn_length() -> None:
    rope = Rope(64, scaling=Yarn(4.0, 4096))
    rope.table(sequence(9000))  # a long batch says nothing
    for length in (1, 8192, 65_536):
        assert rope.at_length(length) is rope
    made = Rope(64, scaling=Yarn(9000 / 4096, 4096)).frequencies()
    expected = oracles.yarn_frequencies(64, 1e4, 9000 / 4096, 4096)
    assert made.inv_freq.tolist() == pytest.approx(expected)
    assert made.attention_factor == pytest.approx(oracles.yarn_amplitude(9000 / 4096))


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


@row("NTK: which width")
def ntk_width() -> None:
    made = speeds(Rope(128, rotary_dim=32, scaling=NTK(4.0)))
    assert made == pytest.approx(oracles.ntk_frequencies(32, 1e4, 4.0))
    by_head = speeds(Rope(128, 1e4 * 4.0 ** (128 / 126), rotary_dim=32))
    assert by_head == pytest.approx(oracles.frequencies(32, 1e4 * 4.0 ** (128 / 126)))
    assert by_head[-1] != pytest.approx(made[-1], rel=1e-3)


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


@row("Dynamic NTK: trained length of a config")
def dynamic_trained() -> None:
    section = {"rope_type": "dynamic", "factor": 2.0}
    named = "original_max_position_embeddings"
    for more in ({}, {named: 2048}):
        assert rope_in(rope_scaling={**section, **more}).scaling == DynamicNTK(2.0, 2048)
    with pytest.raises(ValueError, match=rf"{named} = 512: expected max_position_emb.* = 2048"):
        rope_in(rope_scaling={**section, named: 512})


@row("Keys cached at another length")
def cached_elsewhere() -> None:
    divisors = (1.0, 2.0), (4.0, 8.0)
    for method in (DynamicNTK(2.0, 16), LongRope(*divisors, 2.0, 16)):
        rope = Rope(4, scaling=method)
        longer, x = rope.at_length(17), random(1, 17, 8)
        cache = KVCache()
        layer = MultiHeadAttention(8, 2, scheme=Scheme(rotary=rope)).double()
        layer(x[:, :16], cache=cache)
        layer.scheme = Scheme(rotary=longer)
        with pytest.raises(ValueError, match=r"keys were cached under .*rerotate"):
            layer(x[:, 16:], cache=cache)
        assert len(cache) == 16
        k, at = random(1, 2, 16, 4), sequence(16)
        before, after = (rotate(k, r.table(at, dtype=torch.float64)) for r in (rope, longer))
        assert_roundings(rerotate(before, at, rope, longer), after, 4)


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


@row("LongRoPE: factor of a config")
def longrope_said() -> None:
    section = {"rope_type": "longrope", "original_max_position_embeddings": 512,
               "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}  # fmt: skip
    for more in ({}, {"factor": 4.0}):
        rope = rope_in(rope_scaling={**section, **more})
        assert rope.scaling.factor == 4.0 == 2048 / 512
        made = rope.frequencies().attention_factor
        assert made == pytest.approx(oracles.longrope_amplitude(4.0, 512))
    with pytest.raises(ValueError, match=r"factor = 8.0: expected .* = 4: the attention factor"):
        rope_in(rope_scaling={**section, "factor": 8.0})
    rope = rope_in(rope_scaling={**section, "factor": 8.0, "attention_factor": 1.5})
    assert rope.frequencies().attention_factor == 1.5


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


@row("Llama 3: form")
def llama3_form() -> None:
    low, high, factor, trained = 1.0, 4.0, 8.0, 8192
    made = speeds(Rope(128, 5e5, scaling=Llama3(factor, trained)))
    rounded = []
    for scaled, speed in zip(made, oracles.frequencies(128, 5e5), strict=True):
        smooth = (trained * speed / (2 * math.pi) - low) / (high - low)
        share = min(max(smooth, 0.0), 1.0)
        assert scaled == pytest.approx((1 - share) * speed / factor + share * speed, rel=1e-13)
        coarse = min(max((trained * speed / 6.2832 - low) / (high - low), 0.0), 1.0)
        rounded.append((1 - coarse) * speed / factor + coarse * speed)
    assert made != pytest.approx(rounded, rel=1e-9)
    with pytest.raises(TypeError, match="two_pi"):
        Llama3(8.0, 8192, two_pi=6.2832)  # pyright: ignore[reportCallIssue]


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


@row("Linear: two factors at once")
def linear_twice() -> None:
    made = speeds(Rope(64, scaling=Linear(2.0 * 3.0)))
    assert made == pytest.approx([s / 2 / 3 for s in oracles.frequencies(64, 1e4)])
    both: Any = (Linear(2.0), Llama3(8.0, 8192))
    with pytest.raises(TypeError, match="scaling must be a scaling method, got"):
        Rope(64, scaling=both)


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


@row("Proportional: those that turn")
def proportional_factor() -> None:
    for options in ({}, {"factor": 8.0}):
        made = speeds(Rope(128, scaling=Proportional(0.25, **options)))
        assert made == pytest.approx(oracles.proportional_frequencies(128, 1e4, 0.25, **options))
