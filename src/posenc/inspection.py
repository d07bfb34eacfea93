"""What a config says about positions, in numbers, and the known mistakes that it makes."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.interop.checkpoints.conversion import METADATA_KEY
from posenc.interop.checkpoints.files import CheckpointError, read_header
from posenc.interop.config_files import config_path, read_object
from posenc.interop.hf import scheme_from_config
from posenc.interop.mistakes import Warned, warnings_about
from posenc.interop.model_scheme import ModelScheme
from posenc.interop.rotations import rope_of, scaling_of

__all__ = ["Facts", "RotationFacts", "as_written", "inspect", "supported_length"]

FARTHEST = 1 << 23  # where the search for the supported length stops


@dataclass(frozen=True)
class RotationFacts:
    """One rotation of a model. Lengths are in tokens; `supported_length` None: beyond the search."""

    layers: str
    method: str
    base: float | None
    pairing: str
    head_dim: int
    rotary_dim: int
    placement: str
    attention_factor: float
    softmax_scale: float
    wavelengths: tuple[float, ...]
    num_incomplete: int | None  # pairs slower than one turn in the trained length
    num_incomplete_at_maximum: int | None
    supported_length: int | None
    value: str


@dataclass(frozen=True)
class Facts:
    """Everything that `posenc inspect` prints."""

    model_type: str
    num_layers: int
    num_rotating: int
    trained_length: int | None
    max_length: int | None
    rotations: tuple[RotationFacts, ...]
    other: tuple[str, ...]
    warnings: tuple[Warned, ...]
    notes: tuple[str, ...]
    defaults_used: Mapping[str, Any]
    noted_pairing: str | None = None  # what `posenc convert` wrote into the weights beside it

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def inspect(source: Mapping[str, Any] | str | Path) -> Facts:
    """What the config of a model says about positions.

    >>> inspect("llama/config.json").rotations[0].supported_length

    An object, a folder, a config.json, a params.json or a .gguf file. Raises ConfigError where it
    is not understood.
    """
    raw = _raw(source)
    model = scheme_from_config(source if raw is None else raw)
    length = model.max_length or model.original_length
    reached = model if length is None else model.at_length(length)
    said, unread = _pairing_said(source)
    other = {
        f"{field}: {value!r}"
        for scheme in model.layers
        for field in ("bias", "relative", "query_scale")
        if (value := getattr(scheme, field)) is not None
    }
    additive = () if model.additive is None else (f"added to embeddings: {model.additive!r}",)
    return Facts(
        model.model_type,
        len(model.layers),
        sum(scheme.rotary is not None for scheme in model.layers),
        model.original_length,
        model.max_length,
        tuple(_rotation_facts(reached)),
        (*additive, *sorted(other)),
        (*warnings_about(raw or {}, model), *_converted(said, model)),
        (*model.notes, *unread),
        dict(model.defaults_used),
        said,
    )


def supported_length(inv_freq: Tensor, *, limit: int = FARTHEST) -> int | None:
    """The longest text whose distances the base can tell from noise, or None beyond `limit`.

    >>> supported_length(Rope(128, base=10_000.0).frequencies().inv_freq)

    Men et al. 2024 (arXiv 2405.14591): a key like the query is preferred to a random one while
    B(m) = Σᵢ cos(m·θᵢ) ≥ 0, so the length is the first m where B falls below 0.
    """
    theta = inv_freq.detach().double().abs().cpu()
    block = 4096
    inside = torch.arange(block, dtype=torch.float64) * theta[:, None]
    within = torch.cat((inside.cos(), -inside.sin()))  # cos(a + b) = cos a cos b - sin a sin b
    for first in range(0, limit, 64 * block):
        starts = torch.arange(first, first + 64 * block, block, dtype=torch.float64)
        angle = starts[:, None] * theta
        sums = (torch.cat((angle.cos(), angle.sin()), 1) @ within).flatten()
        below = (sums < 0).nonzero()
        if len(below):
            return first + int(below[0])
    return None


def _raw(source: Mapping[str, Any] | str | Path) -> Mapping[str, Any] | None:
    """The config as it stands, read once: a pipe gives it once. None where it is no JSON (GGUF)."""
    if isinstance(source, Mapping):
        return source
    path = config_path(Path(source))
    return None if path.suffix == ".gguf" else read_object(path)


def _pairing_said(source: Mapping[str, Any] | str | Path) -> tuple[str | None, tuple[str, ...]]:
    """The pairing that `posenc convert` noted in the weights beside a config, and what stopped that.

    Weights that cannot be read, only half fetched perhaps, are no fault of the config.
    """
    if isinstance(source, Mapping) or not Path(source).is_dir():
        return None, ()
    first = next(iter(sorted(Path(source).glob("*.safetensors"))), None)
    try:
        return (None if first is None else read_header(first).metadata.get(METADATA_KEY)), ()
    except (CheckpointError, OSError) as error:
        return None, (f"the weights were not looked at: {error}",)


def _converted(said: str | None, model: ModelScheme) -> list[Warned]:
    """Weights that `posenc convert` left in another pairing than their config's code rotates."""
    ropes: list[Any] = [x.rotary for x in model.layers if x.rotary is not None]
    if said is None or all(rope.pairing == said for rope in ropes):
        return []
    text = (
        f"the weights were converted to {said} pairs, which no key of the config says: "
        f"{model.model_type} code rotates {ropes[0].pairing} pairs unless it is told "
        "(posenc.interop.transformers.set_rope)"
    )
    return [Warned("converted-weights", text, "rasbt/LLMs-from-scratch#747")]


def _rotation_facts(model: ModelScheme) -> list[RotationFacts]:
    layers: dict[Any, list[int]] = {}
    for index, scheme in enumerate(model.layers):
        if scheme.rotary is not None:
            layers.setdefault(scheme.rotary, []).append(index)
    return [_facts_of(rope, indices, model) for rope, indices in layers.items()]


def _facts_of(rotary: Any, layers: list[int], model: ModelScheme) -> RotationFacts:
    rope = rope_of(rotary)
    frequencies = rope.frequencies()
    speeds = frequencies.inv_freq.abs()
    turning = speeds[speeds > 0]
    wavelengths = tuple((2 * math.pi / turning).tolist())
    scaling = scaling_of(rotary)
    return RotationFacts(
        layers=ranges(layers),
        method="plain" if scaling is None else type(scaling).__name__,
        base=getattr(rope, "base", None),
        pairing=rope.pairing,
        head_dim=rope.head_dim,
        rotary_dim=2 * frequencies.inv_freq.numel(),
        placement=getattr(rope, "placement", "leading"),
        attention_factor=frequencies.attention_factor,
        softmax_scale=frequencies.softmax_scale,
        wavelengths=wavelengths,
        num_incomplete=_num_incomplete(wavelengths, model.original_length),
        num_incomplete_at_maximum=_num_incomplete(wavelengths, model.max_length),
        supported_length=supported_length(turning),
        value=as_written(rotary),
    )


def _num_incomplete(wavelengths: tuple[float, ...], length: int | None) -> int | None:
    return None if length is None else sum(wave > length for wave in wavelengths)


def as_written(value: Any) -> str:
    """A value as a person writes it: without the fields that stand at their defaults.

    >>> as_written(Rope(64, pairing="adjacent"))
    "Rope(head_dim=64, base=10000.0, pairing='adjacent', rotary_dim=64)"
    """
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    told = [(field.name, getattr(value, field.name), field.default) for field in fields(value)]
    kept = [f"{name}={as_written(x)}" for name, x, usual in told if name == "base" or x != usual]
    return f"{type(value).__name__}({', '.join(kept)})"


def ranges(numbers: list[int]) -> str:
    """Layer numbers, short.

    >>> ranges([0, 1, 2, 4])
    '0-2, 4'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
