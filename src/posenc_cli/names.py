"""Names that options take. The library holds them too; asking it would load torch for a typing error.

Tests compare them.
"""

import difflib
from collections.abc import Sequence

__all__ = ["BUDGETS", "CHECKPOINTS", "TASKS", "nearest"]

BUDGETS = ("quick", "full")
TASKS = ("language-model", "retrieval", "encoder", "vision")
CHECKPOINTS = (
    "none",
    "llama",
    "llama-2",
    "mistral",
    "qwen",
    "gemma",
    "phi",
    "gpt-neox",
    "pythia",
    "gpt-j",
    "bloom",
    "mpt",
    "t5",
    "gpt2",
    "opt",
    "bert",
    "roberta",
    "marian",
)


def nearest(name: str, names: Sequence[str]) -> list[str]:
    """The names that somebody who typed `name` may have meant, best first.

    >>> nearest("alibbi", ["alibi", "rope"])
    ['alibi']
    """
    return difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
