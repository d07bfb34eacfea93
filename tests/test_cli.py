"""The command line: what it prints, what it keeps, how it fails."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import posenc
from posenc import compare as compare_module
from posenc import records
from posenc.cli import cli, main, run
from posenc.lab import BUDGETS, Cell, run_cell
from posenc.lab import cells as real_cells
from posenc.lab.corpus import load
from posenc.registry import ENCODINGS, SCALINGS

SIZE = ("--batch-size", "1", "--length", "16", "--width", "32", "--heads", "2")
CHOOSE = ("choose", "--max-length", "8", "--train-length", "8")
FEW = {"none", "sinusoidal", "learned", "rope", "alibi"}
TEXT = "\n".join(f"def f{i}(x):\n    return x + {i}" for i in range(400))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sequence[str]:
    """A comparison of seconds: few rows, two steps, one window; models run in this process."""
    (tmp_path / "text.py").write_text(TEXT)
    budget = replace(
        BUDGETS["quick"], name="tiny", length=8, num_layers=1, dim=16, num_heads=2, steps=2,
        batch_size=2, num_windows=4, num_scored=2, factors=(0.5, 1, 2),
    )  # fmt: skip
    monkeypatch.setitem(BUDGETS, "tiny", budget)
    budgets = {param.name: param for param in cli.commands["compare"].params}["budget"]
    monkeypatch.setattr(budgets, "callback", None)  # knows the real ones alone
    monkeypatch.setattr(
        compare_module, "ENCODINGS", {name: ENCODINGS[name] for name in ENCODINGS if name in FEW}
    )
    monkeypatch.setattr(
        compare_module,
        "cells",
        lambda budget, seeds: [c for c in real_cells(budget, seeds) if c.row in FEW],
    )
    monkeypatch.setattr(compare_module, "run_cells", run_here)
    text, out = str(tmp_path / "text.py"), str(tmp_path / "out")
    return ("compare", "--budget", "tiny", "--text", text, "--out", out, *SIZE)


def run_here(
    cells: Sequence[Cell],
    budget: Any,
    text: Path,
    *,
    workers: int,
    on_step: Callable[[str, int, int], None],
    on_result: Callable[[Cell, dict[str, Any]], None],
) -> None:
    corpus = load(text)
    for cell in cells:
        result = run_cell(cell, budget, corpus, lambda *s, key=cell.key: on_step(key, *s))
        on_result(cell, result)


def stored(out: Path) -> dict[str, float]:
    return {path.name: path.stat().st_mtime_ns for path in out.rglob("cells/*/*.json")}


def leftovers(out: Path) -> list[Path]:
    return [path for path in out.rglob("*") if path.name.endswith(".part")]


def test_compare_writes_one_record_one_figure_and_prints_what_follows(
    tiny: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run([*tiny, "--seeds", "2"]) == 0
    printed = capsys.readouterr()
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert set(record["cost"]["rows"]) == FEW
    assert record["extrapolation"]["seeds"] == [0, 1]
    assert {"none", "learned", "rope", "rope+yarn"} <= set(record["extrapolation"]["rows"])
    assert record["extrapolation"]["rows"]["rope"]["16"]["num_seeds"] == 2
    assert "error" in record["extrapolation"]["rows"]["learned"]["16"]
    assert {"torch", "commit", "processor", "date"} <= set(record["machine"])
    assert (tmp_path / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")
    for expected in ("Time: batch 1", "Memory", "Beyond the trained length, L = 8", "±", "stops",
                     "What the figures show", "What to choose"):  # fmt: skip
        assert expected in printed.out
    assert "encodings; --budget full" not in printed.err  # none of these is left out
    assert "cost [5/5]" in printed.err  # progress, line by line where nobody watches
    assert "extrapolation [10/10]" in printed.err
    assert not leftovers(tmp_path)


def test_the_same_command_again_repeats_nothing(
    tiny: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(tiny) == 0
    before = stored(tmp_path / "out")
    capsys.readouterr()
    assert run(tiny) == 0
    assert stored(tmp_path / "out") == before
    assert "cost: 5 of 5 cells are finished already" in capsys.readouterr().err


def test_ctrl_c_keeps_finished_cells_and_says_how_to_go_on(
    tiny: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    def two_then_interrupt(cells: Sequence[Cell], *rest: Any, **named: Any) -> None:
        run_here(cells[:2], *rest, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(compare_module, "run_cells", two_then_interrupt)
    assert run(tiny) == 130
    message = capsys.readouterr().err.splitlines()[-1]
    assert "stopped; finished cells are kept in" in message
    before = stored(tmp_path / "out")
    assert len(before) == 5 + 2
    monkeypatch.setattr(compare_module, "run_cells", run_here)
    assert run(tiny) == 0
    after = stored(tmp_path / "out")
    assert len(after) == 10
    assert before.items() <= after.items()


def test_a_killed_process_resumes_without_repeating(tmp_path: Path):
    command = [sys.executable, "-m", "posenc", "compare", "--only", "cost", "--out", "out", *SIZE]
    where: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **where) as process:
        assert process.stderr is not None
        while len(stored(tmp_path)) < 2 and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    before = stored(tmp_path)
    quick = [entry for entry in ENCODINGS.values() if not entry.only_full]
    assert 2 <= len(before) < len(quick)
    done = subprocess.run(command, capture_output=True, text=True, check=True, **where)
    assert before.items() <= stored(tmp_path).items()
    assert len(stored(tmp_path)) == len(quick)
    assert done.stderr.startswith(
        f"cost: {len(quick)} of {len(ENCODINGS)} encodings; --budget full"
    )
    assert "cells are finished already" in done.stderr
    assert "Traceback" not in done.stderr


def test_models_train_in_worker_processes(
    tiny: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from posenc.lab import run_cells  # noqa: PLC0415

    monkeypatch.setattr(compare_module, "run_cells", run_cells)
    monkeypatch.setattr(compare_module, "cells", lambda b, s: real_cells(b, s)[:2])
    assert run([*tiny, "--only", "extrapolation", "--workers", "1"]) == 0
    assert len(stored(tmp_path / "out")) == 2


def test_a_run_that_dies_is_one_line_and_exit_code_1(
    tiny: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("rope-seed0 failed: out\nof memory")

    monkeypatch.setattr(compare_module, "run_cells", dies)
    assert run([*tiny, "--only", "extrapolation"]) == 1
    assert "rope-seed0 failed: out of memory" in only_line(capsys)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tiny: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "replace", full)
        assert run([*tiny, "--only", "cost"]) == 1
    line = only_line(capsys)
    assert "cannot write" in line and "No space left on device" in line and "expected" in line
    assert not leftovers(tmp_path) and not stored(tmp_path / "out")
    assert run([*tiny, "--only", "cost"]) == 0


def test_one_part_alone_keeps_the_other_of_an_earlier_run(tiny: Sequence[str], tmp_path: Path):
    assert run([*tiny, "--only", "extrapolation"]) == 0
    assert run([*tiny, "--only", "cost"]) == 0
    record = json.loads((tmp_path / "out" / "record.json").read_text())
    assert set(record) >= {"cost", "extrapolation"}


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The error: a single line, after any progress, and no traceback."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("posenc: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        (["compare", "--length", "0"], "0", "x>=1"),
        (["compare", "--length", "nan"], "nan", "integer"),
        (["compare", "--seeds", "0"], "0", "x>=1"),
        (["compare", "--seeds", "-3"], "-3", "x>=1"),
        (["compare", "--batch-size", "1.5"], "1.5", "integer"),
        (["compare", "--width", "10", "--heads", "3"], "10 and 3", "multiple"),
        (["compare", "--budget", "quik"], "quik", "quick"),
        (["compare", "--budget", "zzz"], "zzz", "quick, full"),
        (["compare", "--only", "speed"], "speed", "'cost', 'extrapolation'"),
        (["compare", "--workers", "0"], "0", "x>=1"),
        (["compare", "--lenght", "8"], "--lenght", "--length"),
        (["compare", "--text", "missing.txt"], "missing.txt", "expected a file or folder"),
        (["compare", "--text", "empty.txt"], "empty.txt", "expected a file or folder"),
        (["compare", "--text", "binary.bin"], "binary.bin", "expected a file or folder"),
        (["compare", "--text", "short.txt"], "short.txt", "expected a file or folder"),
        (["compare", "--text", "hollow"], "hollow", "expected a file or folder"),
        (["compare", "--out", "short.txt"], "short.txt", "folder"),
        (["choose", "--max-length", "8"], "--train-length", "Missing"),
        (["choose", "--max-length", "0", "--train-length", "8"], "0", "x>=1"),
        (["choose", "--max-length", "nan", "--train-length", "8"], "nan", "integer"),
        ([*CHOOSE, "--checkpoint", "lama"], "lama", "llama"),
        ([*CHOOSE, "--task", "x"], "x", "retrieval"),
        ([*CHOOSE, "--memory", "nan"], "nan", "8GB"),
        ([*CHOOSE, "--model-shape", "3"], "3", "32x8x128"),
        ([*CHOOSE, "--record", "no.json"], "no.json", "record.json"),
        ([*CHOOSE, "--record", "short.txt"], "short.txt", "record"),
        ([*CHOOSE, "--record", "other.json"], "other.json", "format"),
        (["show", "alibbi"], "alibbi", "alibi"),
        (["show", "zzzz"], "zzzz", "rope"),
        (["show"], "NAME", "Missing"),
        (["chose"], "chose", "choose"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_exit_code_2_and_one_line_with_given_and_expected(
    arguments: list[str], given: str, expected: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hollow").mkdir()
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "short.txt").write_text("three words only")
    (tmp_path / "other.json").write_text("{}")
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("posenc: ")
    assert given in line and expected in line
    assert not (tmp_path / "posenc-compare").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_text_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "secret.txt").write_text(TEXT)
    (tmp_path / "secret.txt").chmod(0)
    assert run(["compare", "--text", str(tmp_path / "secret.txt")]) == 2
    assert "secret.txt" in only_line(capsys)


def test_traceback_shows_where_an_error_came_from(capsys: pytest.CaptureFixture[str]):
    assert run(["--traceback", "show", "zzzz"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(_: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("posenc.report.pages.print_registry", broken)
    assert run(["list"]) == 1
    assert only_line(capsys) == "posenc: ZeroDivisionError: a b"


def test_version_help_and_list(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"posenc {posenc.__version__}\n"
    assert run([]) == 0
    assert "compare" in capsys.readouterr().out
    assert run(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*ENCODINGS, *SCALINGS))
    assert run(["list", "--json"]) == 0
    assert {e["name"] for e in json.loads(capsys.readouterr().out)["encodings"]} == set(ENCODINGS)
