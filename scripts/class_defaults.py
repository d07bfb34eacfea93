"""Write src/posenc/interop/class_defaults.json: what transformers takes for keys left out.

    python scripts/class_defaults.py

A config nested in another holds only what differs from the defaults of its class (Gemma 3's 4B has
no num_attention_heads). One line for each family that posenc knows, with the keys it reads.
"""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posenc.interop.hf import FAMILIES

KEYS = (
    "hidden_size", "num_attention_heads", "num_hidden_layers", "num_decoder_layers",
    "encoder_layers", "decoder_layers", "max_position_embeddings", "max_source_positions",
    "max_target_positions", "sliding_window", "qk_nope_head_dim", "qk_rope_head_dim",
    "query_pre_attn_scalar", "attention_multiplier", "pad_token_id", "embedding_size",
    "image_size", "patch_size", "pretrain_image_size", "max_image_size", "num_patches",
    "num_position_embeddings", "pos_emb_height", "pos_emb_width", "posemb_grid_size",
)  # fmt: skip
TARGET = Path(__file__).resolve().parents[1] / "src/posenc/interop/class_defaults.json"


def main() -> None:
    logging.disable(logging.WARNING)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows().items())
    TARGET.write_text(f"{{\n{lines}\n}}\n", "utf-8")


def rows() -> dict[str, dict[str, Any]]:
    known = (name for name in sorted(FAMILIES) if not FAMILIES[name].refuse)
    return {name: row for name in known if (row := defaults(name))}


def defaults(model_type: str) -> dict[str, Any]:
    """The plain numbers among a config class's fields, under the general names."""
    if model_type not in CONFIG_MAPPING:
        return {}
    config = CONFIG_MAPPING[model_type]
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    names = {key: config.attribute_map.get(key, key) for key in KEYS}
    found = {key: fields.get(name) for key, name in names.items()}
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


if __name__ == "__main__":
    main()
