"""Every kind of public report that the tests hold has a test of its number."""

import ast
import re
from pathlib import Path

KINDS: dict[str, tuple[int, ...]] = {
    "layout": (1, 2, 5, 6, 8, 11, 12, 14),
    "precision": (15, 17, 19, 20, 23, 25, 27, 29),
    "buffer": (30, 31, 33, 36, 38, 39, 41),
    "stale": (43, 44, 47, 49, 50, 52),
    "formula": (54, 56, 57, 59, 62, 63, 66, 68, 70),
    "config": (71, 72, 75, 77, 78, 80, 83, 85, 87, 89),
    "extent": (90, 92, 93, 96, 97, 100, 102, 104),
    "position": (106, 108, 109, 111, 113, 115),
    "offset": (117, 118, 120, 122, 125, 127, 128, 130),
    "length": (131, 133, 135, 137),
    "bias": (139, 140, 144, 146, 148, 149, 151, 154),
    "shard": (143, 182, 185),
    "grid": (155, 156, 159, 161, 163, 164, 168, 170),
    "backend": (167, 172, 174, 175, 177, 179, 181),
}


def named() -> set[int]:
    """The numbers in the names of test functions: `test_b143_…`, `test_b30_b31_b33_…`."""
    found: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                numbers = re.match(r"test((?:_b\d+)+)_", node.name)
                found |= {int(n) for n in re.findall(r"\d+", numbers[1])} if numbers else set()
    return found


def test_every_number_has_a_test_that_bears_it() -> None:
    wanted = {number for numbers in KINDS.values() for number in numbers}
    assert wanted - named() == set()
    assert len(wanted) == sum(map(len, KINDS.values())) == 100
