"""Everything that needs a GPU, in one run of less than eight minutes: checks, then times.

    PYTHONPATH=src python bench/gpu.py --out DIR
    PYTHONPATH=src python bench/gpu.py --out DIR --dry-run      # on the CPU, tiny sizes

Needs torch and triton, and no installation. Writes DIR/gpu.json anew after each check and each row:
what kills the run loses nothing that was done. Exit code 1 where a check failed.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 450.0  # seconds of the whole run
EACH = 75.0  # seconds of one check or row: a compiler that hangs ends no other row
AGAINST = frozenset({"transformers", "transformers-compiled", "liger", "flash-attn"})
SECONDS = 0.15  # of timing, for each side of a row
TESTS = ("tests/test_triton.py", "tests/test_flex.py", "tests/test_values.py")
Cell = dict[str, Any]


@dataclass
class Run:
    """The record so far, where it goes, and the time that is left."""

    out: Path
    device: str
    record: dict[str, Any] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)
    end: float = LIMIT  # of the part that runs, in seconds after the start

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def save(self) -> None:
        from posenc.records import write_atomically  # noqa: PLC0415

        self.record["seconds"] = round(self.elapsed, 1)
        write_atomically(self.out / "gpu.json", json.dumps(self.record, indent=1))

    def attempt(self, name: str, work: Callable[[], Cell]) -> Cell:
        """What the work returns, or why it did not: out of time, too long, or its error."""
        begin, left = self.elapsed, self.end - self.elapsed
        if left <= 0:
            made: Cell = {"row": name, "refused": "out of time"}
        else:
            try:
                with _limited(min(EACH, left)):
                    made = work()
            except Exception as error:
                told = " ".join(str(error).split())[:500]
                made = {"row": name, "refused": f"{type(error).__name__}: {told}"}
        made["took"] = round(self.elapsed - begin, 2)
        return made


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def checks(run: Run) -> None:
    """Correctness, without pytest."""
    from gpu_checks import CHECKS  # noqa: PLC0415

    for name, check in CHECKS.items():

        def made(check: Callable[[str], None] = check, name: str = name) -> Cell:
            check(run.device)
            return {"row": name, "passed": True}

        cell = run.attempt(name, made)
        _keep(run, "checks", cell)
        print(f"{cell['took']:6.1f} s  {name}: {cell.get('refused', 'ok')}", flush=True)


def tests(run: Run) -> None:
    """The test files that know a GPU, where pytest and hypothesis are installed."""
    missing = [name for name in ("pytest", "hypothesis") if not importlib.util.find_spec(name)]
    if missing or run.device == "cpu":
        reason = f"{' and '.join(missing)} not installed" if missing else "there is no GPU"
        _keep(run, "tests", {"row": "pytest", "skipped": reason})
        return
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT)]
    options = ["-p", "no:cacheprovider", "--tb=short", "-m", "not slow", *TESTS]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))

    def made() -> Cell:
        done = subprocess.run(
            [*command, *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, min(EACH, run.end - run.elapsed)),
            env=os.environ | {"PYTHONPATH": paths},
        )
        told = done.stdout[-4000:]
        state = {"passed": True} if done.returncode == 0 else {"refused": told}
        return {"row": "pytest", **state, "told": told}

    cell = run.attempt("pytest", made)
    _keep(run, "tests", cell)
    print(f"{cell['took']:6.1f} s  pytest: {'ok' if 'passed' in cell else cell['refused'][-300:]}")


def rotation(run: Run) -> None:
    """Queries and keys from one token to 65,536, beside peers and the bandwidth of a copy."""
    from gpu_cases import rotation_cases  # noqa: PLC0415

    _measured(run, "rotation", rotation_cases(run.device))


def attention(run: Run) -> None:
    """Biases of distance through FlexAttention, beside no bias and beside dense masks."""
    from gpu_cases import attention_cases  # noqa: PLC0415

    _measured(run, "attention", attention_cases(run.device))


def training(run: Run) -> None:
    """Forward and backward of both."""
    from gpu_cases import training_cases  # noqa: PLC0415

    _measured(run, "training", training_cases(run.device))


PARTS: dict[str, tuple[float, Callable[[Run], None]]] = {  # seconds, at most
    "checks": (150.0, checks),
    "rotation": (120.0, rotation),
    "attention": (80.0, attention),
    "training": (60.0, training),
    "tests": (40.0, tests),
}


def _measured(run: Run, part: str, cases: Sequence[Any]) -> None:
    for case in cases:
        wrong = run.attempt(case.name, lambda case=case: {"wrong": _wrong(case)})
        if "refused" in wrong:
            _keep(run, part, {**wrong, "title": case.title, "length": case.gate_length})
            continue
        for length in case.lengths:
            cell = run.attempt(
                case.name,
                lambda case=case, length=length, wrong=wrong: _cell(case, length, wrong["wrong"]),
            )
            cell |= {"title": case.title, "length": length}
            _keep(run, part, cell)
            print(_line(cell), flush=True)


def _wrong(case: Any) -> dict[str, str]:
    """Peers that disagree with float64; an error where we do."""
    from posenc.bench.work import OURS, disagreement  # noqa: PLC0415

    wrong = disagreement(case.make(case.gate_length, AGAINST))
    if OURS in wrong:
        raise AssertionError(wrong[OURS])
    return wrong


def _cell(case: Any, length: int, wrong: dict[str, str]) -> Cell:
    from posenc.bench.run import times  # noqa: PLC0415

    work = case.make(length, AGAINST)
    on_gpu = work.inputs[0].is_cuda
    sides = [name for name in work.sides if name not in wrong]
    targets = [t for t in case.targets if t.lengths is None or length in t.lengths]
    cell = {
        "row": case.name,
        "left_out": wrong | dict(work.absent),
        "targets": [asdict(target) for target in targets],
        **(times(work, sides, SECONDS) if on_gpu else times(work, sides, 0.0, min_rounds=1)),
        "moved_bytes": 2 * sum(x.nbytes for x in work.inputs),
    }
    if on_gpu:
        cell["peak_bytes"] = {name: _peak(work, name) for name in sides}
    return cell


def _peak(work: Any, side: str) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work.sides[side](*work.inputs)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _keep(run: Run, part: str, cell: Cell) -> None:
    run.record["parts"].setdefault(part, []).append(cell)
    run.save()


def _line(cell: Cell) -> str:
    start = f"{cell['title']}, {cell['length']:,}: "
    if "refused" in cell:
        return start + cell["refused"]
    mine = cell["ms"]["posenc"]["median"]
    rate = f" {cell['moved_bytes'] / mine / 1e6:,.0f} GB/s" if "otation" in cell["title"] else ""
    ratios = (f"{ratio['median']:.2f} {name}" for name, ratio in cell["ratio"].items())
    return f"{start}{mine:.4f} ms{rate}; of {', '.join(ratios)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for; 1 where a check or a comparison failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of gpu.json")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, tiny sizes")
    parser.add_argument("--part", choices=PARTS, action="append", help="only these parts")
    options = parser.parse_args(arguments)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is loaded
    elif not torch.cuda.is_available():
        parser.error("there is no CUDA device; --dry-run runs the same code on the CPU")
    run = Run(options.out, "cpu" if options.dry_run else "cuda")
    run.record |= {"machine": _machine(run.device), "command": sys.argv[1:], "parts": {}}
    spent = 0.0
    for name, (seconds, part) in PARTS.items():
        if options.part and name not in options.part:
            continue
        spent += seconds
        run.end = min(spent, LIMIT)  # what a part leaves is for those after it
        part(run)
        run.save()
    cells = [cell for part in run.record["parts"].values() for cell in part]
    failed = [cell["row"] for cell in cells if "refused" in cell]
    print(f"{run.elapsed:.0f} s, written: {run.out / 'gpu.json'}; failed: {failed or 'none'}")
    return int(bool(failed))


def _machine(device: str) -> dict[str, Any]:
    from posenc.records import machine  # noqa: PLC0415

    here = machine()
    if device == "cuda":
        here["gpu"] = torch.cuda.get_device_name()
        here["capability"] = list(torch.cuda.get_device_capability())
    found = importlib.util.find_spec("triton")
    if found is not None:
        import triton  # noqa: PLC0415

        here["triton"] = triton.__version__
    return here


if __name__ == "__main__":
    sys.exit(main())
