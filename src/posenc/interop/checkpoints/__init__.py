"""The pairing of weights: moving checkpoints from one to the other, and telling which one they have.

>>> from posenc.interop.checkpoints import convert, detect, permute
>>> convert("llama", "llama-adjacent", to="adjacent")
>>> k_weight = permute(k_weight, num_heads=8, head_dim=128, to="half")
"""

from posenc.interop.checkpoints.conversion import Conversion, convert
from posenc.interop.checkpoints.detection import Detection, compare_pairings, detect
from posenc.interop.checkpoints.files import CheckpointError
from posenc.interop.checkpoints.permutation import Heads, pair_order, permute, permute_fused
from posenc.interop.checkpoints.tables import without_tables

__all__ = [
    "CheckpointError",
    "Conversion",
    "Detection",
    "Heads",
    "compare_pairings",
    "convert",
    "detect",
    "pair_order",
    "permute",
    "permute_fused",
    "without_tables",
]
