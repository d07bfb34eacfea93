"""Relative vectors: the rows of that section of docs/differences.md."""

import math
from typing import Any

import pytest
import torch

import oracles
import oracles_relative
from differences.rows import row
from posenc import (
    Block,
    Cope,
    Deberta,
    Decomposed,
    Scheme,
    T5Bias,
    TransformerXL,
    attention,
)
from posenc.positions import (
    grid,
    sequence,
)
from support import assert_roundings, random


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
