"""Rotation: queries and keys of one layer, beside the limit of memory and beside peers."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from posenc.bench import peers
from posenc.bench.work import OURS, Case, Side, Target, UnavailableError, Work
from posenc.contracts import RotaryTables
from posenc.rotary import MRope, Rope
from posenc.rotate import rotate_qk

__all__ = ["ROTATION"]

HEADS, KEY_HEADS, HEAD_DIM = 32, 8, 128
TRAINING = (4, 12, 64)  # batch, heads, channels
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # half a unit of values below 8, bfloat16
PEER_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}


def _qk(length: int, dtype: torch.dtype, batch: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = (batch, HEADS, length, HEAD_DIM), (batch, KEY_HEADS, length, HEAD_DIM)
    q, k = (torch.randn(shape, generator=draw).to(dtype) for shape in shapes)
    return q, k


def _ours(tables: RotaryTables, *, inplace: bool = False) -> Side:
    return lambda q, k: rotate_qk(q, k, tables, inplace=inplace)


def _right(tables: RotaryTables) -> Side:
    return lambda q, k: rotate_qk(q, k, tables, impl="reference")


def _available(
    asked: dict[str, Callable[[], Side]], against: frozenset[str]
) -> tuple[dict[str, Side], dict[str, str]]:
    """The peers that are wanted, and why others of them are not there."""
    sides, absent = {}, {}
    for name, make in asked.items():
        if name in against:
            try:
                sides[name] = make()
            except UnavailableError as error:
                absent[name] = str(error)
    return sides, absent


def _peers(
    pairing: str, length: int, dim: int, dtype: torch.dtype, *, training: bool = False
) -> dict[str, Callable[[], Side]]:
    """Those that rotate pairs of this kind."""
    if pairing == "adjacent":
        return {
            "rotary-embedding-torch": lambda: peers.rotary_embedding_torch(length, dim, dtype),
            "x-transformers": lambda: peers.x_transformers(length, dim, dtype),
        }
    eager = {"transformers": lambda: peers.transformers(length, dim, dtype)}
    if not training:
        return eager
    compiled = partial(peers.transformers, length, dim, dtype, compiled=True)
    return eager | {"transformers-compiled": compiled}


def _plain(
    length: int, against: frozenset[str], *, dtype: torch.dtype, inplace: bool, pairing: str
) -> Work:
    """Queries and keys, `[1, 32, T, 128]` and `[1, 8, T, 128]`, one table for all heads."""
    rope = Rope(HEAD_DIM, pairing=pairing)  # pyright: ignore[reportArgumentType]
    positions = torch.arange(length)
    tables = rope.tables(positions, positions)
    sides = {OURS: _ours(tables, inplace=inplace), "limit": _once if inplace else _copied}
    found, absent = _available(_peers(pairing, length, HEAD_DIM, dtype), against)
    return Work(
        _qk(length, dtype),
        sides | found,
        _right(tables),
        TOLERANCE[dtype],
        frozenset({"limit"}),
        PEER_TOLERANCE[dtype],
        absent,
    )


def _once(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Every byte read and written once."""
    return q.mul_(1.0), k.mul_(1.0)


def _copied(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q.clone(), k.clone()


def _training(length: int, against: frozenset[str], *, pairing: str) -> Work:
    """Forward and backward at `[4, 12, T, 64]`."""
    batch, heads, dim = TRAINING
    draw = torch.Generator().manual_seed(0)
    q, k = (torch.randn(batch, heads, length, dim, generator=draw).requires_grad_() for _ in "qk")
    positions = torch.arange(length)
    tables = Rope(dim, pairing=pairing).tables(positions, positions)  # pyright: ignore
    found, absent = _available(_peers(pairing, length, dim, torch.float32, training=True), against)
    sides = {OURS: _ours(tables)} | found
    ahead = [torch.randn(x.shape, generator=draw) for x in (q, k)]
    return Work(
        (q, k),
        {name: _with_gradient(side, ahead) for name, side in sides.items()},
        _with_gradient(_right(tables), ahead),
        1e-5,
        peer_tolerance=1e-3,
        absent=absent,
    )


def _with_gradient(side: Side, ahead: list[Tensor]) -> Side:
    """The gradients of q and k, where `ahead` are those of the results."""

    def both(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            outs = side(q, k)
            return torch.autograd.grad(outs, (q, k), [x.to(q.dtype) for x in ahead])

    return both


def _form(length: int, against: frozenset[str], *, form: str) -> Work:
    """Another form of rotation beside the plain one of the same tensors."""
    del against
    q, k = _qk(length, torch.float32)
    positions = torch.arange(length)
    rope, full = Rope(HEAD_DIM), Rope(HEAD_DIM).tables(positions, positions)
    tables = full
    if form == "partial":
        tables = Rope(HEAD_DIM, rotary_dim=HEAD_DIM // 2).tables(positions, positions)
    elif form == "per token":  # a row of positions for each row of the batch
        own = torch.randint(0, 100_000, (1, length), generator=torch.Generator().manual_seed(1))
        tables = rope.tables(own, own)
    elif form == "sections":
        grid = positions[:, None].expand(-1, 3).contiguous()
        tables = MRope(rope, sections=(16, 24, 24)).tables(grid, grid)
    else:  # the heads of one fused projection, [B, T, H + 2 H', D], never copied
        fused = torch.randn(1, length, HEADS + 2 * KEY_HEADS, HEAD_DIM).transpose(1, 2)
        q, k = fused[:, :HEADS], fused[:, HEADS : HEADS + KEY_HEADS]
    sides = {OURS: _ours(tables, inplace=True), "full rotation": _ours(full, inplace=True)}
    return Work((q, k), sides, _right(tables), 1e-5, frozenset({"full rotation"}))


def _tables(length: int, against: frozenset[str]) -> Work:
    """Cosines and sines of every position, from float64 angles."""
    positions = torch.arange(length)
    rope = Rope(HEAD_DIM)

    def ours(at: Tensor) -> tuple[Tensor, Tensor]:
        table = rope.table(at)
        return table.cos[0], table.sin[0]

    def right(at: Tensor) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(HEAD_DIM // 2, dtype=torch.float64)
        angle = at.double()[:, None] * 10_000.0 ** (-2 * pairs / HEAD_DIM)
        return angle.cos(), angle.sin()

    found, absent = _available(
        {"transformers": lambda: peers.transformers_tables(HEAD_DIM)}, against
    )
    return Work((positions,), {OURS: ours} | found, right, 1e-7, peer_tolerance=1e-4, absent=absent)


LENGTHS = (1024, 8192)
HALF = partial(_plain, pairing="half")
ADJACENT = partial(_plain, pairing="adjacent")
F32, BF16 = torch.float32, torch.bfloat16
ROTATION: tuple[Case, ...] = (
    Case(
        "rotate-inplace",
        "Rotation in place, float32",
        LENGTHS,
        partial(HALF, dtype=F32, inplace=True),
        (Target("transformers", 1 / 20, (8192,)), Target("limit", 1.3, (8192,))),
    ),
    Case(
        "rotate-inplace-bfloat16",
        "Rotation in place, bfloat16",
        LENGTHS,
        partial(HALF, dtype=BF16, inplace=True),
        (Target("transformers", 1 / 20, (8192,)), Target("limit", 1.3, (8192,))),
    ),
    Case(
        "rotate",
        "Rotation into new tensors, float32",
        LENGTHS,
        partial(HALF, dtype=F32, inplace=False),
        (Target("transformers", 1 / 3.5, (8192,)), Target("limit", 1.25, (8192,))),
    ),
    Case(
        "rotate-bfloat16",
        "Rotation into new tensors, bfloat16",
        LENGTHS,
        partial(HALF, dtype=BF16, inplace=False),
        (Target("transformers", 1 / 3.5, (8192,)), Target("limit", 1.25, (8192,))),
    ),
    Case(
        "rotate-adjacent",
        "Rotation of adjacent pairs into new tensors, float32",
        LENGTHS,
        partial(ADJACENT, dtype=F32, inplace=False),
        (Target("limit", 1.25, (8192,)),),
    ),
    Case(
        "rotate-adjacent-inplace",
        "Rotation of adjacent pairs in place, float32",
        LENGTHS,
        partial(ADJACENT, dtype=F32, inplace=True),
        (Target("limit", 1.3, (8192,)),),
    ),
    Case(
        "rotate-decode",
        "One decode token, 32 + 8 heads, in place",
        (1,),
        partial(HALF, dtype=F32, inplace=True),
        (Target("transformers", 1 / 4),),
        gate_length=1,
    ),
    Case(
        "rotate-training",
        "Rotation, forward and backward, [4, 12, T, 64]",
        (2048,),
        partial(_training, pairing="half"),
        (Target("transformers", 1 / 5), Target("transformers-compiled", 1 / 2)),
    ),
    Case(
        "rotate-training-adjacent",
        "Rotation of adjacent pairs, forward and backward, [4, 12, T, 64]",
        (2048,),
        partial(_training, pairing="adjacent"),
        (Target("rotary-embedding-torch", 1 / 5), Target("x-transformers", 1 / 5)),
    ),
    Case(
        "tables",
        "Tables of 64 pairs from float64 angles",
        (131_072,),
        _tables,
        (Target("transformers", 1.5),),
    ),
    *(
        Case(
            f"rotate-{form.replace(' ', '-')}",
            f"Rotation in place: {title}",
            (8192,),
            partial(_form, form=form),
            (Target("full rotation", 1.1),),
        )
        for form, title in (
            ("partial", "half of the channels"),
            ("per token", "positions of their own"),
            ("sections", "M-RoPE, three sections"),
            ("strided", "views of a fused projection"),
        )
    ),
)
