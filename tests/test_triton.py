"""The GPU kernel: on a GPU where there is one, else under Triton's interpreter on the CPU."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from oracles import rotated
from posenc import Rope, RotaryTables, Table, rotate, rotate_qk
from posenc.contracts import Pairing
from posenc.kernels import triton_rotary
from posenc.positions import sequence
from support import eps, random

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PAIRINGS: tuple[Pairing, ...] = ("half", "adjacent")
SHAPES = [  # head_dim, rotary_dim, start, tokens: odd widths, widths of no power of two
    (2, 2, 0, 1),
    (6, 6, 0, 3),
    (7, 4, 2, 5),
    (80, 80, 0, 7),
    (96, 24, 0, 33),
    (128, 64, 64, 2),
    (512, 512, 0, 3),
]


def table_of(at: Tensor, pairing: Pairing, shape: tuple[int, int, int, int]) -> Table:
    """By the oracle's formula, so that a test of the kernel rests on no table of ours."""
    head_dim, rotary_dim, start, _ = shape
    angle = at[..., None].double() * torch.tensor(speeds(rotary_dim), dtype=torch.float64)
    angle = angle if angle.ndim == 3 else angle[None]
    cos, sin = (part.float().to(DEVICE) for part in (angle.cos(), angle.sin()))
    return Table(cos, sin, pairing, head_dim, start)


def alike(table: Table) -> RotaryTables:
    return RotaryTables(table, table)


def speeds(rotary_dim: int) -> list[float]:
    return [100.0 ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


def by_oracle(x: Tensor, at: Tensor, table: Table, *, direction: int = 1) -> Tensor:
    inv_freq = [direction * speed for speed in speeds(table.rotary_dim)]
    out = torch.empty(x.shape, dtype=torch.float64)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in x.shape[:3])).tolist():
        row, position = x[b, h, t].tolist(), float(at[b % at.shape[0], t])
        out[b, h, t] = torch.tensor(
            rotated(row, position, inv_freq, pairing=table.pairing, start=table.start)
        ).double()
    return out


def assert_rounded_once(actual: Tensor, exact: Tensor) -> None:
    """float32 arithmetic, then one rounding; Triton's interpreter cuts bfloat16 off instead."""
    one = 0.5 if actual.dtype != torch.bfloat16 or DEVICE == "cuda" else 1.0
    limit = one * eps(actual.dtype) * exact.abs() + 2 * eps(torch.float32) * exact.abs().max()
    error = (actual.cpu().double() - exact).abs()
    assert (error <= limit).all(), f"off by {error.max():.3g}, allowed {limit.max():.3g}"


def heads(shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    head_dim, _, _, num_tokens = shape
    q = random(2, 9, num_tokens, head_dim, seed=1, dtype=dtype).to(DEVICE)
    return q, random(2, 2, num_tokens, head_dim, seed=2, dtype=dtype).to(DEVICE)


@needs_triton
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place_is_written_and_none_outside(
    shape: tuple[int, int, int, int], pairing: Pairing
) -> None:
    """First of all tests: what writes outside is caught here, before it does harm elsewhere."""
    head_dim, *_, num_tokens = shape
    table = table_of(torch.arange(num_tokens)[None], pairing, shape)
    q, k = heads(shape, torch.float32)
    guarded = [x.new_full((2, n + 2, num_tokens + 2, head_dim + 2), torch.nan) for x in (q, k)
               for n in (x.shape[1],)]  # fmt: skip
    outs = [x[:, 1:-1, 1:-1, 1:-1] for x in guarded]
    parts = [table.cos, table.sin, table.cos, table.sin]
    form = (pairing == "adjacent", table.start)
    for tiles in (triton_rotary.Tiles(heads=4), triton_rotary.Tiles(pairs=64, heads=1)):
        triton_rotary._launch((q, k), (outs[0], outs[1]), parts, *form, tiles=tiles)
        for whole, out in zip(guarded, outs, strict=True):
            assert out.isfinite().all()
            out.fill_(torch.nan)
            assert whole.isnan().all()


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward_backward_and_in_place_are_the_oracle(
    shape: tuple[int, int, int, int],
    pairing: Pairing,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = torch.tensor([[7 * t + 1 for t in range(shape[3])], [5 - t for t in range(shape[3])]])
    places = (at, at + 3)
    table, other = (table_of(place, pairing, shape) for place in places)
    tables = RotaryTables(table, other)
    q, k = heads(shape, dtype)
    turned = rotate_qk(q, k, tables, impl="triton")
    turns = slice(shape[2], shape[2] + shape[1])
    for x, out, place in zip((q, k), turned, places, strict=True):
        assert out.dtype == dtype
        assert_rounded_once(out, by_oracle(x, place, table))
        rest = torch.ones(shape[0], dtype=torch.bool)
        rest[turns] = False
        assert torch.equal(out[..., rest], x[..., rest])

    if shape[3] < 8:
        leaves = [x.clone().requires_grad_() for x in (q, k)]
        ahead = [random(*x.shape, seed=5, dtype=dtype).to(DEVICE) for x in leaves]
        outs = rotate_qk(leaves[0], leaves[1], tables, impl="triton")
        for out, same in zip(outs, turned, strict=True):
            assert torch.equal(out, same)
        grads = torch.autograd.grad(outs, leaves, ahead)
        for grad, weight, place in zip(grads, ahead, places, strict=True):
            assert_rounded_once(grad, by_oracle(weight, place, table, direction=-1))

    monkeypatch.setattr(triton_rotary, "BUSY", 0)  # several heads in one program
    before = [x._version for x in (q, k)]
    same_q, same_k = rotate_qk(q, k, tables, inplace=True, impl="triton")
    assert same_q is q and same_k is k
    assert torch.equal(q, turned[0]) and torch.equal(k, turned[1])
    assert [x._version for x in (q, k)] > before


@needs_triton
@given(data=st.data())
def test_any_shape_is_the_plain_rotation(data: st.DataObject) -> None:
    draw = data.draw
    head_dim = draw(st.integers(2, 40))
    rotary_dim = 2 * draw(st.integers(1, head_dim // 2))
    start = draw(st.integers(0, head_dim - rotary_dim))
    batch, q_heads, k_heads = (draw(st.integers(1, 3)) for _ in range(3))
    q_tokens, k_tokens = (draw(st.integers(0, 20)) for _ in range(2))
    pairing = draw(st.sampled_from(PAIRINGS))
    made: list[Table] = []
    for tokens in (q_tokens, k_tokens):
        rows = draw(st.sampled_from([1, batch]))
        at = torch.randint(-9, 999, (rows, tokens))
        made.append(table_of(at, pairing, (head_dim, rotary_dim, start, tokens)))
    tables = RotaryTables(made[0], made[1])
    q = random(batch, q_tokens, q_heads, head_dim, dtype=torch.float32).transpose(1, 2).to(DEVICE)
    k = random(batch, k_heads, k_tokens, head_dim, seed=3, dtype=torch.float32).to(DEVICE)
    expected = rotate_qk(q, k, tables, impl="eager")
    for x, same in zip(rotate_qk(q, k, tables, impl="triton"), expected, strict=True):
        torch.testing.assert_close(x, same, atol=1e-6, rtol=1e-6)
    alone = rotate(q, tables.q, impl="triton")
    torch.testing.assert_close(alone, expected[0], atol=1e-6, rtol=1e-6)


@needs_triton
def test_views_of_a_fused_projection_are_read_and_turned_where_they_lie() -> None:
    fused = random(2, 5, 9 + 2 * 3, 16, dtype=torch.float32).to(DEVICE)
    kept = fused.clone()
    q, k = fused.transpose(1, 2).split((9, 3, 3), dim=1)[:2]
    tables = alike(table_of(torch.arange(5)[None], "half", (16, 16, 0, 5)))
    expected = rotate_qk(q, k, tables, impl="eager")
    out = rotate_qk(q, k, tables, impl="triton")
    assert torch.equal(fused, kept)
    rotate_qk(q, k, tables, inplace=True, impl="triton")
    for new, old, right in zip(out, (q, k), expected, strict=True):
        assert torch.equal(new, old)
        torch.testing.assert_close(old, right, atol=1e-6, rtol=1e-6)
    assert torch.equal(fused[:, :, 12:], kept[:, :, 12:])  # values


@needs_triton
def test_one_launch_for_both_and_two_for_tables_that_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches = []
    launch = triton_rotary._launch
    monkeypatch.setattr(
        triton_rotary, "_launch", lambda *args, **kw: (launches.append(1), launch(*args, **kw))
    )
    q, k = heads((16, 16, 0, 4), torch.float32)
    half, adjacent = (
        table_of(torch.arange(4)[None], pairing, (16, 16, 0, 4)) for pairing in ("half", "adjacent")
    )
    rotate_qk(q, k, RotaryTables(half, half), impl="triton")
    assert len(launches) == 1
    tables = RotaryTables(half, adjacent)
    for x, right in zip(
        rotate_qk(q, k, tables, impl="triton"), rotate_qk(q, k, tables, impl="eager"), strict=True
    ):
        torch.testing.assert_close(x, right, atol=1e-6, rtol=1e-6)
    assert len(launches) == 3


def run(code: str, **environment: str) -> str:
    inherited = {name: v for name, v in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=inherited | environment
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


FAR = """
import torch
from posenc.contracts import RotaryTables, Table
from posenc.rotate import rotate_qk
device = "cuda" if torch.cuda.is_available() else "cpu"
stride = 2**30 + 64  # times 2 is more than 31 bits hold; memory that is not touched costs nothing
far = torch.empty(2 * stride + 64, dtype=torch.bfloat16, device=device)
for dim in range(3):
    shape, strides = [1, 1, 1, 8], [8, 8, 8, 1]
    shape[dim], strides[dim] = 3, stride
    x = far.as_strided(shape, strides)
    near = torch.randn(shape).bfloat16().to(device)
    x.copy_(near)
    angle = torch.arange(shape[2], device=device)[None, :, None] + torch.arange(4, device=device)
    table = Table(angle.cos(), angle.sin(), "half", 8)
    tables = RotaryTables(table, table)
    right = rotate_qk(near, near.clone(), tables, impl="triton")[0]
    rotate_qk(x, near, tables, impl="triton", inplace=True)
    assert torch.equal(x, right), dim
    print(dim)
"""


@needs_triton
def test_offsets_beyond_31_bits() -> None:
    """Strides of 2^30 elements along the batch, the heads and the tokens. In a process of its own:
    an offset that wrapped around would end it."""
    environment = {} if DEVICE == "cuda" else {"TRITON_INTERPRET": "1"}
    assert run(FAR, **environment).split() == ["0", "1", "2"]


COMPILED = """
import json, re
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from posenc.kernels.triton_kernel import rotate_kernel as kernel
names, found = kernel.arg_names, {}
for adjacent in (False, True):
    sizes = dict(START=0, PAIRS=64, REST=0, ADJACENT=adjacent, GROUP=2, BLOCK_TOKENS=16,
                 BLOCK_PAIRS=64, BLOCK_REST=1)
    sides = ("q", "k", "q_out", "k_out")
    kinds = {name: "*bf16" if name in sides else "*fp32" if name.endswith(("cos", "sin")) else
             "fp32" if name == "direction" else "i32" for name in names}
    even = [name for name in names if kinds[name][0] == "*" or
            name.endswith(("_batch", "_head", "_token", "_table"))]
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in even}
    source = ASTSource(kernel, kinds | dict.fromkeys(sizes, "constexpr"),
                       {(names.index(name),): value for name, value in sizes.items()}, hints)
    text = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    count = lambda pattern: len(re.findall(pattern, text))
    found[str(adjacent)] = [count(r"ld[.]global"), count(r"ld[.]global\\S*v4"),
        count(r"st[.]global"), count(r"st[.]global\\S*v4"), count(r"cvt[.]rn[.]bf16"),
        count("bar[.]sync|shfl")]
print(json.dumps(found))
"""


@needs_triton
def test_compiled_for_a_gpu_it_moves_16_bytes_at_a_time_and_shuffles_nothing() -> None:
    """No GPU is needed to compile for one. Rounding is to nearest."""
    for form in json.loads(run(COMPILED)).values():
        loads, wide_loads, stores, wide_stores, roundings, exchanges = form
        assert loads == wide_loads > 0 and stores == wide_stores > 0
        assert roundings > 0 and exchanges == 0


@needs_triton
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_operators_are_what_they_say(pairing: Pairing) -> None:
    table = table_of(torch.arange(4)[None], pairing, (10, 6, 2, 4))
    tables = [table.cos, table.sin] * 2
    q, k = (x.requires_grad_() for x in heads((10, 6, 2, 4), torch.float32))
    form = (pairing == "adjacent", 2)
    torch.library.opcheck(triton_rotary._op, (q, k, *tables, *form, 1.0))
    fixed = (q.detach().clone(), k.detach().clone())
    torch.library.opcheck(triton_rotary._inplace_op, (*fixed, *tables, *form))


@needs_triton
def test_a_trace_holds_one_operator_and_no_pointer() -> None:
    q, k = heads((16, 16, 0, 4), torch.float32)
    table = table_of(torch.arange(4)[None], "half", (16, 16, 0, 4))

    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        made = Table(cos, sin, "half", 16)
        return rotate_qk(q, k, RotaryTables(made, made), impl="triton")

    graph = make_fx(turn, tracing_mode="fake")(q, k, table.cos, table.sin)
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count("posenc.rotate_qk.default") == 1
    expected = rotate_qk(q, k, RotaryTables(table, table), impl="eager")
    for mine, right in zip(graph(q, k, table.cos, table.sin), expected, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-6, rtol=1e-6)


@needs_triton
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inplace", [False, True])
def test_compiles_whole_and_once_for_all_lengths(inplace: bool) -> None:
    rope, compiled = Rope(16), []

    def turn(q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (q * 1, k * 1) if inplace else (q, k)
        return rotate_qk(q, k, rope.tables(at, at), impl="triton", inplace=inplace)

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    torch._dynamo.reset()
    run = torch.compile(turn, fullgraph=True, dynamic=True, backend=backend)
    for num_tokens in (5, 9, 4):
        q, k = heads((16, 16, 0, num_tokens), torch.float32)
        at = sequence(num_tokens, start=num_tokens).to(DEVICE)
        expected = rotate_qk(q, k, rope.tables(at, at), impl="eager")
        for mine, right in zip(run(q, k, at), expected, strict=True):
            torch.testing.assert_close(mine, right, atol=1e-6, rtol=1e-6)
    assert len(compiled) == 1


def tables_for(x: Tensor) -> RotaryTables:
    at = sequence(x.shape[2]).to(x.device)
    return Rope(x.shape[3]).tables(at, at)


@needs_triton
@pytest.mark.parametrize(
    ("x", "told"),
    [
        (torch.ones(1, 1, 2, 8, dtype=torch.float64), r"cannot rotate torch\.float64"),
        (torch.ones(1, 1, 2, 514), "at most 512 channels"),
        (torch.ones(1, 1, 2, 8, device="meta"), r"on meta"),
    ],
)
def test_by_name_it_runs_or_says_why_not(x: Tensor, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        rotate(x, tables_for(x).q, impl="triton")
    with pytest.raises(ValueError, match=told):
        rotate_qk(x, x.clone(), tables_for(x), impl="triton")


@needs_triton
def test_tables_that_it_cannot_read_are_refused() -> None:
    table = Table(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), "half", 8)  # one for each head
    with pytest.raises(ValueError, match="shared by all heads"):
        rotate(torch.ones(1, 2, 3, 8), table, impl="triton")
    learned = tables_for(torch.ones(1, 1, 3, 8)).q
    learned = replace(learned, cos=learned.cos.requires_grad_())
    with pytest.raises(ValueError, match="fixed float32 tables"):
        rotate(torch.ones(1, 1, 3, 8), learned, impl="triton")


MISSING = """
import sys
import torch
from posenc import Rope, rotate, rotate_qk
x = torch.ones(1, 1, 3, 8)
at = torch.arange(3)
tables = Rope(8).tables(at, at)
rotate_qk(x, x.clone(), tables)
assert "triton.language" not in sys.modules, "loaded without need"
try:
    rotate(x, tables.q, impl="triton")
except ValueError as error:
    print(error)
from posenc.bench.doctor import findings
print(findings()["rotate on a GPU"])
"""


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a CUDA device")
def test_without_a_gpu_or_triton_it_says_so_and_loads_nothing() -> None:
    hidden = "import importlib.util as u; found = u.find_spec\n" + (
        "u.find_spec = lambda name, *rest: None if name == 'triton' else found(name, *rest)\n"
    )
    told = run(hidden + MISSING)
    assert told.count("triton is not installed") == 2
    if importlib.util.find_spec("triton"):
        told = run(MISSING)
        assert told.count("there is no CUDA device") == 2
