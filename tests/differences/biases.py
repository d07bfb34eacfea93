"""Biases: the rows of that section of docs/differences.md."""

import math
from typing import Any

import pytest
import torch

import oracles
import oracles_added
from differences.rows import flat, row
from posenc import (
    Alibi,
    BeitBias,
    Fire,
    Kerple,
    Sandwich,
    Scheme,
    SwinBias,
    SwinV2Bias,
    T5Bias,
    attention,
    heads_of_rank,
    window,
)
from posenc.interop.hf import scheme_from_config
from posenc.positions import (
    from_padding_mask,
    grid,
    sequence,
    with_class_token,
)
from support import assert_roundings, random


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


@row("ALiBi: heads of one rank")
def alibi_rank() -> None:
    whole = oracles.alibi_slopes(12)
    at = sequence(3)
    for rank in range(3):
        local = heads_of_rank(Scheme(bias=Alibi(12)), 12, rank, 3).bias
        assert local is not None
        made = -local.dense(at, at, dtype=torch.float64)[0, :, 1, 0]
        assert made.tolist() == pytest.approx(whole[4 * rank : 4 * rank + 4])
    assert Alibi(4).slopes().tolist() != pytest.approx(whole[:4])


@row("ALiBi: slopes that learn")
def alibi_learned() -> None:
    assert not list(Alibi(4).parameters())
    bias, slopes = Alibi(4, learned=True), oracles.alibi_slopes(4)
    assert bias.log_slopes is not None
    assert bias.log_slopes.tolist() == pytest.approx([math.log(x) for x in slopes], rel=1e-6)
    with torch.no_grad():
        bias.log_slopes.sub_(20.0)  # however far a step goes, a slope stays above 0
    made = bias.slopes()
    assert made.min() > 0
    assert made.tolist() == pytest.approx([x * math.exp(-20) for x in slopes], rel=1e-4)


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
    rising = slope * (at[None] - at[:, None]).double()
    forms = [x.masked_fill(hidden, -math.inf).softmax(-1) for x in (one_sided, by_key, rising)]
    assert_roundings(forms[0], forms[1], 4)
    assert_roundings(forms[0], forms[2], 4)


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


@row("T5: tables of a model")
def t5_tables() -> None:
    small = {"d_model": 64, "num_heads": 4, "num_layers": 3, "num_decoder_layers": 2, "d_kv": 16}
    for name, counts in (("t5", (1, 1)), ("umt5", (3, 2))):
        model = scheme_from_config({**small, "model_type": name})
        assert model.encoder is not None
        stacks = (model.encoder.layers, model.layers)
        tables: list[list[Any]] = [[scheme.bias for scheme in stack] for stack in stacks]
        assert tuple(len({id(table.weight) for table in stack}) for stack in tables) == counts
        assert tables[0][0].weight is not tables[1][0].weight
        both = [stack[0].bidirectional for stack in tables]
        assert both == [True, False]


@row("T5: blocks")
def t5_blocks() -> None:
    long: dict[str, Any] = {"model_type": "longt5", "d_model": 64, "num_heads": 4, "num_layers": 1,
                            "d_kv": 16}  # fmt: skip
    with pytest.raises(ValueError, match="'transient-global': expected 'local'"):
        scheme_from_config({**long, "encoder_attention_type": "transient-global"})
    bias = T5Bias(1).double()
    q, k, v = (random(1, 1, 7, 4, seed=s) for s in range(3))
    for radius in (1, 2):
        made = attention(q, k, v, scheme=Scheme(bias=bias), mask=window(radius + 1), scale=1.0)
        for i in range(7):
            near = [j for j in range(7) if abs(i - j) < radius + 1]
            rows = [oracles.t5_bucket(j - i, bidirectional=True) for j in near]
            logits = [
                oracles.dot(q[0, 0, i].tolist(), k[0, 0, j].tolist()) + bias.weight[r, 0].item()
                for j, r in zip(near, rows, strict=True)
            ]
            weights = torch.tensor(logits, dtype=torch.float64).softmax(-1)
            assert_roundings(made[0, 0, i], weights @ v[0, 0, near], 16)


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


@row("KERPLE: power")
def kerple_power() -> None:
    bias = Kerple(2, form="power", r1=[0.5, 1.0], r2=[1.0, 0.3])
    at = torch.tensor([0, 3, 50])
    made = bias.dense(at, at)[0]
    for head, (a, b) in enumerate(((0.5, 1.0), (1.0, 0.3))):
        expected = [[oracles.kerple("power", a, b, i, j) for j in (0, 3, 50)] for i in (0, 3, 50)]
        assert made[head].flatten().tolist() == pytest.approx(flat(expected), rel=1e-5)
    with pytest.raises(ValueError, match=r"r2 must be 1 numbers in \(0, 2\]"):
        Kerple(1, form="power", r2=[2.5])
    with pytest.raises(ValueError, match="form must be 'log' or 'power', got 'exponential'"):
        Kerple(1, form="exponential")  # pyright: ignore[reportArgumentType]


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
    for side, by in ((4, None), (8, 4)):
        bias = SwinV2Bias(1, window=(side, 1), pretrained_window=by and (by, 1))
        made = bias.coordinates()
        sides = range(1 - side, side)
        expected = [oracles.swinv2_coordinate(d, by or side) for d in sides]
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


@row("Swin v2: dropout in the MLP")
def swinv2_dropout() -> None:
    bias = SwinV2Bias(1, window=4).train()
    assert torch.equal(bias.table(), bias.table())
    with pytest.raises(TypeError, match="dropout"):
        SwinV2Bias(1, window=4, dropout=0.125)  # pyright: ignore[reportCallIssue]


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
