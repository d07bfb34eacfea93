"""The compiled attention under a bias by distance: widths of vectors, shapes, strides, threads."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from posenc import (
    Alibi,
    Fire,
    Kerple,
    Mask,
    Rope,
    Sandwich,
    Scheme,
    T5Bias,
    attention,
    causal,
    same_segment,
    window,
)
from posenc.attention import AttentionImpl, distance
from posenc.kernels import attention as kernel
from posenc.kernels import library
from support import assert_as_good_as, random

pytestmark = pytest.mark.skipif(kernel.missing() is not None, reason="the kernel was not built")
WIDTHS = (128, 256, 512)  # bits; wider ones than the processor has become its widest
TILES = (64, 65, 127, 200)  # queries: a tile, one more, one less than two, several and a rest


def heads(*shape: int, seed: int) -> Tensor:
    return random(*shape, seed=seed, dtype=torch.float32)


def exact(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, mask: Mask | None) -> Tensor:
    q, k, v = q.double(), k.double(), v.double()
    return attention(q, k, v, scheme=scheme, mask=mask, impl="reference")


@pytest.fixture
def _width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    attend = kernel.attend
    monkeypatch.setattr(kernel, "attend", lambda *a, **kw: attend(*a, **kw, widest=request.param))


widths = pytest.mark.parametrize("_width", WIDTHS, indirect=True, ids=lambda bits: f"{bits} bits")


@pytest.mark.parametrize("widest", WIDTHS)
def test_each_number_equals_the_formula(widest: int) -> None:
    """Python floats, one query at a time; the distances are read off the definition of the row."""
    num_queries, num_keys, dim = 70, 75, 5
    q, k, v = (heads(1, 1, n, dim, seed=n) for n in (num_queries, num_keys, num_keys + 1))
    v = v[:, :, :num_keys]
    bias = heads(1, num_keys + num_queries - 1, seed=3)
    distances = torch.arange(num_keys - 1, -num_queries, -1)
    bias[:, (distances < -3) | (distances > 20)] = -math.inf
    out = kernel.attend(
        q, k, v, bias, scale=0.3, nearest=-3, farthest=20, falls=False, widest=widest
    )
    for i in range(num_queries):
        keys = [j for j in range(num_keys) if -3 <= i + 5 - j <= 20]
        logits = [
            0.3 * sum(float(a) * float(b) for a, b in zip(q[0, 0, i], k[0, 0, j], strict=True))
            + float(bias[0, num_queries - 1 - i + j])
            for j in keys
        ]
        largest = max(logits)
        weights = [math.exp(x - largest) for x in logits]
        for d in range(dim):
            parts = (w * float(v[0, 0, j, d]) for w, j in zip(weights, keys, strict=True))
            assert float(out[0, 0, i, d]) == pytest.approx(sum(parts) / sum(weights), abs=2e-6)


@widths
@pytest.mark.usefixtures("_width")
@pytest.mark.parametrize("num_queries", TILES)
@pytest.mark.parametrize("more_keys", [0, 1, 70])
def test_lengths_that_fit_no_tile(num_queries: int, more_keys: int) -> None:
    q = heads(2, 4, num_queries, 16, seed=0)
    k, v = (heads(2, 4, num_queries + more_keys, 16, seed=seed) for seed in (1, 2))
    for bias in (Alibi(4), Alibi(4, symmetric=True), T5Bias(4).requires_grad_(False)):
        for mask in (causal, causal & window(9), window(100), None):
            scheme = Scheme(bias=bias)
            plain, right = sdpa_of(q, k, v, scheme, mask), exact(q, k, v, scheme, mask)
            out = attention(q, k, v, scheme=scheme, mask=mask, impl="native")
            assert_as_good_as(plain, out, right, size=1.0)


def sdpa_of(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme, mask: Mask | None) -> Tensor:
    return attention(q, k, v, scheme=scheme, mask=mask, impl="sdpa").detach()


@widths
@pytest.mark.usefixtures("_width")
@pytest.mark.parametrize("dim", [1, 2, 3, 17, 64, 80, 130])
@pytest.mark.parametrize("value_dim", [1, 6, 64])
def test_any_number_of_channels_and_grouped_heads(dim: int, value_dim: int) -> None:
    q, k = heads(2, 6, 90, dim, seed=0), heads(2, 2, 95, dim, seed=1)
    v = heads(2, 2, 95, value_dim, seed=2)
    scheme = Scheme(bias=Kerple(6).requires_grad_(False))
    out = attention(q, k, v, scheme=scheme, impl="native")
    plain, right = sdpa_of(q, k, v, scheme, causal), exact(q, k, v, scheme, causal)
    assert_as_good_as(plain, out, right, size=1.0)


def views(*shape: int, seed: int) -> Iterator[Tensor]:
    """The same values as `heads`, as they may lie in memory."""
    x = heads(*shape, seed=seed)
    yield x
    yield x.transpose(1, 2).contiguous().transpose(1, 2)
    batch, num_heads, tokens, dim = shape
    wide = x.new_full((batch, num_heads, tokens + 3, dim + 5), math.nan)
    wide[:, :, 1 : tokens + 1, 2 : dim + 2] = x
    yield wide[:, :, 1 : tokens + 1, 2 : dim + 2]
    yield x.mT.contiguous().mT  # channels do not lie side by side
    yield x.flip(2).flip(2)


def test_any_strides() -> None:
    shape, scheme = (2, 3, 80, 8), Scheme(bias=Alibi(3))
    q, k, v = (heads(*shape, seed=seed) for seed in range(3))
    right = exact(q, k, v, scheme, causal)
    for q, k, v in zip(*(views(*shape, seed=seed) for seed in range(3)), strict=True):
        out = attention(q, k, v, scheme=scheme, impl="native")
        assert_as_good_as(sdpa_of(q, k, v, scheme, causal), out, right, size=1.0)
    one = heads(1, 1, 80, 8, seed=0).expand(2, 3, 80, 8)
    out = attention(one, one, one, scheme=scheme, impl="native")
    assert_as_good_as(
        sdpa_of(one, one, one, scheme, causal), out, exact(one, one, one, scheme, causal), size=1.0
    )


@pytest.mark.parametrize("whose", ["pool", "own"])
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same_bits(whose: str, num_threads: int) -> None:
    q, k, v = (heads(1, 4, 700, 16, seed=seed) for seed in range(3))
    scheme, before = Scheme(bias=Alibi(4)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = attention(q, k, v, scheme=scheme, impl="native")
        torch.set_num_threads(num_threads)
        if whose == "own":
            library.leave_pool()
        assert torch.equal(attention(q, k, v, scheme=scheme, impl="native"), expected)
    finally:
        torch.set_num_threads(before)
        library.join_pool()


@widths
@pytest.mark.usefixtures("_width")
def test_what_is_left_out_is_less_than_half_a_unit() -> None:
    """Values are 1 at far keys and 0 at near ones: the result is the weight of the far keys."""
    length = 1400
    for scale in (0.0, 1.0, 12.0):
        q, k = (scale * heads(1, 4, length, 16, seed=seed) for seed in range(2))
        k[:, :, 3] *= 5  # a loud key
        for split in (200, 700, 1100):
            v = torch.zeros(1, 4, length, 1)
            v[:, :, :split] = 1
            scheme = Scheme(bias=Alibi(4))
            out = attention(q, k, v, scheme=scheme, impl="native")
            right = exact(q, k, v, scheme, causal)
            error = (out - right).abs() - 2.0**-24
            # beside what is left out, the weight itself is rounded: logits have 2⁻²⁴ of their size
            size = float((q.double() @ k.double().mT).abs().max()) / 4 + 1
            assert float((error - right * size * 2.0**-19).max()) <= 1e-7 * 2.0**-10


@widths
@pytest.mark.usefixtures("_width")
def test_far_keys_that_a_query_prefers_to_its_own_are_read() -> None:
    """Near keys point away from the queries: those 900 and more behind weigh nearly all."""
    length, dim = 1400, 16
    direction = torch.ones(dim) / 4
    k = direction.expand(1, 1, length, dim).clone()
    k[:, :, :500] *= -1
    q = (-480 * direction).expand(1, 1, length, dim).contiguous()  # logits of -120 and 120
    v = torch.zeros(1, 1, length, 1)
    v[:, :, :500] = 1
    out = attention(q, k, v, scheme=Scheme(bias=Alibi(1, slopes=[0.25])), impl="native")
    assert out[0, 0, -1, 0] == pytest.approx(1.0, abs=1e-5)  # exp(240 - 900 / 4) against 1


def test_far_keys_of_a_falling_bias_are_not_read() -> None:
    q, k, v = (heads(1, 4, 1500, 16, seed=seed) for seed in range(3))
    spoiled = v.clone()
    spoiled[:, :, :600] = math.nan
    scheme = Scheme(bias=Alibi(4, slopes=[0.5, 0.5, 0.5, 1e-5]))
    out = attention(q, k, spoiled, scheme=scheme, impl="native")
    assert out[:, :3, 1000:].isfinite().all()  # a tile begins before the distance that counts
    assert not out[:, 3, 1000:].isfinite().any()
    right = exact(q, k, v, scheme, causal)
    assert (out - right)[:, :3, 1000:].abs().max() < 2e-6
    t5 = attention(q, k, spoiled, scheme=Scheme(bias=T5Bias(4).requires_grad_(False)))
    assert not t5[:, :, 1000:].isfinite().any()


def test_keys_outside_the_window_are_not_read() -> None:
    q, k, v = (heads(1, 2, 400, 8, seed=seed) for seed in range(3))
    v[:, :, :100] = math.nan
    scheme = Scheme(bias=T5Bias(2).requires_grad_(False))
    out = attention(q, k, v, scheme=scheme, mask=causal & window(9), impl="native")
    assert out[:, :, 100 + 9 + 64 :].isfinite().all()  # a tile may begin with queries before


def test_what_is_no_number_stays_none() -> None:
    q, k, v = (heads(1, 2, 300, 8, seed=seed) for seed in range(3))
    scheme = Scheme(bias=Alibi(2))
    for name, at in (("q", 100), ("k", 20), ("v", 20)):
        given = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        given[name][:, :, at] = math.nan
        out = attention(*given.values(), scheme=scheme, mask=causal & window(40), impl="native")
        touched = out.isnan().any(-1)[0]
        assert touched[:, at : at + (1 if name == "q" else 40)].all(), name
        assert name != "q" or touched.sum() == 2, "another query"


@pytest.mark.parametrize("name", ["q", "k"])
def test_what_is_no_number_hides_no_large_one(name: str) -> None:
    """A far key that the queries prefer, and NaN after it: queries before the NaN still read it."""
    q, k, v = (heads(1, 2, 1500, 16, seed=seed) for seed in range(3))
    q, k = q.abs() + 1, k * 0.1
    k[:, :, 0] = 60.0
    place = torch.arange(1500) % 64  # a tile ends at 27
    q[:, :, (place > 20) & (place < 28)] *= 0.01  # what they ask for is less
    scheme, spoiled = Scheme(bias=Alibi(2)), {"q": q.clone(), "k": k.clone()}
    right = exact(q, k, v, scheme, causal)
    at = 1450 if name == "k" else torch.arange(20, 1500, 64)
    spoiled[name][:, :, at] = math.nan
    out = attention(spoiled["q"], spoiled["k"], v, scheme=scheme, impl="native")
    seen = slice(0, 1400) if name == "k" else place != 20
    assert (out - right)[:, :, seen].abs().max() < 1e-5
    assert out[:, :, 1450:].isnan().all() if name == "k" else out[:, :, at].isnan().all()


def test_a_far_key_that_is_no_number_is_read() -> None:
    q, k, v = (heads(1, 2, 1500, 16, seed=seed) for seed in range(3))
    k[:, :, 0] = math.nan
    assert attention(q, k, v, scheme=Scheme(bias=Alibi(2)), impl="native").isnan().all()


def test_a_query_that_sees_nothing_gets_zeros_and_minus_infinity_hides() -> None:
    q, k, v = (heads(1, 1, 64, 4, seed=seed) for seed in range(3))
    bias = torch.full((1, 127), -math.inf)
    kinds: dict[str, Any] = {"scale": 1.0, "nearest": -63, "farthest": 63, "falls": False}
    assert torch.equal(kernel.attend(q, k, v, bias, **kinds), torch.zeros_like(q))
    bias[:, 63] = 0.0  # distance 0
    assert torch.equal(kernel.attend(q, k, v, bias, **kinds), v)


def test_logits_far_apart_neither_overflow_nor_turn_subnormal() -> None:
    q, k = torch.full((1, 1, 128, 4), 30.0), heads(1, 1, 128, 4, seed=0) * 30
    v = heads(1, 1, 128, 4, seed=1)
    scheme = Scheme(bias=T5Bias(1).requires_grad_(False))
    right, out = exact(q, k, v, scheme, None), attention(q, k, v, scheme=scheme, mask=None)
    assert out.isfinite().all()
    # logits of thousands are known to 2⁻²⁴ of themselves
    size = float((q.double() @ k.double().mT).abs().max()) / 2
    assert float((out - right).abs().max()) <= 4 * size * 2.0**-24 * float(v.abs().max())


def native_only(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    attend = kernel.attend
    monkeypatch.setattr(kernel, "attend", lambda *a, **kw: (calls.append(1), attend(*a, **kw))[1])
    return calls


def test_auto_takes_the_kernel_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = native_only(monkeypatch)
    q, k, v = (heads(1, 4, 64, 8, seed=seed) for seed in range(3))
    at = torch.arange(5, 69)
    schemes = (
        Scheme(bias=Alibi(4)),
        Scheme(bias=Sandwich(4)),
        Scheme(bias=T5Bias(4).requires_grad_(False)),
        Scheme(rotary=Rope(8), bias=Alibi(4)),
    )
    for number, scheme in enumerate(schemes, 1):
        attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at)
        assert len(calls) == number
    packed = same_segment(torch.arange(256) // 128)
    attention(*(heads(1, 4, 256, 8, seed=s) for s in range(3)), scheme=schemes[0], mask=packed)
    assert len(calls) == len(schemes) + 2  # a document each


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of PyTorch's kernel under vmap
def test_auto_takes_another_where_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = native_only(monkeypatch)
    q, k, v = (heads(1, 4, 64, 8, seed=seed) for seed in range(3))
    scheme = Scheme(bias=Alibi(4))
    attention(q[:, :, 1:], k, v, scheme=scheme)  # fewer queries than a tile
    attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), scheme=scheme)
    attention(q.double(), k.double(), v.double(), scheme=scheme)
    attention(q, k, v, scheme=scheme, impl="sdpa")
    attention(q, k, v, scheme=scheme, q_pos=torch.arange(64) * 2, k_pos=torch.arange(64) * 2)
    attention(q.clone().requires_grad_(), k, v, scheme=scheme).sum().backward()
    vmap(lambda x: attention(x, k, v, scheme=scheme))(q[None])
    assert not calls
    with torch.no_grad():
        attention(q.clone().requires_grad_(), k, v, scheme=scheme)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"scheme": Scheme(bias=Fire(4).requires_grad_(False))}, "distance alone"),
        ({"scheme": Scheme()}, "distance alone"),
        ({"scheme": Scheme(bias=T5Bias(4))}, "gradient"),
        ({"q_pos": torch.arange(64) * 2, "k_pos": torch.arange(64) * 2}, "storage order"),
        ({"mask": same_segment(torch.arange(64) // 8)}, "causal and window"),
        ({"length": 63}, "at least 64 queries"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_by_name_it_runs_or_says_why(change: dict[str, Any], told: str) -> None:
    length, dtype = change.pop("length", 64), change.pop("dtype", torch.float32)
    q, k, v = (heads(1, 4, length, 8, seed=seed).to(dtype) for seed in range(3))
    given: dict[str, Any] = {"scheme": Scheme(bias=Alibi(4))} | change
    with pytest.raises(ValueError, match=r"impl='native'") as caught:
        attention(q, k, v, impl="native", **given)
    assert told in str(caught.value)


def test_by_name_it_says_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_KERNEL", None)
    monkeypatch.setattr(kernel, "_WHY_MISSING", "the kernel was not built")
    q, k, v = (heads(1, 4, 64, 8, seed=seed) for seed in range(3))
    with pytest.raises(ValueError, match="was not built"):
        attention(q, k, v, scheme=Scheme(bias=Alibi(4)), impl="native")
    attention(q, k, v, scheme=Scheme(bias=Alibi(4)))


def test_the_gradient_of_a_learned_bias_is_that_of_the_sdpa_path() -> None:
    grads = []
    impls: tuple[AttentionImpl, ...] = ("auto", "sdpa", "reference")
    for impl in impls:
        q, k, v = (heads(1, 4, 150, 8, seed=seed).requires_grad_() for seed in range(3))
        bias = T5Bias(4)
        out = attention(q, k, v, scheme=Scheme(bias=bias), impl=impl)
        (out * heads(1, 4, 150, 8, seed=9)).sum().backward()
        grads.append([x.grad for x in (q, k, v, *bias.parameters())])
    for ours, plain, right in zip(*grads, strict=True):
        assert_as_good_as(plain, ours, right.double(), size=float(right.abs().max()))


def test_the_sdpa_path_keeps_its_own_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """impl="sdpa" never reaches the kernel, so what tests it by name tests PyTorch's."""
    monkeypatch.setattr(distance, "_native", None)
    q, k, v = (heads(1, 4, 700, 8, seed=seed) for seed in range(3))
    out = attention(q, k, v, scheme=Scheme(bias=Alibi(4)), impl="sdpa")
    assert_as_good_as(out, out, exact(q, k, v, Scheme(bias=Alibi(4)), causal), size=1.0)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("key_heads", [2, 4])
def test_attention_under_a_bias_can_be_traced(key_heads: int) -> None:
    q, k, v = heads(1, 4, 80, 8, seed=0), *(heads(1, key_heads, 80, 8, seed=s) for s in (1, 2))
    scheme = Scheme(bias=Alibi(4))
    traced: Any = torch.jit.trace(lambda q, k, v: attention(q, k, v, scheme=scheme), (q, k, v))
    q, k, v = (x.flip(2) for x in (q, k, v))
    plain = attention(q, k, v, scheme=scheme, impl="sdpa")
    assert_as_good_as(plain, traced(q, k, v), exact(q, k, v, scheme, causal))
