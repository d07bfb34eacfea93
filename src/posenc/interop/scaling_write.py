"""From a scaling method to the keys of its section: the other way round of scaling_keys.py."""

from collections.abc import Callable, Mapping
from typing import Any

from posenc.interop.errors import ConfigError
from posenc.interop.families import Family
from posenc.rotary import Rope
from posenc.scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    NTKByParts,
    Proportional,
    Scaling,
    Yarn,
)

__all__ = ["write_scaling"]

_LENGTH = "original_max_position_embeddings"


def write_scaling(rope: Rope, family: Family | None) -> tuple[dict[str, Any], float]:
    """The section of a rotation, without its base, and the base to write."""
    if family is not None:
        _check_family(rope, family)
    elif rope.direction != 1:
        raise ConfigError(f"no key says which way pairs turn, only a family: got {rope}")
    if rope.scaling is None:
        return {"rope_type": "default"}, rope.base
    if isinstance(rope.scaling, NTK):
        if family is not None and "alpha" in family.extra and rope.scaling.rule == "bloc97":
            section = {"rope_type": "dynamic", "factor": 1.0, "alpha": rope.scaling.factor}
            return section, rope.base
        return {"rope_type": "default"}, _stretched(rope.base, rope.scaling, rope.rotary_dim or 0)
    write = _WRITERS.get(type(rope.scaling))
    if write is None:
        raise ConfigError(f"no config says {rope.scaling!r}")
    if getattr(rope.scaling, "length", None) is not None:
        raise ConfigError(
            f"a config holds for every length: write the rope before at_length, not {rope.scaling}"
        )
    return write(rope.scaling), rope.base


def _check_family(rope: Rope, family: Family) -> None:
    """What no key says must be what the family does anyway."""
    if not family.interleave and rope.pairing != family.pairing:
        raise ConfigError(
            f"this family pairs {family.pairing!r}, and no key says otherwise; got {rope.pairing!r}"
        )
    if rope.direction != family.direction:
        raise ConfigError(
            f"this family turns by {family.direction} · p·θ, and no key says otherwise; got {rope}"
        )
    scaling = rope.scaling
    if not isinstance(scaling, Yarn) or not scaling.mscale_all_dim:
        return
    if scaling.scale_softmax != family.softmax:
        raise ConfigError(
            f"scale_softmax is {family.softmax} in this family, and no key says otherwise"
        )


def _stretched(base: float, scaling: NTK, rotary_dim: int) -> float:
    """NTK-aware scaling is a larger base; the rule "fixed" is not only that."""
    if scaling.rule == "fixed":
        raise ConfigError(f"no config says {scaling!r}: it slows the fastest pair too")
    exponent = rotary_dim / (rotary_dim - 2) if scaling.rule == "bloc97" else 1.0
    return base * scaling.factor**exponent


def _linear(scaling: Linear) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": scaling.factor}


def _dynamic(scaling: DynamicNTK) -> dict[str, Any]:
    return {"rope_type": "dynamic", "factor": scaling.factor}


def _ramp(scaling: Yarn | NTKByParts) -> dict[str, Any]:
    return {
        "rope_type": "yarn",
        "factor": scaling.factor,
        _LENGTH: scaling.original_length,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "truncate": scaling.truncate,
    }


def _by_parts(scaling: NTKByParts) -> dict[str, Any]:
    return {**_ramp(scaling), "attention_factor": 1.0}


def _yarn(scaling: Yarn) -> dict[str, Any]:
    names = ("attention_factor", "mscale", "mscale_all_dim")
    given = {name: getattr(scaling, name) for name in names}
    return _ramp(scaling) | {name: value for name, value in given.items() if value is not None}


def _longrope(scaling: LongRope) -> dict[str, Any]:
    written: dict[str, Any] = {
        "rope_type": "longrope",
        "factor": scaling.factor,
        _LENGTH: scaling.original_length,
        "short_factor": list(scaling.short_factor),
        "long_factor": list(scaling.long_factor),
    }
    given = {
        "attention_factor": scaling.attention_factor,
        "short_mscale": scaling.short_attention_factor,
        "long_mscale": scaling.long_attention_factor,
    }
    return written | {name: value for name, value in given.items() if value is not None}


def _llama3(scaling: Llama3) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        _LENGTH: scaling.original_length,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
    }


def _proportional(scaling: Proportional) -> dict[str, Any]:
    factor = {"factor": scaling.factor} if scaling.factor != 1 else {}
    return {"rope_type": "proportional", "partial_rotary_factor": scaling.fraction, **factor}


_WRITERS: Mapping[type[Scaling], Callable[[Any], dict[str, Any]]] = {
    Linear: _linear,
    DynamicNTK: _dynamic,
    Yarn: _yarn,
    NTKByParts: _by_parts,
    LongRope: _longrope,
    Llama3: _llama3,
    Proportional: _proportional,
}
