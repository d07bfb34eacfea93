"""The checks of docs/differences.md, a file for each section of the page."""

from differences import added, biases, rotation, scaling, vectors
from differences.rows import CHECKS

__all__ = ["ROWS"]

SECTIONS = (scaling, rotation, biases, vectors, added)
ROWS = {
    name: check
    for section in SECTIONS
    for name, check in CHECKS.items()
    if check.__module__ == section.__name__
}
