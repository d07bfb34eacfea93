"""The benchmark: what it refuses, what it fits, and the memory that it holds the library to."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.bench import versions
from posenc.bench.run import CASES, Settings, chosen, fresh_peak, growth, measure
from posenc.bench.timing import interleaved
from posenc.bench.versions import built
from posenc.bench.work import OURS, Case, Work, disagreement
from posenc.cli import run
from posenc.report.speed import page, picture

pytestmark = pytest.mark.filterwarnings("ignore")


def doubled(x: Tensor) -> tuple[Tensor, ...]:
    return (2 * x,)


def work(length: int, against: frozenset[str], *, wrong: str = "") -> Work:
    del against
    sides: dict[str, Any] = {
        name: (lambda x: (2.1 * x,)) if name == wrong else doubled for name in (OURS, "peer")
    }
    sides["limit"] = lambda x: (x.clone(),)
    return Work((torch.randn(length),), sides, doubled, 1e-6, frozenset({"limit"}))


INSTALLED = {"transformers", "rotary-embedding-torch", "x-transformers"}
CASE = Case("double", "Doubling", (64,), work)
SETTINGS = Settings(("double",), (), 0.01)


def test_a_wrong_answer_of_ours_is_not_timed() -> None:
    cell = measure(replace(CASE, make=partial(work, wrong=OURS)), 64, SETTINGS)
    assert "differs from the float64 reference" in cell["refused"]
    assert "ms" not in cell


def test_a_wrong_answer_of_a_peer_leaves_it_out() -> None:
    cell = measure(replace(CASE, make=partial(work, wrong="peer")), 64, SETTINGS)
    assert list(cell["left_out"]) == ["peer"]
    assert set(cell["ratio"]) == {"limit"}
    assert "| peer | " in page({"cells": [cell]}) and "left out: differs" in page({"cells": [cell]})


def test_a_peer_that_fails_is_left_out_and_a_failure_of_ours_is_not() -> None:
    def failing(x: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("no kernel\nfor this")

    made = work(4, frozenset())
    broken = replace(made, sides=made.sides | {"peer": failing})
    assert disagreement(broken) == {"peer": "failed: RuntimeError: no kernel for this"}
    with pytest.raises(RuntimeError, match="no kernel"):
        disagreement(replace(made, sides=made.sides | {OURS: failing}))


def test_a_device_is_waited_for_once_a_turn() -> None:
    told: list[str] = []
    interleaved(
        {"a": partial(told.append, "a")},
        seconds=0.0,
        min_rounds=2,
        max_rounds=2,
        finish=partial(told.append, "done"),
    )
    assert told[:4] == ["a", "done", "a", "done"] and told[-1] == "done"
    assert told.count("done") == 4 and told.count("a") > 4  # two to warm up, two rounds of many


def cell(length: int, ms: float, **more: Any) -> dict[str, Any]:
    return {
        "row": "x",
        "title": "X",
        "length": length,
        "ms": {OURS: {"median": ms}, "other": {"median": 2 * ms}},
        "ratio": {"other": {"median": 0.5, "p10": 0.4, "p90": 0.6}},
        "left_out": {},
        "targets": [{"beside": "other", "ratio": 0.4, "lengths": None, "what": "peak_bytes"}],
        "peak_bytes": {OURS: 30e6, "other": 60e6},
        **more,
    }


def test_what_memory_is_to_reach() -> None:
    told = page({"cells": [cell(8, 1.0)]})
    assert "| X | 8 | other | 60 MB | 0.50 of it, 0.40: not reached |" in told
    assert "0.50 (0.40 to 0.60) |  |" in told  # no verdict on the time
    limited = page({"cells": [cell(8, 1.0, peak_limit=31e6)]})
    assert "| X | 8 | posenc | 30 MB | 31 MB: reached |" in limited
    assert "not reached |" in page({"cells": [cell(8, 1.0, peak_limit=29e6)]}).split("posenc")[1]


def test_the_time_of_a_token_over_lengths() -> None:
    cells = [cell(1000, 2.0, per_token=1.15), cell(2000, 4.8, per_token=1.15)]
    told = page({"cells": cells})
    assert "| X | 1,000: 2, 2,000: 2.4 | 1.20, 1.15: not reached |" in told
    assert "a token" not in page({"cells": [cell(1000, 2.0), cell(2000, 4.8)]})


def test_a_peer_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rotary_embedding_torch", None)
    made = CASES["rotate-adjacent"].make(4, frozenset({"rotary-embedding-torch"}))
    assert made.absent == {"rotary-embedding-torch": "rotary_embedding_torch is not installed"}
    assert "rotary-embedding-torch" not in made.sides


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("decode")])
def test_every_case_agrees_with_its_reference(name: str) -> None:
    case = CASES[name]
    made = case.make(case.gate_length, frozenset(INSTALLED))
    assert made.absent == {}
    assert disagreement(made) == {}
    assert len(made.sides) > 1


@pytest.mark.parametrize("which", [0, 1])
def test_nan_in_any_result_is_no_agreement(which: int) -> None:
    def side(*x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part * math.nan if index == which else part for index, part in enumerate(x))

    made = Work((torch.ones(2), torch.ones(2)), {OURS: side}, lambda *x: x, 1e-6)
    assert set(disagreement(made)) == {OURS}


def test_ratios_are_taken_inside_a_round() -> None:
    calls: list[str] = []
    samples = interleaved(
        {name: partial(calls.append, name) for name in "ab"}, seconds=0.0, min_rounds=4
    )
    assert [len(samples[name]) for name in "ab"] == [4, 4]
    assert calls[0] == "a" and calls[-1] == "a"  # every round begins with another side


def test_growth_is_the_slope_of_the_logarithms() -> None:
    cells = [{"row": "x", "length": n, "ms": {"a": {"median": 3e-3 * n**2}}} for n in (8, 64, 512)]
    assert growth(cells, "x", "ms", "a") == pytest.approx(2.0)
    assert growth(cells[:2], "x", "ms", "a") is None


def test_a_bias_by_distance_costs_no_memory_of_its_own() -> None:
    """Beside the output, 16.8 MB at 8,192 tokens: a dense mask alone would take 2.1 GB."""
    peak = fresh_peak("attention-t5", 8192, OURS, ())
    assert peak is not None
    assert peak - 4 * 8 * 8192 * 64 <= 64e6


def test_the_gradient_of_a_bias_takes_memory_linear_in_length() -> None:
    peaks = [fresh_peak("attention-t5-training", n, OURS, ()) for n in (2048, 4096)]
    dense = fresh_peak("attention-t5-training", 4096, "dense mask", ())
    assert peaks[0] is not None and peaks[1] is not None and dense is not None
    assert peaks[1] <= 2.5 * peaks[0]
    assert peaks[1] <= dense / 3


def test_the_command_measures_resumes_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "--case", "rotate-decode-a", "--seconds", "0.01", "--against", ""]
    assert run([*arguments, "--out", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    record = json.loads(told.out)
    assert record == json.loads((tmp_path / "bench.json").read_text())
    assert set(record["cells"][0]["ms"]) == {OURS, "limit"}
    assert "One decode token" in told.err
    assert run([*arguments, "--out", str(tmp_path)]) == 0
    assert (
        "One decode token, 32 + 8 heads, in place, adjacent pairs, 1" not in capsys.readouterr().err
    )
    assert "| One decode token" in page(record)
    assert picture(record) is None  # one length is no curve


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--case", "nothing"], "no case begins with 'nothing'"),
        (["--against", "flashy"], "no peer flashy; there are transformers"),
        (["--baseline", "no-such-ref"], "takes a commit, branch or tag"),  # and measures nothing
    ],
)
def test_what_the_command_cannot_use(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err


SLOWER = """
import time as _time
_fast = rotate_qk
def rotate_qk(*given, **options):
    _time.sleep(0.05)
    return _fast(*given, **options)
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "posenc"
version = "0"
[tool.hatch.build.targets.wheel]
packages = ["src/posenc"]
"""


def checkout_with_a_slower_tag(root: Path) -> Path:
    """A small git checkout of this package, whose tag `older` waits 50 ms in `rotate_qk`."""
    package, now = root / "src" / "posenc", Path(versions.FOLDER).parent
    shutil.copytree(now, package, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text(PROJECT)
    surface = package / "rotate.py"
    fast = surface.read_text()
    surface.write_text(fast + SLOWER)
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "older"], ["tag", "older"]):
        subprocess.run(["git", *who, *command], cwd=root, check=True)
    surface.write_text(fast)
    return package


def test_an_older_version_is_built_and_measured_beside_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = checkout_with_a_slower_tag(tmp_path / "clone")
    monkeypatch.setattr(versions, "FOLDER", package / "bench")
    monkeypatch.setattr(versions, "ROUNDS", 1)
    command = ["bench", "--case", "rotate-decode-a", "--seconds", "0.01", "--against", ""]
    out = ["--baseline", "older", "--out", str(tmp_path / "out"), "--json"]
    assert run([*command, *out]) == 0
    record = json.loads(capsys.readouterr().out)
    assert 0 < record["cells"][0]["baseline_ratio"] < 0.5
    assert "the baseline version" in page(record)


def test_a_baseline_that_is_no_ref(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes a commit, branch or tag"):
        built("no-such-ref", tmp_path)


def test_the_picture_has_a_panel_for_each_growing_case() -> None:
    cells = [
        {
            "row": "x",
            "title": "X",
            "length": n,
            "ms": {OURS: {"median": n}},
            "peak_bytes": {OURS: n},
        }
        for n in (8, 64, 512)
    ]
    image = picture({"cells": cells}, dpi=30)
    assert image is not None and image.startswith(b"\x89PNG")


def test_cases_are_chosen_by_how_they_begin() -> None:
    assert chosen(["rotate-decode", "attention-t5"]) == (
        "rotate-decode",
        "rotate-decode-adjacent",
        "attention-t5",
        "attention-t5-training",
    )


def test_doctor_names_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "native" in found["rotate on the CPU"] or "eager" in found["rotate on the CPU"]
    assert str(torch.get_num_threads()) in found["torch"]
