"""Meta's params.json, and Mistral's: the weights beside it pair adjacent channels."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from posenc.contracts import Scheme
from posenc.interop.errors import ConfigError, about
from posenc.interop.keys import Keys
from posenc.interop.layers import MAX_LAYERS
from posenc.interop.model_scheme import ModelScheme
from posenc.interop.rope_config import check_finite
from posenc.interop.rope_heads import MAX_HEAD_DIM
from posenc.rotary import Rope
from posenc.scaling import Llama3

__all__ = ["scheme_from_params"]

_BASE = 10_000.0  # Meta's code where the file has no rope_theta: Llama 1 and 2
_SCALED_LENGTH, _FACTOR = 8192, 8.0  # constants of apply_scaling in Meta's code
_LLAMA_3_2, _FACTOR_3_2 = ((2048, 16), (3072, 28)), 32.0  # (dim, n_layers) of 1B and 3B
_READ = ("rope_theta", "use_scaled_rope", "rope_scaling_factor", "rope_high_freq_factor")


def scheme_from_params(params: Mapping[str, Any]) -> ModelScheme:
    """The scheme of a params.json (Llama 1 to 3.3, Code Llama, Mistral's consolidated weights).

    >>> scheme_from_params({"dim": 4096, "n_layers": 32, "n_heads": 32}).scheme.rotary.pairing
    'adjacent'
    """
    if not isinstance(params, Mapping):
        raise ConfigError(f"a params.json is an object, got {params!r}")
    keys = Keys(params)
    for key, value in params.items():
        if "rope" in str(key) and key not in _READ and value not in (None, False):
            keys.fail(str(key), value, f"no such key; this file has {', '.join(_READ)}")
    if "yarn" in keys:
        keys.fail("yarn", keys.get("yarn"), "nothing: read Mistral's config.json instead")
    count = keys.integer("n_layers", high=MAX_LAYERS)
    base = keys.number("rope_theta", above=0) if "rope_theta" in keys else _BASE
    if base == _BASE and "rope_theta" not in keys:
        keys.read.defaults["rope_theta"] = _BASE
    scaling = _scaling(keys) if keys.flag("use_scaled_rope", default=False) else None
    with about("params.json"):
        rope = Rope(_head_dim(keys), base, "adjacent", scaling=scaling)
    check_finite(rope, f"rope_theta = {base!r}")
    length = keys.integer("max_seq_len") if "max_seq_len" in keys else None
    return ModelScheme(
        "llama",
        (Scheme(rotary=rope),) * count,
        max_length=length,
        original_length=scaling.original_length if scaling else length,
        used_keys=tuple(keys.read.used),
        defaults_used=MappingProxyType(dict(keys.read.defaults)),
        notes=tuple(keys.read.notes),
    )


def _head_dim(keys: Keys) -> int:
    if "head_dim" in keys:
        return keys.integer("head_dim", low=2, high=MAX_HEAD_DIM)
    return keys.per_head("dim", keys.integer("n_heads"), "n_heads", low=2, high=MAX_HEAD_DIM)


def _scaling(keys: Keys) -> Llama3:
    """By 8, the constant of Meta's code; Llama 3.2 1B and 3B, told by their sizes, by 32.

    Their params.json has no factor, and Meta's own config.json beside it has 32.
    """
    high = 4.0
    if "rope_high_freq_factor" in keys:
        high = keys.number("rope_high_freq_factor", low=1)
    with about("rope_scaling_factor"):
        if "rope_scaling_factor" in keys:
            return Llama3(keys.number("rope_scaling_factor"), _SCALED_LENGTH, 1.0, high)
        factor = _FACTOR
        if (keys.integer("dim"), keys.integer("n_layers")) in _LLAMA_3_2:
            factor = _FACTOR_3_2
            keys.note(
                "the sizes are Llama 3.2's, whose config.json stretches by 32; Meta's reference code "
                'stretches every model by 8: "rope_scaling_factor" in the params overrules both'
            )
        keys.read.defaults["rope_scaling_factor"] = factor
        return Llama3(factor, _SCALED_LENGTH, 1.0, high)
