"""A few queries behind many keys take shorter paths, to what they give in the whole."""

from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import Alibi, Cope, Deberta, Fire, LogitBias, Sandwich, Scheme, attention
from posenc.positions import sequence
from posenc.registry import ENCODINGS
from posenc.relative import cope
from support import BIASES, HEADS, NAMES, assert_roundings, build, random

LENGTH = 600
ALONE = tuple(n for n in NAMES if build(n).num_axes == 1)


def by_distance(name: str) -> LogitBias | None:
    bias = build(name).bias
    return bias if bias is not None and bias.by_distance else None


def qkv(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (random(2, HEADS, LENGTH, 8, seed=seed, dtype=dtype) for seed in range(3))
    return q, k, v


@pytest.mark.parametrize("num_queries", [1, 3, 5])
@pytest.mark.parametrize("name", ALONE)
def test_the_last_queries_alone_give_what_they_give_in_the_whole(
    name: str, num_queries: int
) -> None:
    q, k, v = qkv()
    scheme, mask = build(name), ENCODINGS[name].mask
    whole = attention(q, k, v, scheme=scheme, mask=mask, impl="sdpa")[:, :, -num_queries:]
    last = attention(q[:, :, -num_queries:], k, v, scheme=scheme, mask=mask)
    assert_roundings(last, whole, 200)


def test_gates_that_stay_shut_are_all_counted() -> None:
    """Near keys that count for little: the sum reaches the last position far behind."""
    q, k, v = qkv()
    k[:, :, 40:] = -4 * q[:, :, -1:] * 8**0.5 / q[:, :, -1:].square().sum(-1, keepdim=True)
    relative = Cope(8, max_positions=12).double()
    torch.nn.init.normal_(relative.embeddings, generator=torch.Generator().manual_seed(0))
    scheme = Scheme(relative=relative)
    whole = attention(q, k, v, scheme=scheme, impl="sdpa")[:, :, -1:]
    assert_roundings(attention(q[:, :, -1:], k, v, scheme=scheme), whole, 200)


def test_keys_that_all_stand_at_the_last_position_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[int] = []
    sums = cope._sums_from
    monkeypatch.setattr(
        cope, "_sums_from", lambda x, block: (counted.append(x.shape[-1]), sums(x, block))[1]
    )
    q, k, v = qkv()
    attention(q[:, :, -1:], k, v, scheme=Scheme(relative=Cope(8, max_positions=12).double()))
    assert max(counted) < LENGTH / 4


@pytest.mark.parametrize(
    "where", ["near", "far", "negative", "scattered", "one", "past doubles", "below doubles"]
)
def test_sums_of_cosines_by_the_sum_of_angles(where: str) -> None:
    distances = {
        "near": torch.arange(300),
        "far": torch.arange(2**31, 2**31 + 300),
        "negative": torch.arange(150, -150, -1),
        "scattered": torch.tensor([0, 10**6, 5]),
        "one": torch.tensor([7]),
        "past doubles": torch.arange(2**60, 2**60 + 5),
        "below doubles": torch.arange(-(2**53) - 5, -(2**53)),
    }[where]
    bias = Sandwich(4)
    got = bias.per_distance(distances, dtype=torch.float64)
    right = bias.value(torch.arange(4)[:, None], distances, torch.zeros_like(distances))
    # an angle near 2³¹ is known to 2⁻²² of a radian, either way
    assert_roundings(got, right, 4 if where != "far" else 2.0**33, size=float(right.abs().max()))


@pytest.mark.parametrize("name", [n for n in BIASES if by_distance(n) is not None])
@pytest.mark.parametrize("symmetric", [False, True])
def test_rows_of_distances_are_the_formula(name: str, symmetric: bool) -> None:
    bias = by_distance(name)
    assert bias is not None
    if symmetric and isinstance(bias, Alibi):
        bias = Alibi(HEADS, symmetric=True)
    distances = torch.arange(-40, 700)
    got = bias.per_distance(distances, dtype=torch.float64)
    right = bias.value(torch.arange(HEADS)[:, None], distances, torch.zeros_like(distances))
    # an angle of 700 radians is known to half a unit of 700, in either form
    assert_roundings(got, right.double().expand(HEADS, -1), 350 if name == "sandwich" else 4)


def test_heads_of_fire_in_one_product() -> None:
    bias = build("fire").bias
    assert isinstance(bias, Fire)
    q_pos, k_pos = torch.arange(20).expand(2, -1) + torch.tensor([[0], [60]]), torch.arange(90)
    got = bias.dense(q_pos, k_pos, dtype=torch.float64)
    head = torch.arange(HEADS)[:, None, None]
    right = bias.value(head, q_pos[:, None, :, None], k_pos[None, None, None])
    assert got.shape == (2, HEADS, 20, 90)
    assert_roundings(got, right, 16)


def test_a_class_that_changes_the_formula_changes_every_form() -> None:
    class Doubled(Fire):
        def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return 2 * super().value(head, q_pos, k_pos)

    class Steeper(Sandwich):
        def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return 2 * super().value(head, q_pos, k_pos)

    at = sequence(30)
    fire, doubled = Fire(2).double(), Doubled(2).double()
    doubled.load_state_dict(fire.state_dict())
    pairs: tuple[tuple[LogitBias, LogitBias], ...] = (
        (fire, doubled),
        (Sandwich(2), Steeper(2)),
    )
    for plain, changed in pairs:
        assert_roundings(
            changed.dense(at, at, dtype=torch.float64),
            2 * plain.dense(at, at, dtype=torch.float64),
            16,
        )
    assert_roundings(
        Steeper(2).per_distance(at, dtype=torch.float64),
        2 * Sandwich(2).per_distance(at, dtype=torch.float64),
        16,
    )


def test_a_formula_that_is_mixed_in_changes_every_form() -> None:
    class Doubling:
        def value(self, head: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return 2 * super().value(head, q_pos, k_pos)  # pyright: ignore[reportAttributeAccessIssue]

    class Steeper(Doubling, Alibi): ...

    class Heir(Steeper): ...

    class Doubled(Doubling, Fire): ...

    at = sequence(30)
    plain = Alibi(2).per_distance(at, dtype=torch.float64)
    for bias in (Steeper(2), Heir(2)):
        assert torch.equal(bias.per_distance(at, dtype=torch.float64), 2 * plain)
    fire, doubled = Fire(2).double(), Doubled(2).double()
    doubled.load_state_dict(fire.state_dict())
    assert_roundings(
        doubled.dense(at, at, dtype=torch.float64), 2 * fire.dense(at, at, dtype=torch.float64), 16
    )
    assert Heir._of_pairs is LogitBias._of_pairs
    assert type("Same", (Alibi,), {})._of_distances is Alibi._of_distances


def test_sums_of_angles_stay_on_the_device_of_the_distances() -> None:
    wanted = Sandwich(2).per_distance(sequence(30))
    bias = Sandwich(2)
    with torch.device("meta"):
        got = bias.per_distance(torch.arange(30, device="cpu"))
    assert torch.equal(got, wanted)


def test_hidden_units_of_a_wide_fire_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    relu = torch.relu
    monkeypatch.setattr(torch, "relu", lambda x: (sizes.append(x.numel()), relu(x))[1])
    bias, at = Fire(4, width=256), sequence(300)
    dense = bias.dense(at, at)
    assert sizes and max(sizes) <= dense.numel()
    head = torch.arange(4)[:, None, None]
    right = bias.value(head, at[None, None, :, None], at[None, None, None])
    assert_roundings(dense, right, 64, size=float(right.detach().abs().max()))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_traced_fire_serves_other_lengths() -> None:
    bias = Fire(2).requires_grad_(False)
    few, many = sequence(100), sequence(300)
    traced: Any = torch.jit.trace(bias, (few, few))
    torch.testing.assert_close(traced(many, many), bias(many, many))


def test_gradients_of_few_queries_under_deberta() -> None:
    q, k, v = qkv()
    grads = []
    for num_queries in (1, LENGTH):
        relative = Deberta(HEADS, 8, max_distance=40, num_buckets=16).double()
        with torch.no_grad():
            for parameter in relative.parameters():
                draw = torch.Generator().manual_seed(parameter.numel())
                parameter.normal_(std=0.5, generator=draw)
        scheme = Scheme(relative=relative)
        out = attention(q[:, :, -num_queries:], k, v, scheme=scheme, scale=relative.scale)
        out[:, :, -1].square().sum().backward()
        grads.append([p.grad for p in relative.parameters()])
    for few, whole in zip(*grads, strict=True):
        assert few is not None and whole is not None
        assert_roundings(few, whole, 2000, size=1.0)
