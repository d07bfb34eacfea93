"""What a record and the registry say: findings, advice, tables, the figure, pages."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from posenc.cli import run
from posenc.registry import ENCODINGS, SCALINGS
from posenc.report.advice import advice
from posenc.report.figure import png
from posenc.report.findings import findings
from posenc.report.pages import page
from posenc.report.progress import Lines
from posenc.report.summary import summarise
from posenc.report.tables import print_record


def record_of(rows: dict[str, list[float]]) -> dict[str, Any]:
    """A record of extrapolation alone: two seeds, L = 64, contexts L, 2 L, …; short rows stop."""
    contexts = [64 * 2**i for i in range(max(map(len, rows.values())))]

    def reads(seed: int) -> dict[str, Any]:
        return {
            name: {
                str(c): {"nats": values[i] + 0.001 * seed, "sem": 0.01}
                if i < len(values)
                else {"error": "no such position"}
                for i, c in enumerate(contexts)
            }
            for name, values in rows.items()
        }

    results = [{"row": "any", "seed": seed, "reads": reads(seed)} for seed in (0, 1)]
    part = {
        "train_length": 64,
        "contexts": contexts,
        "seeds": [0, 1],
        "text": {"name": "a text"},
        "titles": {name: {"title": name, "note": ""} for name in rows},
        "rows": summarise(results),
    }
    machine = {"torch": "2", "processor": "a processor", "commit": None}
    return {"format": 1, "posenc": "0", "machine": machine, "extrapolation": part}


def test_findings_follow_the_figures_whichever_way_they_point():
    expected = record_of({"rope": [1.4, 3.0], "rope+yarn": [1.4, 1.5], "learned": [1.6]})
    reverse = record_of({"rope": [1.4, 1.4], "rope+yarn": [1.4, 2.5], "learned": [1.6]})
    same = record_of({"rope": [1.4, 1.4], "rope+yarn": [1.4, 1.401]})
    for record, verdict in ((expected, "holds"), (reverse, "does not hold"), (same, "cannot tell")):
        found = {f.text.split(" (")[0]: f.verdict for f in findings(record)}
        assert found["rope+yarn reads 128 bytes better than rope"] == verdict
    texts = " ".join(f.text for f in findings(expected))
    assert "learned stops at 64: no such position" in texts
    assert "worse beyond 64: rope+yarn (+0.10), rope (+1.60)" in texts
    assert "at 128: rope+yarn 1.50 < rope 3.00" in texts


def test_advice_follows_the_figures():
    first = " ".join(
        advice(record_of({"rope": [1.4, 3.0], "alibi": [1.5, 1.5], "rope+window": [1.4, 1.6]}))
    )
    assert "to read 64 (1 L): rope (1.40), before alibi (1.50)" in first
    assert "to read 128 (2 L): alibi (1.50), before rope (3.00)" in first
    assert "alibi does better for seeing more" in first
    second = " ".join(advice(record_of({"rope": [1.4, 1.4], "alibi": [1.5, 1.9]})))
    assert "to read 128 (2 L): rope (1.40), before alibi (1.90)" in second


def test_tables_and_figure_survive_any_part_missing_and_narrow_terminals():
    record = record_of({"rope": [1.4, 3.0], "a new row": [1.5, 1.5], "learned": [1.6]})
    for width in (60, 120):
        printed = io.StringIO()
        print_record(record, Console(width=width, file=printed))
        assert "a new row" in printed.getvalue()
    assert png(record, dpi=40).startswith(b"\x89PNG")
    del record["extrapolation"]
    assert png(record, dpi=40).startswith(b"\x89PNG")


def test_lines_do_not_flood(capsys: pytest.CaptureFixture[str]):
    with Lines(Console()) as lines:
        lines.begin("part", 1, 0)
        for done in range(1000):
            lines.step("key", done, 1000)
        lines.finish("key", "done")
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("name", [*ENCODINGS, *SCALINGS])
def test_every_page_has_an_example_that_runs(name: str, capsys: pytest.CaptureFixture[str]):
    assert run(["show", name]) == 0
    assert "example" in capsys.readouterr().out
    shown = page(name)
    assert len(shown.example.splitlines()) <= 12
    exec(compile(shown.example, name, "exec"), {})
    assert run(["show", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == shown.source
