"""Each row of docs/differences.md: the default, and the readings that have a name or a refusal."""

import re
from pathlib import Path

import pytest

from differences import ROWS

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("differences.md", "differences.zh-CN.md")


def rows_of(page: str) -> list[str]:
    """The first cells of the tables of a page."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines if line.startswith("|")]
    return [cell for cell in cells if cell not in ("difference", "分歧", "---")]


def test_every_row_of_the_page_is_checked_and_every_check_is_a_row() -> None:
    assert rows_of("differences.md") == list(ROWS)
    assert len(rows_of("differences.zh-CN.md")) == len(ROWS)


def test_both_pages_name_the_same_options() -> None:
    code = [
        [sorted(re.findall(r"`[^`]+`", line)) for line in text.splitlines() if line.startswith("|")]
        for text in ((DOCS / p).read_text("utf-8") for p in PAGES)
    ]
    assert code[0] == code[1]


@pytest.mark.parametrize("name", ROWS)
def test_the_row_is_what_it_says(name: str) -> None:
    ROWS[name]()
