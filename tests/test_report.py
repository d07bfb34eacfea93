"""What a record and the registry say: findings, advice, tables, the figure, pages."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from rich.console import Console

from posenc import Rope, attention
from posenc.cli import run
from posenc.lab.rows import ROWS
from posenc.positions import centred
from posenc.registry import ENCODINGS, RELATED, SCALINGS, Shape
from posenc.report.advice import advice
from posenc.report.figure import draw, png
from posenc.report.findings import findings
from posenc.report.formulas import FORMULAS
from posenc.report.pages import canonical, page
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


def test_a_record_of_many_rows_has_a_panel_of_encodings_and_one_of_their_readings() -> None:
    encoded = [name for name in ROWS if "+gaps" not in name]
    readings = ["rope+yarn", "rope, 50 steps", "t5+window", "rope+gaps"]
    rows = {name: [1.5, 1.4, 1.6] for name in (*encoded, *readings)} | {"learned": [1.5, 1.4]}
    top, below = draw(record_of(rows)).axes
    assert top.get_title(loc="left") == "Encodings: trained at L = 64, read further"
    assert below.get_title(loc="left") == "Ways to read one: trained at L = 64, read further"
    assert _named(top) == (set(encoded) - {"learned"}) | {"learned stops"}
    assert _named(below) == {"rope", "t5", *readings}
    drawn = [line.get_color() for line in top.lines if line.get_marker() not in ("None", "x")]
    assert len(set(drawn)) == len(drawn) == len(encoded)  # no two encodings look alike


def _named(axes: Axes) -> set[str]:
    """The names at the ends of the lines of a panel."""
    told = {text.get_text().split("  ")[0] for text in axes.texts}
    return told - {" trained length"}


def test_a_record_of_few_rows_has_one_panel() -> None:
    rows = {"rope": [1.5, 1.4, 2.0], "rope+yarn": [1.5, 1.4, 1.5]}
    assert [axes.get_title(loc="left")[:7] for axes in draw(record_of(rows)).axes] == ["Trained"]


def test_lines_do_not_flood(capsys: pytest.CaptureFixture[str]):
    with Lines(Console()) as lines:
        lines.begin("part", 1, 0)
        for done in range(1000):
            lines.step("key", done, 1000)
        lines.finish("key", "done")
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("name", [*ENCODINGS, *SCALINGS, *RELATED])
def test_every_page_has_an_example_that_runs(name: str, capsys: pytest.CaptureFixture[str]):
    assert run(["show", name]) == 0
    assert "example" in capsys.readouterr().out
    shown = page(name)
    assert len(shown.example.splitlines()) <= 12
    assert shown.formula and shown.formula == FORMULAS[name]
    exec(compile(shown.example, name, "exec"), {})
    assert run(["show", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == shown.source


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Alibi", "alibi"), ("ALiBi", "alibi"), ("YaRN", "yarn"), ("Yarn", "yarn"),
        ("T5Bias", "t5"), ("t5bias", "t5"), ("Rope", "rope"), ("Learned", "learned"),
        ("FourierBands", "fourier"), ("AxialRope", "axial-rope"), ("axial_rope", "axial-rope"),
        ("NTKByParts", "ntk-by-parts"), ("dynamic", "dynamic-ntk"), ("DynamicNTK", "dynamic-ntk"),
        ("LongRope", "longrope"), ("QwenNTK", "qwen-ntk"), ("MRope", "mrope"), ("M-RoPE", "mrope"),
        ("LearnedScaleRope", "learned-scale-rope"), ("AxesBias", "axes"),
        ("NoPE", "none"), ("Scheme", "none"),
    ],
)  # fmt: skip
def test_a_page_is_found_by_any_of_its_names(given: str, name: str) -> None:
    assert canonical(given) == name


def test_a_name_that_is_none_is_not_found_and_every_other_has_a_figure(tmp_path: Path) -> None:
    assert canonical("alibbi") is None
    for name in ("MRope", "AxesBias", "LongRope"):
        assert run(["show", name, "--figure", str(tmp_path / f"{name}.png")]) == 0
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", [n for n, entry in ENCODINGS.items() if entry.positions])
def test_a_page_says_whether_real_cells_are_taken(name: str) -> None:
    entry, shape = ENCODINGS[name], Shape(dim=64, num_heads=4, length=16)
    scheme, cells = entry.build(shape), centred(4, 4)
    q, x = torch.randn(1, 4, 16, 16), torch.randn(1, 16, 64)
    try:
        if scheme.additive is not None:
            scheme.additive(x, cells)
        else:
            attention(q, q, q, scheme=scheme, k_pos=cells, mask=None)
        takes = True
    except ValueError:
        takes = False
    assert any("or centred for reals" in trap for trap in page(name).traps) is takes


def test_an_example_of_a_scaling_method_writes_the_method_out() -> None:
    assert "Rope(64, scaling=Yarn(factor=4.0, original_length=2048))\n" in page("yarn").example
    for name, method in SCALINGS.items():
        names: dict[str, Any] = {}
        exec(compile(page(name).example, name, "exec"), names)
        built = Rope(64, scaling=method.build(4.0, 2048))
        assert names["rope"] == built.at_length(8192)


def test_everything_with_a_page_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    words = capsys.readouterr().out.split()
    assert {*ENCODINGS, *SCALINGS, *RELATED} <= set(words)
