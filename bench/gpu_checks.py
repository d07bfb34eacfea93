"""What must hold on a GPU before anything is timed there: checks that need neither pytest nor peers.

Each check takes a device and raises an AssertionError. On the CPU the same code runs at small sizes:
kernels under Triton's interpreter, graphs traced and not compiled.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from posenc import Alibi, Kerple, Rope, RotaryTables, Sandwich, Scheme, T5Bias, attention, rotate_qk
from posenc.attention import AttentionImpl, MultiHeadAttention
from posenc.contracts import Pairing, Table
from posenc.masks import Mask, causal, same_segment, window

__all__ = ["CHECKS"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PAIRINGS: tuple[Pairing, ...] = ("half", "adjacent")
SHAPES = (  # channels, rotated ones, tokens: odd widths, widths of no power of two, the widest
    (2, 2, 1),
    (80, 80, 7),
    (96, 24, 33),
    (128, 128, 65),
    (512, 512, 5),
)
HEADS, HEAD_DIM = 4, 32


def _random(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _close(actual: Tensor, exact: Tensor, roundings: float) -> None:
    assert actual.isfinite().all(), "not finite"
    eps, largest = torch.finfo(actual.dtype).eps, exact.double().abs().max()
    error = (actual.double() - exact.double()).abs().max()
    assert error <= roundings * eps * largest, f"off by {error:.2g}, largest value {largest:.2g}"


def _rounded_once(actual: Tensor, exact: Tensor) -> None:
    """float32 arithmetic, then one rounding; Triton's interpreter cuts bfloat16 off instead."""
    unit = 1.0 if actual.dtype == torch.bfloat16 and not actual.is_cuda else 0.5
    limit = unit * torch.finfo(actual.dtype).eps * exact.abs() + 3e-7 * exact.abs().max()
    error = (actual.double() - exact).abs()
    assert (error <= limit).all(), f"{actual.dtype} is off by {error.max():.2g}"


def rotation(device: str) -> None:
    """Forward, backward and in place, both pairings, partial, positions of their own for each row."""
    shapes = SHAPES if device == "cuda" else SHAPES[:1]
    for (head_dim, rotary_dim, tokens), pairing, dtype in product(shapes, PAIRINGS, DTYPES):
        rope = Rope(head_dim, rotary_dim=rotary_dim, pairing=pairing)
        at = torch.randint(-9, 999, (2, tokens), generator=torch.Generator().manual_seed(1))
        tables = rope.tables(at.to(device), at.to(device) + 3)
        q = _random(2, 9, tokens, head_dim, device=device, dtype=dtype)
        k = _random(2, 2, tokens, head_dim, device=device, dtype=dtype, seed=1)
        exact = rotate_qk(q.double(), k.double(), tables, impl="reference")
        outs = rotate_qk(q, k, tables, impl="triton")
        for out, right in zip(outs, exact, strict=True):
            _rounded_once(out, right)
        _backward(q, k, tables)
        rotate_qk(q, k, tables, impl="triton", inplace=True)
        assert torch.equal(q, outs[0]) and torch.equal(k, outs[1]), "in place differs"


def _backward(q: Tensor, k: Tensor, tables: RotaryTables) -> None:
    leaves = [x.clone().requires_grad_() for x in (q, k)]
    wide = [x.double().requires_grad_() for x in (q, k)]
    ahead = [torch.flip(x, (-1,)) for x in (q, k)]
    turned = rotate_qk(leaves[0], leaves[1], tables, impl="triton")
    grads = torch.autograd.grad(turned, leaves, ahead)
    outs = rotate_qk(wide[0], wide[1], tables, impl="reference")
    right = torch.autograd.grad(outs, wide, [x.double() for x in ahead])
    for grad, exact in zip(grads, right, strict=True):
        _rounded_once(grad, exact)


def strided_rotation(device: str) -> None:
    """The heads of one fused projection, `[B, T, 3H, D]`, read and turned where they lie."""
    fused = _random(2, 37, 18, 64, device=device)
    kept, at = fused.clone(), torch.arange(37, device=device)
    q, k, _ = fused.transpose(1, 2).split((10, 4, 4), dim=1)
    tables = Rope(64).tables(at, at)
    exact = rotate_qk(q.double(), k.double(), tables, impl="reference")
    rotate_qk(q, k, tables, impl="triton", inplace=True)
    for turned, right in zip((q, k), exact, strict=True):
        _rounded_once(turned, right)
    assert torch.equal(fused[:, :, 14:], kept[:, :, 14:]), "values were written over"


def far_offsets(device: str) -> None:
    """Strides of 2^30 elements: memory that is not touched costs nothing on the CPU."""
    stride = 2**30 + 64
    far = torch.empty(2 * stride + 64, dtype=torch.bfloat16, device=device)
    for dim in range(3):
        shape, strides = [1, 1, 1, 8], [8, 8, 8, 1]
        shape[dim], strides[dim] = 3, stride
        x, near = far.as_strided(shape, strides), _random(*shape, device=device).bfloat16()
        x.copy_(near)
        at = torch.arange(shape[2], device=device)
        tables = Rope(8).tables(at, at)
        right = rotate_qk(near, near.clone(), tables, impl="triton")[0]
        rotate_qk(x, near, tables, impl="triton", inplace=True)
        assert torch.equal(x, right), f"stride of dimension {dim}"


def many_elements(device: str) -> None:
    """More elements than 31 bits count, in one tensor."""
    batch, tokens = (33, 8192) if device == "cuda" else (2, 4)
    at = torch.arange(tokens, device=device)
    tables = Rope(128).tables(at, at)
    q = torch.empty(batch, 64, tokens, 128, dtype=torch.bfloat16, device=device)
    q[-1] = _random(64, tokens, 128, device=device).bfloat16()
    last = q[-1:].clone()
    rotate_qk(q, q.new_empty(batch, 0, tokens, 128), tables, impl="triton", inplace=True)
    right = rotate_qk(last.double(), last.double(), tables, impl="reference")[0]
    _rounded_once(q[-1:], right)


def _schemes(device: str) -> list[Scheme]:
    torch.manual_seed(0)
    found = (Alibi(HEADS), T5Bias(HEADS), Kerple(HEADS), Sandwich(HEADS))
    return [Scheme(rotary=Rope(HEAD_DIM)), *(Scheme(bias=bias.to(device)) for bias in found)]


def _masks(length: int, device: str) -> tuple[Mask, ...]:
    documents = (torch.arange(length, device=device) > length // 3).long()
    return causal, causal & window(50), causal & same_segment(documents)


def attention_is_its_reference(device: str) -> None:
    """Every scheme by distance, three masks, the last queries of many keys, grouped keys."""
    length = 300 if device == "cuda" else 40
    q, k, v = (_random(2, n, length, HEAD_DIM, device=device, seed=n) for n in (HEADS, 2, 2))
    wide = [x.double() for x in (k, v)]
    for place, (scheme, mask) in enumerate(product(_schemes(device), _masks(length, device))):
        impls: list[AttentionImpl] = ["sdpa"]
        if place % 4 == 0:  # each scheme once, each mask: a compilation takes seconds
            impls.append("flex")
        for queries, impl in product((q, q[:, :, -9:]), impls):
            options: dict[str, Any] = {"scheme": scheme, "mask": mask}
            with torch.no_grad():
                out = attention(queries, k, v, impl=impl, **options)
                exact = attention(queries.double(), *wide, impl="reference", **options)
            _close(out, exact, 256)


def gradients_are_the_reference(device: str) -> None:
    """Of q, k, v and of what the bias learns; on a CPU FlexAttention has none."""
    length, impl = (300, "flex") if device == "cuda" else (40, "sdpa")
    for scheme in _schemes(device)[:4]:  # Sandwich learns nothing
        inputs = [_random(2, HEADS, length, HEAD_DIM, device=device, seed=n) for n in range(3)]
        learned = [p for part in scheme.modules().values() for p in part.parameters()]
        grads: list[tuple[Tensor, ...]] = []
        for wide, how in ((False, impl), (True, "reference")):
            leaves = [(x.double() if wide else x).requires_grad_() for x in inputs]
            out = attention(*leaves, scheme=scheme, impl=how)  # pyright: ignore
            ahead = torch.cos(torch.arange(out.numel(), device=device)).view_as(out).to(out)
            grads.append(torch.autograd.grad(out, [*leaves, *learned], ahead))
        for mine, exact in zip(*grads, strict=True):
            _close(mine, exact, 4096)


def captured_rotation(device: str) -> None:
    """Recorded once and replayed over other values, and over tables made in the graph."""
    rope, at = Rope(64), torch.arange(16, device=device)
    q, k = (_random(1, n, 16, 64, device=device) for n in (8, 2))

    def step() -> tuple[Tensor, Tensor]:
        return rotate_qk(q, k, rope.tables(at, at), impl="triton")

    replay = _captured(step, device)
    for shift in (1, 5):
        q.add_(shift)
        at.add_(shift)
        exact = rotate_qk(q.double(), k.double(), rope.tables(at, at), impl="reference")
        for out, right in zip(replay(), exact, strict=True):
            _rounded_once(out, right)


def captured_decode_step(device: str) -> None:
    """One token against a cache of fixed size, its place told by positions on the device."""
    for scheme in _schemes(device):
        k, v = (_random(2, HEADS, 64, HEAD_DIM, device=device, seed=n) for n in (1, 2))
        q, at = _random(2, HEADS, 1, HEAD_DIM, device=device), torch.zeros(1, device=device).long()
        places = torch.arange(64, device=device)

        def step(scheme: Scheme = scheme, q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
            return attention(q, k, v, scheme=scheme, q_pos=at, k_pos=places)  # noqa: B023

        replay = _captured(step, device)
        for place in (3, 40):
            at.fill_(place)
            seen = slice(0, place + 1)
            wide = (x[:, :, seen].double() for x in (k, v))
            with torch.no_grad():
                exact = attention(q.double(), *wide, scheme=scheme, impl="reference")
            _close(replay(), exact, 256)


def _captured(step: Callable[[], Any], device: str) -> Callable[[], Any]:
    if device == "cpu":
        return torch.no_grad()(step)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        outs = step()

    def replay() -> Any:
        graph.replay()
        return outs

    return replay


def compiled_once(device: str) -> None:
    """No graph break, and one graph for all lengths and positions: rotation, attention, a layer."""
    rope = Rope(HEAD_DIM)

    def turned(q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_qk(q, k, rope.tables(at, at))

    sized = [_compiled(turned, device)]
    for length, start in ((64, 0), (96, 7), (40, 1000)):
        q, k = (_random(1, n, length, HEAD_DIM, device=device) for n in (HEADS, 2))
        at = torch.arange(start, start + length, device=device)
        exact = rotate_qk(q.double(), k.double(), rope.tables(at, at), impl="reference")
        for out, right in zip(sized[0][0](q, k, at), exact, strict=True):
            _close(out, right, 8)
    assert sized[0][1].frame_count == 1, f"rotation: {sized[0][1].frame_count} graphs"
    for scheme in _schemes(device)[:3]:
        layer = MultiHeadAttention(HEADS * HEAD_DIM, HEADS, scheme=scheme).to(device)
        run, counter = _compiled(layer, device)
        for length in (64, 96, 40):
            x = _random(2, length, HEADS * HEAD_DIM, device=device)
            with torch.no_grad():
                _close(run(x), layer(x), 512)
        assert counter.frame_count == 1, f"{scheme}: {counter.frame_count} graphs"


def _compiled(run: Callable[..., Any], device: str) -> tuple[Any, CompileCounterWithBackend]:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor" if device == "cuda" else "eager")
    return torch.compile(run, backend=counter, fullgraph=True, dynamic=True), counter


def table_outside(device: str) -> None:
    """A masked lane never reads a token as unrotated: NaN in a table shows in every channel."""
    cos = torch.full((1, 3, 4), torch.nan, device=device)
    table = Table(cos, cos, "half", 8)
    x = _random(1, 1, 3, 8, device=device)
    out = rotate_qk(x, x.clone(), RotaryTables(table, table), impl="triton")[0]
    assert out.isnan().all(), "a table of NaN left values"


CHECKS: dict[str, Callable[[str], None]] = {
    check.__name__: check
    for check in (
        rotation,
        strided_rotation,
        table_outside,
        far_offsets,
        many_elements,
        attention_is_its_reference,
        gradients_are_the_reference,
        captured_rotation,
        captured_decode_step,
        compiled_once,
    )
}
