"""One case: the model's own rotation beside what scheme_from_config makes of the model's config."""

import copy
import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance.peers import Peer, kinds, tables_of, variants_of
from posenc import DynamicNTK, MRope, Rope, rotate_qk
from posenc.interop.hf import FAMILIES, ConfigError, ModelScheme, scheme_from_config

EPS = torch.finfo(torch.float32).eps
BASE_ROUNDINGS = 4  # transformers stretches the base in float32 (modeling_rope_utils.py:341)
NEAR = tuple(range(64))
FAR = (0, 7, 1000, 4095, 100_000)
QUERY_HEADS, KEY_HEADS = 2, 1
UNNAMED = {"~SaProtConfig": "esm", "~Qwen3OmniMoeCode2WavConfig": "qwen3_omni_moe_code2wav"}


@dataclass(frozen=True)
class Case:
    """What came of one model type under one variant."""

    model_type: str
    variant: str
    status: str  # equal | differs | refused (by posenc) | theirs (transformers raises)
    why: str = ""
    drift: float = 0.0  # largest difference to posenc's own float64 angles, in units of the pair


def run(model_type: str, variant: str) -> Case:
    """Compare frequencies, amplitude, and q and k, at near and at far positions."""
    name = UNNAMED.get(model_type, model_type)
    if FAMILIES[name].refuse:
        return Case(model_type, variant, "refused", FAMILIES[name].refuse)
    peer = Peer.of(model_type)
    try:
        config = peer.config(variant)
        if not _took(config, model_type, variant):
            return Case(model_type, variant, "theirs", "its config class drops the method")
        turns = _turns(peer, config)
    except Exception as error:  # whatever the peer's own validation raises
        return Case(model_type, variant, "theirs", _first_line(error))
    raw = json.loads(json.dumps(config.to_dict(), default=str))
    before = copy.deepcopy(raw)
    try:
        model = scheme_from_config(raw, model_type=name)
    except ConfigError as error:
        return Case(model_type, variant, "refused", str(error))
    finally:
        assert raw == before, "the caller's config was changed"
    return _compare(peer, Case(model_type, variant, "equal"), model, turns)


def _compare(peer: Peer, case: Case, model: ModelScheme, turns: "list[Turn]") -> Case:
    drift = 0.0
    for turn in turns:
        rope = rope_of(model, turn.kind)
        if rope is None:
            return replace(case, status="differs", why=f"no layer of type {turn.kind} rotates")
        fault, far = _fault(peer, turn, rope)
        if fault:
            return replace(case, status="differs", why=fault)
        drift = max(drift, far)
    return replace(case, drift=drift)


@dataclass(frozen=True)
class Turn:
    """What a peer makes of q and k at one set of positions."""

    kind: str | None
    positions: tuple[int, ...]
    inputs: tuple[Tensor, Tensor]
    outputs: tuple[Tensor, Tensor]
    inv_freq: Tensor | None
    factor: float
    roundings: int


def _turns(peer: Peer, config: Any) -> list[Turn]:
    rotary = peer.rotary(config)
    return [
        _turn(peer, config, copy.deepcopy(rotary), kind, at)  # dynamic scaling remembers positions
        for kind in kinds(rotary)
        for at in (NEAR, _far(peer, config))
    ]


def _turn(peer: Peer, config: Any, rotary: Any, kind: str | None, at: tuple[int, ...]) -> Turn:
    tables = tables_of(rotary, torch.tensor([at]), kind)
    q, k = _inputs(peer.head_dim(config, kind, tables[0].shape[-1]), len(at))
    turned = peer.rotated(config, kind, tables, q, k)
    inv_freq = getattr(rotary, "inv_freq" if kind is None else f"{kind}_inv_freq", None)
    cos = tables[1] if peer.recipe == "gptj" else tables[0]
    factor = float(cos.real.flatten(0, -2)[0, 0])  # at position 0 the cosine is the amplitude
    roundings = 2 if tables[0].is_complex() else 1  # torch.polar rounds once more than cos does
    return Turn(kind, at, (q, k), turned, inv_freq, factor, roundings)


def _fault(peer: Peer, turn: Turn, rope: Any) -> tuple[str, float]:
    """The first thing that is not equal, and how far float64 angles are from float32 ones."""
    where = f"{_of(turn.kind)} at {max(turn.positions)}"
    rope = rope.at_length(max(turn.positions) + 1)
    rounded = in_float32(rope)
    frequencies = rounded.frequencies()
    if rope.head_dim != turn.inputs[0].shape[-1]:
        return f"head_dim {turn.inputs[0].shape[-1]}{where}, not {rope.head_dim}", 0.0
    roundings = BASE_ROUNDINGS if is_dynamic(rope) else 1
    if turn.inv_freq is not None and not _same_speeds(
        turn.inv_freq, frequencies.inv_freq.abs(), rope, roundings
    ):
        return f"inv_freq{where}", 0.0
    if abs(turn.factor - frequencies.attention_factor) > EPS * abs(turn.factor):
        return f"attention factor {turn.factor}, not {frequencies.attention_factor}", 0.0
    pos = torch.tensor(turn.positions)
    axes = getattr(rope, "num_axes", 1)
    pos = pos if axes == 1 else pos[:, None].expand(-1, axes)
    made = rounded.tables(pos, pos)
    exact = rotate_qk(*turn.inputs, made, impl="reference")  # of the same float32 tables
    plain = rotate_qk(*turn.inputs, made)
    finer = rotate_qk(*turn.inputs, rope.tables(pos, pos))
    moved = _moved(turn, rope, frequencies.inv_freq.abs())
    drift = 0.0
    for name, x, theirs, *ours in zip(
        "qk", turn.inputs, turn.outputs, exact, plain, finer, strict=True
    ):
        turned = canonical(theirs, rope, peer.recipe)
        size = pair_norms(x, rope) * abs(frequencies.attention_factor)
        limit = EPS * turn.roundings + moved
        if not _same(turned, ours[0], size * limit):
            worst = ((turned - ours[0]).abs() / size.clamp(min=1e-30)).max().item()
            return f"{name}{where}: {worst:.2g} of the pair", 0.0
        if not _same(ours[1], ours[0], EPS * size):
            return f"posenc's own {name}{where}", 0.0
        off = (turned.double() - ours[2].double()).abs() / size.clamp(min=1e-30)
        drift = max(drift, off.max().item())
    return "", drift


def is_dynamic(rope: Any) -> bool:
    return isinstance(getattr(rope, "rope", rope).scaling, DynamicNTK)


def _moved(turn: Turn, rope: Any, inv_freq: Tensor) -> Tensor:
    """What the last bit of a speed moves its angle by, `[T, head_dim]`; 0 where speeds are equal."""
    inner: Any = getattr(rope, "rope", rope)
    wide = torch.zeros(len(turn.positions), inner.head_dim, dtype=torch.float64)
    if turn.inv_freq is None or getattr(rope, "order", "") == "alternating":
        return wide
    theirs, ours = turn.inv_freq.double(), inv_freq.double()
    position = torch.tensor(turn.positions, dtype=torch.float64)[:, None]
    moved = position * (theirs - ours).abs() + position * ours * EPS * (theirs != ours)
    half = inner.pairing == "half"
    both = torch.cat((moved, moved), -1) if half else moved.repeat_interleave(2, -1)
    wide[:, inner.start : inner.start + inner.rotary_dim] = both
    return wide


def rope_of(model: ModelScheme, kind: str | None) -> Rope | MRope | None:
    """The rotation of the layers whose section has this name."""
    family = FAMILIES[model.model_type]
    for label, scheme in zip(model.layer_types, model.layers, strict=True):
        if scheme.rotary is not None and kind in (None, family.type_of.get(label or "", label)):
            assert isinstance(scheme.rotary, Rope | MRope)
            return scheme.rotary
    return None


def in_float32(rope: Any) -> Any:
    """The same with transformers' rounded angles."""
    if isinstance(rope, MRope):
        return replace(rope, rope=in_float32(rope.rope))
    return replace(rope, angle_dtype=torch.float32)


def canonical(x: Tensor, rope: Any, recipe: str) -> Tensor:
    """Undo the order that DeepSeek's function leaves its output in: pairs apart, not adjacent."""
    inner: Any = getattr(rope, "rope", rope)
    if recipe != "mla_interleave" or inner.pairing != "adjacent":
        return x
    width = inner.rotary_dim
    first, second = x[..., -width:].chunk(2, -1)
    turned = torch.stack((first, second), -1).flatten(-2)
    return torch.cat((x[..., :-width], turned), -1)


def pair_norms(x: Tensor, rope: Any) -> Tensor:
    """The length of each channel's pair, at that channel; 0 where nothing turns: bit-equal there."""
    inner: Any = getattr(rope, "rope", rope)
    start, width = inner.start, inner.rotary_dim
    part = x[..., start : start + width].double()
    if inner.pairing == "half":
        first, second = part.chunk(2, -1)
        size = torch.cat((torch.hypot(first, second),) * 2, -1)
    else:
        size = torch.hypot(part[..., ::2], part[..., 1::2]).repeat_interleave(2, -1)
    norms = torch.zeros_like(x, dtype=torch.float64)
    norms[..., start : start + width] = size
    return norms


def _inputs(head_dim: int, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(head_dim)
    heads = (QUERY_HEADS, KEY_HEADS)
    q, k = (torch.randn(1, n, count, head_dim, generator=generator) for n in heads)
    return q, k


def _far(peer: Peer, config: Any) -> tuple[int, ...]:
    """GPT-J keeps a table of as many rows as it was trained with."""
    limit = config.max_position_embeddings if peer.recipe == "gptj" else FAR[-1] + 1
    return tuple(min(position, limit - 1) for position in FAR)


def _took(config: Any, model_type: str, variant: str) -> bool:
    """Whether the class kept the method that it was given."""
    asked = variants_of(model_type)[variant][0].get("rope_type")
    if asked is None:
        return True
    got = config.rope_parameters
    nested = [x for x in got.values() if isinstance(x, dict)]
    return (nested[0] if nested else got).get("rope_type") == asked


def _same(a: Tensor, b: Tensor, limit: Tensor) -> bool:
    return a.shape == b.shape and bool(((a.double() - b.double()).abs() <= limit.double()).all())


def _same_speeds(theirs: Tensor, ours: Tensor, rope: Any, roundings: int) -> bool:
    """Equal to a rounding; ERNIE keeps its frequencies in the order of its sections."""
    if isinstance(rope, MRope) and rope.order == "alternating":
        theirs, ours = theirs.sort().values, ours.sort().values
    return _same(theirs, ours, roundings * EPS * theirs.abs())


def _of(kind: str | None) -> str:
    return "" if kind is None else f" of {kind}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    return " ".join(lines)[:220]
