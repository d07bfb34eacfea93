"""Small models trained on this machine, scored beyond the length they were trained at."""

from posenc.lab.corpus import Corpus, load
from posenc.lab.extrapolation import run_cell, settings
from posenc.lab.model import Decoder
from posenc.lab.pool import run_cells
from posenc.lab.rows import BUDGETS, ROWS, Budget, Cell, Read, Row, cells, reads
from posenc.lab.train import Recipe, train

__all__ = [
    "BUDGETS",
    "ROWS",
    "Budget",
    "Cell",
    "Corpus",
    "Decoder",
    "Read",
    "Recipe",
    "Row",
    "cells",
    "load",
    "reads",
    "run_cell",
    "run_cells",
    "settings",
    "train",
]
