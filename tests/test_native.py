"""The compiled CPU kernel where it is large enough for several threads: theirs, PyTorch's, none."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from posenc import Rope, rotate, rotate_qk
from posenc.contracts import Pairing, RotaryTables
from posenc.kernels import attention, library, native
from posenc.positions import sequence
from support import random

pytestmark = pytest.mark.skipif(
    native.missing() is not None, reason="the kernel was not built: there is no C++ compiler"
)
Layout = Callable[[int, torch.dtype, int], Tensor]
TOKENS, WIDTH = 517, 64  # not a multiple of the kernel's block; past its threshold for threads


def tables(pairing: Pairing = "half") -> RotaryTables:
    return Rope(WIDTH, pairing=pairing, rotary_dim=48).tables(sequence(TOKENS), sequence(TOKENS))


def tokens_first(heads: int, dtype: torch.dtype, seed: int) -> Tensor:
    """`[B, H, T, D]`, one token's heads beside each other, as a projection leaves them."""
    return random(2, TOKENS, heads, WIDTH, seed=seed, dtype=dtype).transpose(1, 2)


def heads_first(heads: int, dtype: torch.dtype, seed: int) -> Tensor:
    return random(2, heads, TOKENS, WIDTH, seed=seed, dtype=dtype)


def fused(heads: int, dtype: torch.dtype, seed: int) -> Tensor:
    """A view between what a fused projection put before and after it."""
    whole = random(2, TOKENS, heads + 3, WIDTH + 8, seed=seed, dtype=dtype).transpose(1, 2)
    return whole[:, 1 : heads + 1, :, 4 : WIDTH + 4]


@pytest.fixture(params=["pool", "own"], ids=lambda whose: f"{whose} threads")
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "own":
        library.leave_pool()
    elif not library.joins_pool():
        pytest.skip("PyTorch's threads are not OpenMP's here")
    yield
    library.join_pool()


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("num_threads", [1, 2, 3, 7])
@pytest.mark.parametrize("layout", [tokens_first, heads_first, fused])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_of_threads_gives_the_bits_of_eager(
    layout: Layout, dtype: torch.dtype, num_threads: int
) -> None:
    before = torch.get_num_threads()
    for pairing in ("half", "adjacent"):
        at = tables(pairing)
        q, k = layout(4, dtype, 1), layout(1, dtype, 2)
        expected = [rotate(x, at.q, impl="eager") for x in (q, k)]
        torch.set_num_threads(num_threads)
        try:
            turned = rotate_qk(q, k, at, impl="auto")
            rotate_qk(q, k, at, inplace=True)
        finally:
            torch.set_num_threads(before)
        for one, in_place, want in zip(turned, (q, k), expected, strict=True):
            assert torch.equal(one, want)
            assert torch.equal(in_place, want)


def test_nothing_beside_a_view_is_written() -> None:
    whole = random(2, TOKENS, 7, WIDTH + 8, dtype=torch.float32)
    before = whole.clone()
    view = whole.transpose(1, 2)[:, 1:5, :, 4 : WIDTH + 4]
    rotate_qk(view, view[:, :0], tables(), inplace=True)
    view.copy_(before.transpose(1, 2)[:, 1:5, :, 4 : WIDTH + 4])
    assert torch.equal(whole, before)


def test_a_library_of_another_version_is_not_called() -> None:
    """After an update that was not installed, say: its struct is laid out differently."""
    for name, version in (("_rotary.so", native.VERSION), ("_attention.so", attention.VERSION)):
        assert library.load(name, version)[1] is None
        loaded, why = library.load(name, version + 1)
        assert loaded is None
        assert why is not None and "install posenc again" in why and name in why
