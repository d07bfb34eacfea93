"""Edit the library one fault at a time and demand that the tests notice.

    python scripts/mutants.py                        all of them, about 4 minutes on two cores
    python scripts/mutants.py --sample 8 --seed 0    a fixed sample, as CI does
    python scripts/mutants.py --only yarn            those whose name says so

Each mutant is a copy of the source in a temporary folder with one text replaced, and a run of the
test files that should fail, in a process forked off after torch is loaded. Prints a table; exit code
1 where a mutant survives, breaks the import or no longer applies. Without --sample or --only the
unchanged package must pass first: red tests would kill anything.
"""

import argparse
import contextlib
import importlib
import io
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from hatch_build import FLAGS, KERNELS
from mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
WORKERS = 2
PYTEST = (
    *("-x", "-q", "--timeout=120", "--tb=line", "--assert=plain"),
    *("-p", "no:cacheprovider", "-p", "pytest_timeout"),
    *("-m", "not slow", "-k", "not compil"),
)
# Loaded once, before the forks; nothing of ours, and only what many test files import.
SHARED = ("torch", "torch._dynamo.testing", "torch.utils.checkpoint", "hypothesis", "pytest")


@dataclass(frozen=True)
class Result:
    """How a run of the tests over one copy ended."""

    name: str
    outcome: str  # killed, SURVIVED, BROKEN, DOES NOT APPLY; of the unchanged package passed, RED
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:14} {self.seconds:5.1f} s  {self.name}{self.detail}"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    chosen = [m for m in MUTANTS if options.only in m.name]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    if not chosen:
        print(f"no mutant is named like {options.only!r}", file=sys.stderr)
        return 2
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in SHARED:
        importlib.import_module(name)
    begin = time.monotonic()
    tasks: list[Mutant | None] = [None, *chosen] if len(chosen) == len(MUTANTS) else [*chosen]
    results: list[Result] = []
    with multiprocessing.get_context("fork").Pool(WORKERS, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(outcome_of, tasks):
            print(result, flush=True)
            results.append(result)
    killed = sum(result.outcome == "killed" for result in results)
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - begin:.0f} s")
    return 0 if all(result.outcome in ("killed", "passed") for result in results) else 1


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Edit one fault at a time; the tests must fail.")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them")
    parser.add_argument("--seed", type=int, default=0, help="which N (default 0)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only names that hold TEXT")
    return parser.parse_args(arguments)


def outcome_of(mutant: Mutant | None) -> Result:
    """Apply a mutant to a copy and run its tests; None is the unchanged package and all tests."""
    with tempfile.TemporaryDirectory(prefix="posenc-mutant-") as folder:
        shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
        if mutant is None:
            files = sorted({file for each in MUTANTS for file in each.tests})
            return tested("the unchanged package", Path(folder), files, ("passed", "RED"))
        is_command = mutant.file.startswith("posenc_cli/")
        path = Path(folder) / mutant.file if is_command else Path(folder) / "posenc" / mutant.file
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        if source.count(mutant.old) != 1:
            found = f": {mutant.file} holds {mutant.old!r} {source.count(mutant.old)} times"
            return Result(mutant.name, "DOES NOT APPLY", 0.0, found)
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        if path.suffix in (".cpp", ".h") and not compiled(path.parent):
            return Result(mutant.name, "BROKEN", 0.0, ": it does not compile")
        return tested(mutant.name, Path(folder), mutant.tests, ("SURVIVED", "killed"))


def compiled(folder: Path) -> bool:
    """Build the kernels of a copy anew, as an installation does."""
    compiler = os.environ.get("CXX", "c++").split()
    commands = [
        [*compiler, *FLAGS, rounding, str(folder / source), "-o", str(folder / library)]
        for library, (source, rounding) in KERNELS.items()
    ]
    return all(
        subprocess.run(x, capture_output=True, check=False).returncode == 0 for x in commands
    )


def tested(name: str, folder: Path, files: Sequence[str], outcomes: tuple[str, str]) -> Result:
    """Run the test files over the package in a folder, here and now: this process has no other."""
    begin, output = time.monotonic(), io.StringIO()
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)  # of tests that start an interpreter
    os.chdir(ROOT)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest_over(folder, files)
    passed, failed = outcomes
    seconds = time.monotonic() - begin
    if code in (0, 1):
        return Result(
            name, failed if code else passed, seconds, last_failure(output) if code else ""
        )
    lines = output.getvalue().strip().splitlines() or [f"exit code {code}"]
    return Result(name, "BROKEN", seconds, f": {lines[-1]}")


def pytest_over(folder: Path, files: Sequence[str]) -> int:
    pytest = importlib.import_module("pytest")
    posenc = importlib.import_module("posenc")
    assert str(posenc.__file__).startswith(str(folder)), f"tests would import {posenc.__file__}"
    return int(pytest.main([*PYTEST, *(str(ROOT / "tests" / file) for file in files)]))


def last_failure(output: io.StringIO) -> str:
    """The test that noticed."""
    failed = [line for line in output.getvalue().splitlines() if line.startswith("FAILED")]
    return f"  <- {failed[-1].split('::')[-1].split('[')[0].split(' - ')[0]}" if failed else ""


if __name__ == "__main__":
    sys.exit(main())
