"""How much memory an option needs at a length: keys and values, position tables, biases.

Estimates from shapes, for one sequence, with the model's weights and activations left out. Keys,
values and added tables are 2 bytes a number (bfloat16), cos, sin and biases 4.
"""

import math
import re
from dataclasses import dataclass

from posenc.report.checkpoints import Checkpoint, Option

__all__ = ["ASSUMPTIONS", "Memory", "estimate", "parse_bytes"]

BLOCK_BYTES = 4 << 24  # what attention lays out of a bias at once
ASSUMPTIONS = (
    "one sequence; keys and values in bfloat16 for every layer; cos, sin and biases in float32; "
    "weights and activations are not counted"
)
LOGITS = ("alibi", "t5", "kerple", "sandwich", "fire", "shaw", "transformer-xl", "deberta", "cope")
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Memory:
    """Bytes of each kind."""

    cache: int
    tables: int
    bias: int

    @property
    def total(self) -> int:
        return self.cache + self.tables + self.bias


def estimate(
    option: Option, shape: Checkpoint, length: int, train: int, *, decoder: bool = True
) -> Memory:
    """Keys and values of `length` tokens (of the window, where there is one), tables, bias."""
    kept = min(length, train) if option.window else length
    num_layers = shape.num_layers if decoder else 1  # an encoder needs one layer's at a time
    cache = 2 * num_layers * shape.num_kv_heads * shape.head_dim * 2 * kept
    base = option.name.split("+")[0].split(",")[0]
    tables = bias = 0
    if base.endswith("rope") or base == "xpos":
        tables = 4 * shape.head_dim * length
    elif base.endswith(("learned", "sinusoidal")) or base == "fourier":
        tables = 2 * shape.num_heads * shape.head_dim * length
    elif base in (
        "alibi",
        "t5",
        "kerple",
        "sandwich",
        "fire",
        "shaw",
        "transformer-xl",
        "deberta",
        "cope",
    ):
        vector = 4 * shape.num_heads * length
        bias = vector + min(BLOCK_BYTES, vector * length)
    return Memory(cache, tables, bias)


def parse_bytes(text: str) -> int:
    """Bytes of "8GB" (decimal), "8GiB" (binary) or a bare number of bytes; ValueError otherwise.

    >>> parse_bytes("8GB")
    8000000000
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not (math.isfinite(number) and number > 0):
        raise ValueError(f"{text!r} is no amount of memory; expected one like 8GB, 512MB or 24GiB")
    unit = (1024 if match[3] else 1000) ** UNITS[match[2].upper()]
    return max(1, round(number * unit))
