"""The position keys of a GGUF header. `pip install gguf` reads the file.

GGUF's converter permutes the weights of some architectures, so that pairing is a matter of the
architecture in the file, not of the model it came from: llama.cpp, llama_model_rope_type.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from posenc.contracts import Pairing, Scheme
from posenc.interop.errors import ConfigError, about
from posenc.interop.keys import Keys
from posenc.interop.layers import MAX_LAYERS
from posenc.interop.model_scheme import ModelScheme
from posenc.interop.rope_config import check_finite
from posenc.interop.rope_heads import MAX_HEAD_DIM
from posenc.rotary import Rope
from posenc.scaling import Linear, LongRope, Scaling, Yarn

__all__ = ["scheme_from_fields", "scheme_from_gguf"]

_ADJACENT_NAMES = """
arcee arctic baichuan bailingmoe chameleon chatglm cohere2 command-r deci deepseek deepseek2
ernie4_5 ernie4_5-moe glm4 granite granitemoe internlm2 llama llama4 minicpm mistral3
mistral4 neo-bert olmo plm smollm3 starcoder xverse
"""
_HALF_NAMES = """
afmoe apertus bailingmoe2 bitnet codeshell dbrx dots1 dream exaone exaone4 falcon gemma
gemma2 glm4moe gpt-oss gptneox grok hunyuan-dense hunyuan-moe jais2 lfm2 minicpm3 minimax-m2
nemotron nomic-bert olmo2 olmoe openelm orion phi2 phi3 phimoe plamo qwen qwen2 qwen2moe
qwen3 qwen3moe qwen3next seed_oss smallthinker stablelm starcoder2
"""
ADJACENT = frozenset(_ADJACENT_NAMES.split())
HALF = frozenset(_HALF_NAMES.split())
_DECOUPLED = frozenset({"deepseek2", "minicpm3"})  # the rotated slice stands last
_WHOLE = frozenset({"llama", "deci", "falcon"})
_FREQUENCIES = "rope_freqs.weight"  # a tensor: the divisor of each pair, Llama 3's scaling
LEAST_BYTES = 12  # of a field: the length of its name and its type
_METHODS = ("none", "linear", "yarn", "longrope")
_KEYS = frozenset(
    {"rope.freq_base", "rope.dimension_count", "rope.scale_linear"}
    | {f"rope.scaling.{name}" for name in ("type", "factor", "original_context_length")}
    | {f"rope.scaling.{name}" for name in ("attn_factor", "finetuned", "yarn_log_multiplier")}
)


def scheme_from_gguf(path: str | Path) -> ModelScheme:
    """The scheme of a .gguf file, from its header and the small tensors that belong to it."""
    try:
        from gguf import GGUFReader  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"{path}: the gguf package reads it; pip install gguf") from error
    _check_beginning(Path(path))
    wanted = (_FREQUENCIES, "rope_factors_short.weight", "rope_factors_long.weight")
    try:
        reader = GGUFReader(str(path))
        names = [name for name in reader.fields if not name.startswith("tokenizer.")]
        fields = {name: reader.fields[name].contents() for name in names}
        tensors = {t.name: t.data.tolist() for t in reader.tensors if t.name in wanted}
    except (ValueError, LookupError, OSError) as error:
        raise ConfigError(
            f"{path} is damaged or cut short: the gguf package says {error}"
        ) from error
    return scheme_from_fields(fields, tensors)


def _check_beginning(path: Path) -> None:
    """Raise unless a file begins as GGUF 2 or 3 does, with counts that it has room for."""
    if not path.is_file():
        raise ConfigError(f"no such file: {path}")
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(24)
    if head[:4] != b"GGUF" or len(head) < 24:
        raise ConfigError(f"{path} is no GGUF file: it begins with {head[:4]!r}, {size} bytes long")
    version, tensors, fields = struct.unpack("<IQQ", head[4:])
    if version not in (2, 3):
        raise ConfigError(f"{path} is GGUF of version {version}: expected 2 or 3, little-endian")
    if (tensors + fields) * LEAST_BYTES > size:
        raise ConfigError(
            f"{path} is damaged: it says {tensors} tensors and {fields} fields in {size} bytes"
        )


def scheme_from_fields(
    fields: Mapping[str, Any], tensors: Mapping[str, Any] | None = None
) -> ModelScheme:
    """The same of fields that were read otherwise: `general.architecture`, `llama.rope.freq_base`.

    >>> fields = {"general.architecture": "qwen2", "qwen2.block_count": 28,
    ...           "qwen2.embedding_length": 3584, "qwen2.attention.head_count": 28,
    ...           "qwen2.context_length": 32768, "qwen2.rope.freq_base": 1e6}
    >>> scheme_from_fields(fields).scheme.rotary.head_dim
    128
    """
    general = Keys(fields)
    name = general.text("general.architecture")
    if name is None:
        general.missing("general.architecture", "it names the family and its pairing")
    if name not in ADJACENT | HALF:
        general.fail("general.architecture", name, "an architecture that rotates, known here")
    own = {
        key.removeprefix(f"{name}."): x for key, x in fields.items() if key.startswith(f"{name}.")
    }
    keys = Keys(own, f"{name}.", read=general.read)
    for key, value in own.items():
        if key.startswith("rope.") and key not in _KEYS and value not in (None, 0):
            keys.fail(key, value, f"no such key; known are {', '.join(sorted(_KEYS))}")
    length = keys.integer("context_length", low=2) if "context_length" in keys else None
    rope = _rope(keys, name, length, tensors or {})
    check_finite(rope, f"{name}.rope.freq_base = {rope.base!r}")
    scaling = rope.scaling
    return ModelScheme(
        name,
        (Scheme(rotary=rope),) * keys.integer("block_count", high=MAX_LAYERS),
        max_length=length,
        original_length=getattr(scaling, "original_length", None) if scaling else length,
        used_keys=tuple(keys.read.used),
        defaults_used=MappingProxyType(dict(keys.read.defaults)),
    )


def _rope(keys: Keys, name: str, length: int | None, tensors: Mapping[str, Any]) -> Rope:
    channels = _head_dim(keys)
    width = channels
    if "rope.dimension_count" in keys:
        width = keys.integer("rope.dimension_count", low=2, high=channels)
    if name in _WHOLE and width != channels:
        keys.fail("rope.dimension_count", width, f"{channels}, the whole head")
    if "rope.freq_base" in keys:
        base = keys.number("rope.freq_base", above=0)
    else:
        base = keys.read.defaults[f"{keys.path}rope.freq_base"] = 10_000.0  # llama.cpp's default
    pairing: Pairing = "adjacent" if name in ADJACENT else "half"
    with about(f"{name}.rope"):
        return Rope(
            channels,
            base,
            pairing,
            width,
            _scaling(keys, width // 2, length, tensors),
            placement="trailing" if name in _DECOUPLED else "leading",
        )


def _head_dim(keys: Keys) -> int:
    if "attention.key_length" in keys:
        return keys.integer("attention.key_length", low=2, high=MAX_HEAD_DIM)
    named = "attention.head_count"
    heads = keys.integer(named)
    return keys.per_head("embedding_length", heads, named, low=2, high=MAX_HEAD_DIM)


def _scaling(
    keys: Keys, pairs: int, length: int | None, tensors: Mapping[str, Any]
) -> Scaling | None:
    if "rope_factors_long.weight" in tensors:
        return _longrope(keys, length, tensors)
    kind = keys.text("rope.scaling.type", _METHODS)
    factor = _factor(keys)
    if kind == "yarn":
        return _yarn(keys, factor, length)
    if kind == "longrope":
        keys.fail("rope.scaling.type", kind, "tensors rope_factors_short and _long in the file")
    divisors = tensors.get(_FREQUENCIES)
    if divisors is None:
        return Linear(factor) if factor != 1 and kind != "none" else None
    if len(divisors) != pairs or factor != 1:
        keys.fail(_FREQUENCIES, len(divisors), f"{pairs} divisors and no other scaling")
    return LongRope(tuple(divisors), tuple(divisors), 1.0, length or 2)


def _factor(keys: Keys) -> float:
    """`rope.scaling.factor`, or the older name; 0 means none."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if key in keys and keys.number(key, low=0) != 0:
            return keys.number(key, low=1)
    return 1.0


def _yarn(keys: Keys, factor: float, length: int | None) -> Yarn:
    """llama.cpp multiplies its own amplitude, 0.1·ln(factor) + 1, by attn_factor."""
    if "rope.scaling.yarn_log_multiplier" in keys and keys.number(
        "rope.scaling.yarn_log_multiplier"
    ):
        key = "rope.scaling.yarn_log_multiplier"
        keys.fail(key, keys.get(key), "0: DeepSeek's softmax scale is not read from GGUF")
    keys.flag("rope.scaling.finetuned", default=False)
    original = _original(keys, length)
    plain = Yarn(factor, original)
    if "rope.scaling.attn_factor" not in keys:
        return plain
    amplitude = Rope(4, 2.0, scaling=plain).frequencies().attention_factor
    times = keys.number("rope.scaling.attn_factor", above=0)
    return Yarn(factor, original, attention_factor=amplitude * times) if times != 1 else plain


def _longrope(keys: Keys, length: int | None, tensors: Mapping[str, Any]) -> LongRope:
    original = _original(keys, None)
    if length is None:
        keys.missing("context_length", "the factor is its ratio to the original length")
    given = "rope.scaling.attn_factor"
    attention = keys.number(given, above=0) if given in keys else None
    return LongRope(
        tuple(tensors.get("rope_factors_short.weight", ())),
        tuple(tensors["rope_factors_long.weight"]),
        max(1.0, length / original),
        original,
        attention_factor=attention,
    )


def _original(keys: Keys, length: int | None) -> int:
    key = "rope.scaling.original_context_length"
    if key in keys:
        return keys.integer(key, low=2)
    if length is None:
        keys.missing(key, "the method needs the trained length")
    keys.read.defaults[keys.path + key] = length  # llama.cpp takes the context length
    return length
