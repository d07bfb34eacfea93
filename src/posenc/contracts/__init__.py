"""Where position enters a Transformer: added to embeddings, rotating q and k, biasing logits,
or as vectors on keys and values. A `Scheme` names one of each; none at all is NoPE.
"""

from posenc.contracts.additive import AdditiveEncoding, add_encoding
from posenc.contracts.axes import axes_of, ordered_axes, rows
from posenc.contracts.bias import TRAITS, LogitBias
from posenc.contracts.relative import Block, RelativeKeyValue
from posenc.contracts.scheme import QueryScale, Scheme
from posenc.contracts.tables import (
    Pairing,
    RotaryEncoding,
    RotaryTables,
    Rotation,
    Table,
    table_from_angles,
)

__all__ = [
    "TRAITS",
    "AdditiveEncoding",
    "Block",
    "LogitBias",
    "Pairing",
    "QueryScale",
    "RelativeKeyValue",
    "RotaryEncoding",
    "RotaryTables",
    "Rotation",
    "Scheme",
    "Table",
    "add_encoding",
    "axes_of",
    "ordered_axes",
    "rows",
    "table_from_angles",
]
