"""Mistakes that configs are known to make: each a small function with where it was reported.

A config that cannot be read as one encoding never gets here: that is a ConfigError. These are the
ones that can be read, and mean something else than their author thought, here or in other readers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posenc.interop.model_scheme import ModelScheme
from posenc.interop.rotations import scaling_of
from posenc.interop.text_section import text_section

__all__ = ["MISTAKES", "Warned", "warnings_about"]

Config = Mapping[str, Any]
Check = Callable[[Config, ModelScheme], str | None]


@dataclass(frozen=True)
class Warned:
    """A known mistake found in a config: its name, what it is here, and where it was reported."""

    name: str
    text: str
    source: str


def warnings_about(raw: Config, model: ModelScheme) -> Iterator[Warned]:
    """Every known mistake in a config, or in its sections about a text model.

    >>> [warned.name for warned in warnings_about(raw, scheme_from_config(raw))]
    """
    for name, (check, source) in MISTAKES.items():
        text = check(text_section(raw)[1], model)
        if text:
            yield Warned(name, text, source)


def length_never_raised(raw: Config, model: ModelScheme) -> str | None:
    """A scaled model whose maximum is still the length it was trained at."""
    factor, original, longest = _factor(model), model.original_length, model.max_length
    if factor is None or factor == 1 or original is None or longest != original:
        return None
    return (
        f"factor {factor:g} is meant for {int(factor * original)} tokens, but "
        f"max_position_embeddings is {longest}, the original length: code that takes one of the two "
        "for the other scales by 1 or stops early"
    )


def factor_disagrees(raw: Config, model: ModelScheme) -> str | None:
    """A factor that is not maximum / original, where the method means that ratio by it."""
    factor, original, longest = _factor(model), model.original_length, model.max_length
    if factor is None or not original or not longest or longest == original:
        return None
    if _kind(model) not in ("Yarn", "NTKByParts", "LongRope") or "factor" not in _scaling(raw):
        return None
    ratio = longest / original
    if abs(ratio - factor) <= 0.01 * factor:
        return None
    return f"factor is {factor:g}, but {longest} / {original} = {ratio:g}: readers use either one"


def factor_set_twice(raw: Config, model: ModelScheme) -> str | None:
    """A final attention factor beside the numbers it would be computed from."""
    del model
    scaling = _scaling(raw)
    if scaling.get("attention_factor") is None:
        return None
    inputs = [name for name in ("mscale", "mscale_all_dim") if scaling.get(name)]
    if not inputs:
        return None
    return (
        f"attention_factor = {scaling['attention_factor']} is given with {' and '.join(inputs)}: "
        "it is the final multiplier here; other readers multiply the two, or take the formula"
    )


def softmax_scale_forgotten(raw: Config, model: ModelScheme) -> str | None:
    """DeepSeek's second correction, on the softmax scale."""
    del raw
    scales = {x.rotary.frequencies().softmax_scale for x in _rotating(model) if _is_rope(x)} - {1.0}
    if not scales:
        return None
    return (
        f"mscale_all_dim multiplies the softmax scale by {max(scales):.4f}, for channels that do not "
        "rotate as well: code that only scales cos and sin misses it, and position 0 does not show it"
    )


def dynamic_with_cache(raw: Config, model: ModelScheme) -> str | None:
    """Frequencies that change while keys are already cached."""
    del raw
    if _kind(model) != "DynamicNTK":
        return None
    return (
        "dynamic scaling changes the base with the length: keys cached earlier were rotated by "
        "another one. Fix the length (rope.at_length), or use yarn"
    )


def longrope_with_cache(raw: Config, model: ModelScheme) -> str | None:
    """Two lists of frequencies, and keys of the short one when the long one begins."""
    del raw
    if _kind(model) != "LongRope" or model.original_length is None:
        return None
    return (
        f"keys cached up to token {model.original_length} use the short list, queries beyond it the "
        "long one: choose by the final length before the first token (rope.at_length)"
    )


def theta_left_out(raw: Config, model: ModelScheme) -> str | None:
    """A base that the config does not say, and that is not the one that most readers take."""
    del raw
    left_out = {
        value
        for name, value in model.defaults_used.items()
        if name.endswith(("rope_theta", "rotary_emb_base")) and value != USUAL_BASE
    }
    if not left_out:
        return None
    listed = " and ".join(f"{value:g}" for value in sorted(left_out))
    return (
        f"no base in the config: {listed} is what the published code of {model.model_type} takes; "
        f"other readers take {USUAL_BASE:g}"
    )


def two_forms(raw: Config, model: ModelScheme) -> str | None:
    """The same thing said twice; where the two disagree the config is refused."""
    del model
    scaling = _scaling(raw)
    twice = [pair for pair in PAIRS if all(raw.get(name) is not None for name in pair)]
    if scaling.get("type") is not None and scaling.get("rope_type") is not None:
        twice.append(("type", "rope_type"))
    if raw.get("rope_theta") is not None and scaling.get("rope_theta") is not None:
        twice.append(("rope_theta", "rope_parameters.rope_theta"))
    if not twice:
        return None
    listed = "; ".join(" and ".join(pair) for pair in twice)
    return f"said twice: {listed}. Readers take either one, so a later edit of one is half ignored"


def mrope_beside_default(raw: Config, model: ModelScheme) -> str | None:
    """Sections for images beside a type that says there is nothing to do."""
    del model
    scaling = _scaling(raw)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind != "default" or "mrope_section" not in scaling:
        return None
    return (
        "rope_type is 'default' beside mrope_section: readers that go by the type alone drop the "
        "sections, and images lose their rows and columns"
    )


def ramp_not_truncated(raw: Config, model: ModelScheme) -> str | None:
    """gpt-oss's ramp, which most readers round."""
    del raw
    scalings = [scaling_of(x.rotary) for x in _rotating(model)]
    if all(getattr(scaling, "truncate", True) for scaling in scalings):
        return None
    return "truncate is false: readers that round the ends of the ramp get other frequencies"


def nope_layers_named_backwards(raw: Config, model: ModelScheme) -> str | None:
    """A list whose 1 means the opposite of its name."""
    if raw.get("no_rope_layers") is None and raw.get("no_rope_layer_interval") is None:
        return None
    still = [index for index, layer in enumerate(model.layers) if layer.rotary is None]
    return (
        f"no_rope_layers holds 1 where a layer DOES rotate; layers without rotation here: {still}"
    )


USUAL_BASE = 10_000.0
PAIRS = (("rope_scaling", "rope_parameters"), ("rotary_pct", "partial_rotary_factor"))

# name -> the check, and public reports of what went wrong
MISTAKES: Mapping[str, tuple[Check, str]] = {
    "length-never-raised": (length_never_raised, "NVIDIA/Megatron-LM#1418"),
    "factor-disagrees": (
        factor_disagrees,
        "NVIDIA/Megatron-LM#1418, JIA-Lab-research/LongLoRA#181",
    ),
    "factor-set-twice": (factor_set_twice, "sgl-project/sglang#33558, ml-explore/mlx-lm#1507"),
    "softmax-scale": (softmax_scale_forgotten, "huggingface/transformers#47435"),
    "dynamic-with-cache": (dynamic_with_cache, "huggingface/transformers#25104, #25306"),
    "longrope-with-cache": (longrope_with_cache, "huggingface/transformers#33129"),
    "theta-left-out": (theta_left_out, "deepspeedai/DeepSpeed#4442, #8345"),
    "two-forms": (two_forms, "lablup/mlxcel#1355, deepspeedai/DeepSpeed#8345"),
    "mrope-beside-default": (
        mrope_beside_default,
        "QwenLM/Qwen2.5-Omni#373, ml-explore/mlx-lm#1768",
    ),
    "ramp-not-truncated": (ramp_not_truncated, "vllm-project/vllm#27722"),
    "no-rope-layers": (nope_layers_named_backwards, "huggingface/transformers#43756"),
}


def _scaling(raw: Config) -> Config:
    """The keys of the scaling method, in either form; of the first layer type where they differ."""
    for name in ("rope_parameters", "rope_scaling"):
        section = raw.get(name)
        if isinstance(section, Mapping):
            nested = [value for value in section.values() if isinstance(value, Mapping)]
            return nested[0] if nested else section
    return {}


def _rotating(model: ModelScheme) -> list[Any]:
    return [layer for layer in model.layers if layer.rotary is not None]


def _is_rope(layer: Any) -> bool:
    return hasattr(layer.rotary, "frequencies")


def _method(model: ModelScheme) -> Any:
    scalings = [scaling_of(x.rotary) for x in _rotating(model)]
    return next((scaling for scaling in scalings if scaling is not None), None)


def _kind(model: ModelScheme) -> str:
    return type(_method(model)).__name__


def _factor(model: ModelScheme) -> float | None:
    return getattr(_method(model), "factor", None)
