"""The rows that bench/gpu.py measures: the work of `posenc bench` on another device."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.attention import AttentionImpl
from posenc.bench.attention_cases import (
    DENSE,
    NONE,
    dense,
    gradients,
    no_grad,
    qkv,
    seeded,
    under,
)
from posenc.bench.attention_cases import plain as unbiased
from posenc.bench.rotation_cases import plain, rotating, training
from posenc.bench.work import OURS, Case, Side, Target, Work
from posenc.contracts import Pairing, RotaryTables, Scheme

__all__ = ["attention_cases", "rotation_cases", "training_cases"]

LENGTHS = (1, 16, 256, 2048, 16384, 65536)
TINY = (2,)
GATE = 65  # tokens of the comparison with float64
ATTENTION_GATE = 300
DENSE_UP_TO = 4096  # longer masks are many gigabytes
BATCH = 4  # of attention, so that a GPU has work at 1,024 tokens too
BF16, F32 = torch.bfloat16, torch.float32
NEVER_SLOWER = (Target("eager", 1.0), Target("compiled", 1.0))
COPY = Target("limit", 1 / 0.9, (16384, 65536))  # 90% of the bandwidth of a copy


def rotation_cases(device: str) -> list[Case]:
    """Queries and keys `[1, 32 and 8, T, 128]`, from one token to 65,536."""
    forms: list[tuple[Pairing, bool, torch.dtype]] = [
        ("half", False, BF16),
        ("half", True, BF16),
        ("adjacent", False, BF16),
        ("half", False, F32),
    ]
    ours = _ours(device)
    cases, make = [], plain if device == "cuda" else _cut_off
    for pairing, inplace, dtype in forms:
        options = {"pairing": pairing, "inplace": inplace, "dtype": dtype, "device": device}
        way, told = ("in place" if inplace else "into new tensors"), str(dtype)[6:]
        cases.append(
            Case(
                f"gpu-rotate-{pairing}-{'inplace-' * inplace}{told}",
                f"Rotation {way}, {pairing}, {told}",
                LENGTHS if device == "cuda" else TINY,
                partial(make, ours=ours, **options),
                (*NEVER_SLOWER, COPY),
                gate_length=GATE if device == "cuda" else 3,
            )
        )
    first = cases[0]
    replayed = Case(
        "gpu-rotate-graph",
        "Rotation in a CUDA graph, half, bfloat16",
        (1, 16, 256, 2048) if device == "cuda" else TINY,
        partial(_replayed, make=first.make),
        NEVER_SLOWER,
        gate_length=first.gate_length,
    )
    return [first, replayed, *cases[1:]] if device == "cuda" else [first, replayed]


def _cut_off(length: int, against: frozenset[str], **options: Any) -> Work:
    """Triton's interpreter cuts what bfloat16 has no room for off, where a GPU rounds."""
    work = plain(length, against, **options)
    return replace(work, tolerance=2 * work.tolerance)


def _ours(device: str) -> Mapping[str, Callable[..., Side]]:
    """The kernel, the operations that it replaces, and those compiled."""

    def compiled(tables: RotaryTables, *, inplace: bool = False) -> Side:
        backend = "inductor" if device == "cuda" else "eager"
        return torch.compile(rotating(tables, inplace=inplace, impl="eager"), backend=backend)

    return {
        OURS: partial(rotating, impl="triton"),
        "eager": partial(rotating, impl="eager"),
        "compiled": compiled,
    }


def _replayed(
    length: int, against: frozenset[str], *, make: Callable[[int, frozenset[str]], Work]
) -> Work:
    """The same sides, each recorded once: what is left is the device's own time."""
    work = make(length, against)
    return replace(work, sides={name: _recorded(side) for name, side in work.sides.items()})


def _recorded(side: Side) -> Side:
    held: dict[str, Any] = {}

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        if not inputs[0].is_cuda:
            return side(*inputs)
        if held.get("inputs") is None or held["inputs"][0] is not inputs[0]:
            held.clear()
            held.update(inputs=inputs, **_record(side, inputs))
        held["graph"].replay()
        return held["outs"]

    return run


def _record(side: Side, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            side(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        outs = side(*inputs)
    return {"graph": graph, "outs": outs}


def training_cases(device: str) -> list[Case]:
    """Forward and backward: rotation at `[4, 12, T, 64]`, attention under a learned bias."""
    on_gpu = device == "cuda"
    rotation = [
        Case(
            f"gpu-rotate-training-{pairing}",
            f"Rotation, forward and backward, {pairing}, bfloat16",
            (2048, 16384) if on_gpu else (3,),
            partial(training, pairing=pairing, dtype=BF16, device=device, ours=_ours(device)),
            NEVER_SLOWER,
            gate_length=GATE if on_gpu else 3,
        )
        for pairing in (("half", "adjacent") if on_gpu else ("half",))
    ]
    attention = [
        Case(
            f"gpu-attention-training-{name}",
            f"Attention under {name}, forward and backward, bfloat16",
            (1024, 4096, 16384) if on_gpu else (40,),
            partial(_attention_training, name=name, device=device),
            (Target(DENSE, 1 / 3, (4096,)),),
            gate_length=ATTENTION_GATE if on_gpu else 30,
        )
        for name in ("alibi", "t5")
    ]
    return [*rotation, *attention]


def attention_cases(device: str) -> list[Case]:
    """Biases of distance beside none and beside a dense mask; one token behind a long cache."""
    on_gpu = device == "cuda"
    cases = [
        Case(
            f"gpu-attention-{name}",
            f"Attention under {name}, bfloat16",
            (1024, 4096, 16384, 65536) if on_gpu else (40,),
            partial(_attention, name=name, device=device),
            gate_length=ATTENTION_GATE if on_gpu else 30,
        )
        for name in ("alibi", "t5")
    ]
    cases += [
        Case(
            f"gpu-decode-{name}",
            f"One token behind a cache of 32k: {name}, bfloat16",
            (32768,) if on_gpu else (40,),
            partial(_decode, name=name, device=device),
            gate_length=ATTENTION_GATE if on_gpu else 30,
        )
        for name in ("alibi", "t5")
    ]
    return cases


def _attention(length: int, against: frozenset[str], *, name: str, device: str) -> Work:
    del against
    scheme = seeded(name, device)
    sides = _sides(scheme) | {NONE: unbiased}
    if length <= DENSE_UP_TO:
        sides[DENSE] = dense(scheme)
    inputs = qkv(length, batch=BATCH, device=device, dtype=BF16)
    return _work(inputs, sides, scheme)


def _decode(length: int, against: frozenset[str], *, name: str, device: str) -> Work:
    del against
    scheme = seeded(name, device)
    q, k, v = qkv(length, batch=BATCH, device=device, dtype=BF16)

    def all_seen(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v),)

    return _work((q[:, :, -1:].contiguous(), k, v), _sides(scheme) | {NONE: all_seen}, scheme)


def _sides(scheme: Scheme) -> dict[str, Side]:
    impls: dict[str, AttentionImpl] = {OURS: "flex", "posenc, sdpa": "sdpa"}
    return {name: under(scheme, impl) for name, impl in impls.items()}


def _work(inputs: tuple[Tensor, ...], sides: dict[str, Side], scheme: Scheme) -> Work:
    sides = {name: no_grad(side) for name, side in sides.items()}
    right = no_grad(under(scheme, "reference"))
    return Work(inputs, sides, right, 0.02, frozenset({NONE}), peer_tolerance=0.05)


def _attention_training(length: int, against: frozenset[str], *, name: str, device: str) -> Work:
    """Compared in float32, where a wrong gradient shows; timed in bfloat16."""
    del against
    scheme, on_gpu = seeded(name, device), device == "cuda"
    dtype = F32 if length <= ATTENTION_GATE else BF16
    inputs = qkv(length, batch=BATCH, device=device, dtype=dtype)
    inputs = tuple(x.requires_grad_() for x in inputs)
    sides: dict[str, Side] = {OURS: under(scheme, "flex" if on_gpu else "sdpa"), NONE: unbiased}
    if length <= DENSE_UP_TO:
        sides[DENSE] = dense(scheme)
    with_gradients = {
        side: gradients(run, Scheme() if side == NONE else scheme) for side, run in sides.items()
    }
    right = gradients(under(scheme, "reference"), scheme)
    return Work(inputs, with_gradients, right, 5e-3, frozenset({NONE}))
