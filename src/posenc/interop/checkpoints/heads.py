"""The heads of each layer of a checkpoint, and which of their channels turn: from its config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posenc.contracts import Pairing, Scheme
from posenc.interop.checkpoints.files import CheckpointError
from posenc.interop.checkpoints.permutation import Heads
from posenc.interop.families import class_defaults
from posenc.interop.text_section import text_section

__all__ = ["LayerHeads", "Layout", "layout_from"]

NUM_HEADS = (
    "num_attention_heads_per_layer",
    "num_attention_heads",
    "n_heads",
    "n_head",
    "num_heads",
)
NUM_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads")
SINGLE_KEYS = (
    "gpt_neox",
    "gpt_neox_japanese",
    "persimmon",
    "gptj",
    "codegen",
)  # a key for each query
GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")


@dataclass(frozen=True)
class LayerHeads:
    """The heads of one layer; `rotary_dim` is 0 where it does not rotate.

    >>> LayerHeads(32, 8, head_dim=128, rotary_dim=128)
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    start: int = 0
    latent_dim: int = 0  # DeepSeek's kv_lora_rank: rows of the latent before its one rotated key
    gated: bool = False  # Qwen3-Next: every query head is followed by its gate

    @property
    def query(self) -> Heads:
        """The rows of a query projection."""
        width = 2 * self.head_dim if self.gated else self.head_dim
        return Heads(self.num_heads, width, self.rotary_dim, self.start)

    @property
    def key(self) -> Heads:
        """The rows of a key projection."""
        return Heads(self.num_kv_heads, self.head_dim, self.rotary_dim, self.start)

    @property
    def one(self) -> Heads:
        """The rows of a single head."""
        return Heads(1, self.head_dim, self.rotary_dim, self.start)


@dataclass(frozen=True)
class Layout:
    """The heads of every layer, and the family that says how a fused projection is laid out."""

    model_type: str
    layers: tuple[LayerHeads, ...]
    pairing: Pairing | None = None  # what models of this config rotate; None where layers differ
    values_are_keys: bool = False  # Gemma 4 in some sizes: one projection for both


def layout_from(config: Mapping[str, Any]) -> Layout:
    """The heads of a config.json or params.json, as the reader of configs understands it.

    >>> layout_from(json.loads(Path("llama/config.json").read_text())).layers[0]
    """
    from posenc.interop.hf import scheme_from_config  # noqa: PLC0415

    model = scheme_from_config(config)
    if getattr(model, "encoder", None) is not None:
        raise CheckpointError(f"{model.model_type} has an encoder and a decoder: not supported")
    path, section = text_section(config)
    if path:  # a nested config leaves keys to its class, as the reader knows
        section = {**class_defaults(model.model_type), **section}
    layers = tuple(
        _layer(_of_layer(section, index), scheme, index, model.model_type)
        for index, scheme in enumerate(model.layers)
    )
    ropes: list[Any] = [scheme.rotary for scheme in model.layers if scheme.rotary is not None]
    pairings: set[Pairing] = {rope.pairing for rope in ropes}
    if not pairings:
        raise CheckpointError(
            f"{model.model_type} rotates in no layer: there is no pairing to change"
        )
    predicting = (
        section.get("num_nextn_predict_layers") or 0
    )  # DeepSeek: stored after the last layer
    layers += (layers[-1],) * predicting
    one = pairings.pop() if len(pairings) == 1 else None
    return Layout(model.model_type, layers, one, bool(section.get("attention_k_eq_v")))


def _layer(section: Mapping[str, Any], scheme: Scheme, index: int, model_type: str) -> LayerHeads:
    num_heads = _count(section, NUM_HEADS, index)
    if num_heads is None:
        raise CheckpointError(f"the config has no head count: one of {', '.join(NUM_HEADS)}")
    num_kv_heads = _num_kv_heads(section, num_heads, index, model_type)
    rotary: Any = scheme.rotary
    if rotary is None:
        return LayerHeads(num_heads, num_kv_heads, 1, 0)
    rotary_dim = 2 * rotary.frequencies().inv_freq.numel()
    head_dim, start = rotary.head_dim, getattr(rotary, "start", 0)
    latent = section.get("kv_lora_rank") or 0
    if latent:
        start = section["qk_nope_head_dim"]
        head_dim = start + section["qk_rope_head_dim"]
    gated = bool(section.get("attn_output_gate", model_type in GATED))
    return LayerHeads(num_heads, num_kv_heads, head_dim, rotary_dim, start, latent, gated)


def _num_kv_heads(section: Mapping[str, Any], num_heads: int, index: int, model_type: str) -> int:
    if model_type in SINGLE_KEYS:
        return num_heads
    if model_type == "chatglm":
        grouped = section.get("multi_query_attention", False)
        return section["multi_query_group_num"] if grouped else num_heads
    grouped = section.get("new_decoder_architecture", model_type == "RefinedWeb")
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel") and not grouped:
        return 1 if section.get("multi_query", True) else num_heads
    nested = section.get("attn_config")  # DBRX
    nested = nested if isinstance(nested, Mapping) else {}
    found = _count({**nested, **section}, NUM_KV_HEADS, index)
    if model_type == "mimo_v2_flash" and section["layer_types"][index] == "sliding_attention":
        return 2 * section.get("num_key_value_heads", 4)  # its code doubles them, no key says so
    return num_heads if found is None else found


def _count(section: Mapping[str, Any], keys: tuple[str, ...], index: int) -> int | None:
    """A head count, for all layers or listed for each."""
    for key in keys:
        value = section.get(key)
        value = value[index] if isinstance(value, list) else value
        if value is not None:
            return int(value)
    return None


def _of_layer(section: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """What a config says of one layer, with what that layer has otherwise (Gemma 4)."""
    others = section.get("per_layer_config") or {}
    number = {int(key): value for key, value in others.items()}
    return {**section, **number.get(index, {})}
