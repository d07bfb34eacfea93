"""bench/gpu.py on the CPU: its code at tiny sizes, and what it keeps of a run that goes wrong."""

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is missing"),
]


@pytest.fixture(name="script")
def made(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    for name in ("gpu", "gpu_cases", "gpu_checks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("gpu")


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "gpu.json").read_text())


def test_a_dry_run_of_attention(script: ModuleType, tmp_path: Path, capsys: Any) -> None:
    assert script.main(["--out", str(tmp_path), "--dry-run", "--part", "attention"]) == 0
    cells = record(tmp_path)["parts"]["attention"]
    assert [cell["row"] for cell in cells] == [
        "gpu-attention-alibi",
        "gpu-attention-t5",
        "gpu-decode-alibi",
        "gpu-decode-t5",
    ]
    assert set(cells[0]["ratio"]) == {"posenc, sdpa", "no position", "dense mask"}
    assert "failed: none" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_of_everything(script: ModuleType, tmp_path: Path) -> None:
    assert script.main(["--out", str(tmp_path), "--dry-run"]) == 0
    made = record(tmp_path)
    assert list(made["parts"]) == list(script.PARTS)
    assert len(made["parts"]["checks"]) >= 10
    assert {"eager", "compiled", "limit"} <= set(made["parts"]["rotation"][0]["ratio"])


def test_a_failure_is_kept_and_told(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: Any = importlib.import_module("gpu_checks")

    def wrong(device: str) -> None:
        raise AssertionError(f"wrong on {device}")

    monkeypatch.setattr(checks, "CHECKS", {"wrong": wrong, "right": lambda device: None})
    assert script.main(["--out", str(tmp_path), "--dry-run", "--part", "checks"]) == 1
    kept = record(tmp_path)["parts"]["checks"]
    assert kept[0]["refused"] == "AssertionError: wrong on cpu"
    assert kept[1]["passed"]


def test_what_takes_too_long_is_stopped_and_what_is_late_does_not_start(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "EACH", 0.05)
    run = script.Run(tmp_path, "cpu")
    stopped = run.attempt("slow", lambda: time.sleep(5))
    assert stopped["refused"].startswith("TimeoutError") and stopped["took"] < 4
    run.end = 0.0
    assert run.attempt("late", dict)["refused"] == "out of time"


def test_each_row_is_on_disk_before_the_next_begins(script: ModuleType, tmp_path: Path) -> None:
    run = script.Run(tmp_path, "cpu", {"parts": {}})
    script._keep(run, "checks", {"row": "a"})
    assert record(tmp_path)["parts"] == {"checks": [{"row": "a"}]}


def test_the_parts_fit_into_eight_minutes(script: ModuleType) -> None:
    assert sum(seconds for seconds, _ in script.PARTS.values()) <= script.LIMIT < 480
