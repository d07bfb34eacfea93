"""Rotation: queries and keys of one layer, beside the limit of memory and beside peers."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from posenc.bench import peers
from posenc.bench.work import OURS, Case, Side, Target, UnavailableError, Work
from posenc.contracts import Pairing, RotaryTables
from posenc.rotary import MRope, Rope
from posenc.rotate import RotateImpl, rotate_qk

__all__ = ["ROTATION", "form", "plain", "rotating", "training"]

HEADS, KEY_HEADS, HEAD_DIM = 32, 8, 128
TRAINING = (4, 12, 64)  # batch, heads, channels
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # half a unit of values below 8, bfloat16
PEER_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
Makers = dict[str, Callable[[], Side]]


def _qk(length: int, dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = (1, HEADS, length, HEAD_DIM), (1, KEY_HEADS, length, HEAD_DIM)
    q, k = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
    return q, k


def rotating(tables: RotaryTables, *, inplace: bool = False, impl: RotateImpl = "auto") -> Side:
    """Queries and keys turned by this library."""
    return lambda q, k: rotate_qk(q, k, tables, inplace=inplace, impl=impl)


OUR_SIDES: Mapping[str, Callable[..., Side]] = {OURS: rotating}


def _right(tables: RotaryTables) -> Side:
    return lambda q, k: rotate_qk(q, k, tables, impl="reference")


def _available(asked: Makers, against: frozenset[str]) -> tuple[dict[str, Side], dict[str, str]]:
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
    pairing: str, at: Tensor, dim: int, dtype: torch.dtype, *, inplace: bool = False
) -> Makers:
    """Those that rotate pairs of this kind on the device of the positions `[T]`."""
    length, on_cpu = at.shape[-1], at.device.type == "cpu"
    turned = partial(peers.transformers, at, dim, dtype, pairing=pairing)
    flash = partial(peers.flash_attention, at, dim, dtype, pairing=pairing, inplace=inplace)
    found: Makers = {
        "transformers": turned,
        "transformers-compiled": partial(turned, compiled=True),
    }
    if pairing == "adjacent" and on_cpu:
        found["rotary-embedding-torch"] = partial(peers.rotary_embedding_torch, length, dim)
        found["x-transformers"] = partial(peers.x_transformers, length, dim)
        found["torchtune"] = partial(peers.torchtune, length, dim, dtype)
    if not on_cpu:
        found["flash-attn"] = flash
    if pairing == "half" and not on_cpu:
        found["liger"] = partial(peers.liger, at, dim, dtype)
    return found


def plain(
    length: int,
    against: frozenset[str],
    *,
    dtype: torch.dtype,
    inplace: bool,
    pairing: Pairing,
    device: str = "cpu",
    ours: Mapping[str, Callable[..., Side]] = OUR_SIDES,
) -> Work:
    """Queries and keys, `[1, 32, T, 128]` and `[1, 8, T, 128]`, one table for all heads."""
    positions = torch.arange(length, device=device)
    tables = Rope(HEAD_DIM, pairing=pairing).tables(positions, positions)
    sides = {name: make(tables, inplace=inplace) for name, make in ours.items()}
    sides["limit"] = _once if inplace else _copied
    makers = _peers(pairing, positions, HEAD_DIM, dtype, inplace=inplace)
    found, absent = _available(makers, against)
    return Work(
        _qk(length, dtype, device),
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


def training(
    length: int,
    against: frozenset[str],
    *,
    pairing: Pairing,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    ours: Mapping[str, Callable[..., Side]] = OUR_SIDES,
) -> Work:
    """Forward and backward at `[4, 12, T, 64]`."""
    batch, heads, dim = TRAINING
    draw = torch.Generator().manual_seed(0)

    def drawn() -> list[Tensor]:
        shape = (batch, heads, length, dim)
        return [torch.randn(shape, generator=draw).to(device, dtype) for _ in "qk"]

    q, k = (x.requires_grad_() for x in drawn())
    positions = torch.arange(length, device=device)
    tables = Rope(dim, pairing=pairing).tables(positions, positions)
    found, absent = _available(_peers(pairing, positions, dim, dtype), against)
    sides, ahead = {name: make(tables) for name, make in ours.items()} | found, drawn()
    return Work(
        (q, k),
        {name: _with_gradient(side, ahead) for name, side in sides.items()},
        _with_gradient(_right(tables), ahead),
        TOLERANCE[dtype],
        peer_tolerance=PEER_TOLERANCE[dtype],
        absent=absent,
    )


def _with_gradient(side: Side, ahead: list[Tensor]) -> Side:
    """The gradients of q and k, where `ahead` are those of the results."""

    def both(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            outs = side(q, k)
            return torch.autograd.grad(outs, (q, k), [x.to(q.dtype) for x in ahead])

    return both


def form(length: int, against: frozenset[str], *, form: str, device: str = "cpu") -> Work:
    """Another form of rotation beside the plain one of the same tensors, and beside peers."""
    q, k = _qk(length, torch.float32, device)
    positions = torch.arange(length, device=device)
    rope, full = Rope(HEAD_DIM), Rope(HEAD_DIM).tables(positions, positions)
    tables, at, dim = full, positions, HEAD_DIM
    if form == "partial":
        dim = HEAD_DIM // 2
        tables = Rope(HEAD_DIM, rotary_dim=dim).tables(positions, positions)
    elif form == "per token":  # a row of positions for each row of the batch
        draw = torch.Generator().manual_seed(1)
        at = torch.randint(0, 1000, (1, length), generator=draw).to(device)
        tables = rope.tables(at, at)
    elif form == "sections":
        grid = positions[:, None].expand(-1, 3).contiguous()
        tables = MRope(rope, sections=(16, 24, 24)).tables(grid, grid)
    else:  # the heads of one fused projection, [B, T, H + 2 H', D], never copied
        draw = torch.Generator().manual_seed(0)
        fused = torch.randn(1, length, HEADS + 2 * KEY_HEADS, HEAD_DIM, generator=draw)
        fused = fused.to(device).transpose(1, 2)
        q, k = fused[:, :HEADS], fused[:, HEADS : HEADS + KEY_HEADS]
    sides = {OURS: rotating(tables, inplace=True), "full rotation": rotating(full, inplace=True)}
    makers: Makers = {"transformers": lambda: peers.transformers(at, dim, torch.float32)}
    found, absent = _available(makers, against)
    return Work(
        (q, k),
        sides | found,
        _right(tables),
        1e-5,
        frozenset({"full rotation"}),
        PEER_TOLERANCE[torch.float32],
        absent,
    )


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
F32, BF16 = torch.float32, torch.bfloat16


def _plain_cases() -> Iterator[Case]:
    """In place and into new tensors, both pairings, float32 and bfloat16."""
    for inplace in (True, False):
        way, limit = ("in place", 1.3) if inplace else ("into new tensors", 1.25)
        times = 1 / 20 if inplace else 1 / 3.5
        for pairing in get_args(Pairing):
            adjacent = pairing == "adjacent"
            for dtype in (F32, BF16):
                told = str(dtype).removeprefix("torch.")
                name = ["rotate", *["adjacent"] * adjacent, *["inplace"] * inplace]
                yield Case(
                    "-".join([*name, *["bfloat16"] * (dtype == BF16)]),
                    f"Rotation {'of adjacent pairs ' * adjacent}{way}, {told}",
                    LENGTHS,
                    partial(plain, dtype=dtype, inplace=inplace, pairing=pairing),
                    (Target("transformers", times, (8192,)), Target("limit", limit, (8192,))),
                )


def _decode_cases() -> Iterator[Case]:
    for pairing in get_args(Pairing):
        adjacent = pairing == "adjacent"
        yield Case(
            "rotate-decode" + "-adjacent" * adjacent,
            "One decode token, 32 + 8 heads, in place" + ", adjacent pairs" * adjacent,
            (1,),
            partial(plain, dtype=F32, inplace=True, pairing=pairing),
            (Target("transformers", 1 / 4),),
            gate_length=1,
        )


def _training_cases() -> Iterator[Case]:
    eager = ("transformers", "rotary-embedding-torch", "x-transformers", "torchtune")
    for pairing in get_args(Pairing):
        adjacent = pairing == "adjacent"
        yield Case(
            "rotate-training" + "-adjacent" * adjacent,
            f"Rotation{' of adjacent pairs' * adjacent}, forward and backward, [4, 12, T, 64]",
            (2048,),
            partial(training, pairing=pairing),
            (*(Target(name, 1 / 5) for name in eager), Target("transformers-compiled", 1 / 2)),
        )


ROTATION: tuple[Case, ...] = (
    *_plain_cases(),
    *_decode_cases(),
    *_training_cases(),
    Case(
        "tables",
        "Tables of 64 pairs from float64 angles",
        (131_072,),
        _tables,
        (Target("transformers", 1.5),),
    ),
    *(
        Case(
            f"rotate-{which.replace(' ', '-')}",
            f"Rotation in place: {title}",
            (8192,),
            partial(form, form=which),
            (Target("full rotation", 1.1),),
            memory=which == "strided",  # no copy is made
        )
        for which, title in (
            ("partial", "half of the channels"),
            ("per token", "positions of their own"),
            ("sections", "M-RoPE, three sections"),
            ("strided", "views of a fused projection"),
        )
    ),
)
