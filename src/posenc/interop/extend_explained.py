"""What each number of an extended config is, a line each."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from posenc.frequencies import Spectrum
from posenc.rotary import Rope
from posenc.scaling import NTK, DynamicNTK, Linear, Llama3, Proportional, Yarn
from posenc.scaling.yarn import ramp_ends

__all__ = ["LENGTH", "about_readers", "explained"]

LENGTH = "max_position_embeddings"
# Families whose code was published outside transformers.
OWN_KEYS = ("chatglm", "chatglm2", "chatglm3", "baichuan", "qwen", "internlm")


def explained(old: Rope, new: Rope, original: int, to: int, longest: int | None) -> list[str]:
    """The lines about one rope, before and after; `longest` is the maximum that the config had."""
    factor: float = getattr(new.scaling, "factor")  # noqa: B009 - every extension has one
    first = f"factor {factor:g} = {to} / {original}, new length / trained length"
    explain = _EXPLAIN[type(new.scaling)]
    lines = [first, *explain(replace(old, scaling=None), new, original, to)]
    length = original if isinstance(new.scaling, DynamicNTK) else to
    return [*lines, f"{LENGTH} {longest} -> {length}"] if length != longest else lines


def about_readers(model_type: str) -> list[str]:
    """Families outside transformers whose published code has keys of its own."""
    if model_type not in OWN_KEYS:
        return []
    return [
        f"the published code of {model_type} reads keys of its own and not these: check that "
        "whatever runs the model does"
    ]


def _explain_yarn(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    scaling, width = new.scaling, plain.rotary_dim or plain.head_dim
    assert isinstance(scaling, Yarn)
    spectrum = Spectrum(1 / plain.frequencies().inv_freq.abs(), plain.base, width)
    low, high = ramp_ends(scaling, spectrum)
    said = [
        f"pairs up to {low:g} of {width // 2} turn more than {scaling.beta_fast:g} times in "
        f"{original} tokens and keep their speed; from {high:g} on they turn less than "
        f"{scaling.beta_slow:g} time and are divided by {scaling.factor:g}; a ramp between",
        f"attention factor {new.frequencies().attention_factor:.4f} = {_amplitude(scaling)}, "
        "on cos and sin; code that forgets it flattens attention",
    ]
    if scaling.scale_softmax:
        square = f"(0.1·{scaling.mscale_all_dim:g}·ln {scaling.factor:g} + 1)²"
        said.append(f"softmax scale times {new.frequencies().softmax_scale:.4f} = {square}")
    return said


def _amplitude(scaling: Yarn) -> str:
    """Where YaRN's attention factor comes from."""
    plain = f"·ln {scaling.factor:g} + 1"
    if scaling.attention_factor is not None:
        formula = 0.1 * math.log(scaling.factor) + 1
        return f"attention_factor, which stays as the config gives it (0.1{plain} = {formula:.4f})"
    if scaling.mscale and scaling.mscale_all_dim:
        return f"(0.1·{scaling.mscale:g}{plain}) / (0.1·{scaling.mscale_all_dim:g}{plain})"
    return f"0.1{plain}"


def _explain_linear(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    return [f"every angle is divided by {to / original:g}: needs fine-tuning to work well"]


def _explain_proportional(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    return [
        f"the angles of the pairs that turn are divided by {to / original:g}: needs fine-tuning to "
        "work well"
    ]


def _explain_ntk(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    stretched = plain.base * _bloc97(to / original, plain)
    return [
        f"rope_theta {plain.base:g} -> {stretched:g} = base · factor^(d/(d-2)): the fastest pair "
        f"keeps its speed, the slowest is divided by {to / original:g}"
    ]


def _explain_dynamic(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    factor = to / original
    longest = plain.base * _bloc97(factor * factor - factor + 1, plain)
    return [
        f"{LENGTH} is {original}: there dynamic scaling starts; at {to} tokens the base is "
        f"{longest:g}. Keys cached earlier were rotated by a smaller one"
    ]


def _explain_llama3(plain: Rope, new: Rope, original: int, to: int) -> list[str]:
    scaling = new.scaling
    assert isinstance(scaling, Llama3)
    return [
        f"wavelengths below {original / scaling.high_freq_factor:g} tokens stay, above "
        f"{original / scaling.low_freq_factor:g} they are stretched by {scaling.factor:g}"
    ]


_EXPLAIN: Mapping[type, Callable[[Rope, Rope, int, int], list[str]]] = {
    Yarn: _explain_yarn,
    Linear: _explain_linear,
    NTK: _explain_ntk,
    DynamicNTK: _explain_dynamic,
    Proportional: _explain_proportional,
    Llama3: _explain_llama3,
}


def _bloc97(stretch: float, rope: Rope) -> float:
    width = rope.rotary_dim or rope.head_dim
    return math.pow(stretch, width / (width - 2))
