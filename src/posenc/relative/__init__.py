"""Relative positions as vectors on keys and values, and positions counted by content."""

from posenc.relative.cope import Cope
from posenc.relative.deberta import Deberta
from posenc.relative.decomposed import Decomposed
from posenc.relative.shaw import Shaw
from posenc.relative.transformer_xl import TransformerXL

__all__ = ["Cope", "Deberta", "Decomposed", "Shaw", "TransformerXL"]
