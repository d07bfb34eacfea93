"""The benchmark: a correctness gate, then every side in turns, then memory in fresh processes."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from posenc.bench.attention_cases import ATTENTION
from posenc.bench.peers import PEERS
from posenc.bench.rotation_cases import ROTATION
from posenc.bench.start_cases import START
from posenc.bench.timing import interleaved, quantiles
from posenc.bench.work import OURS, Case, Work, disagreement
from posenc.records import CellStore

__all__ = ["CASES", "Settings", "chosen", "growth", "measure", "points", "run_all", "times"]

CASES: dict[str, Case] = {case.name: case for case in (*ROTATION, *ATTENTION, *START)}
Report = Callable[[str], None]
MIN_ROUNDS = 3  # of calls that take many seconds each


@dataclass(frozen=True)
class Settings:
    """What the benchmark runs: cases, peers, seconds for each length of a case."""

    cases: tuple[str, ...]
    against: tuple[str, ...] = ("transformers", "transformers-compiled")
    seconds: float = 2.0
    max_length: int | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.against if name not in PEERS]
        if unknown:
            raise ValueError(f"no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")

    def lengths(self, case: Case) -> list[int]:
        """The case's lengths up to `max_length`."""
        limit = self.max_length
        return [length for length in case.lengths if limit is None or length <= limit]


def chosen(patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of cases that begin with one of these; all without any; a ValueError for none."""
    if not patterns:
        return tuple(CASES)
    for pattern in patterns:
        if not any(name.startswith(pattern) for name in CASES):
            raise ValueError(f"no case begins with {pattern!r}; there are {', '.join(CASES)}")
    return tuple(name for name in CASES if name.startswith(tuple(patterns)))


def run_all(settings: Settings, store: CellStore, report: Report) -> list[dict[str, Any]]:
    """A cell for each case and length; those that the store holds are not measured again."""
    cells = []
    for name in settings.cases:
        for length in settings.lengths(CASES[name]):
            key = f"{name}-{length}"
            cell = store.get(key)
            if cell is None:
                report(f"{CASES[name].title}, {length:,} tokens")
                cell = measure(CASES[name], length, settings)
                store.put(key, cell)
            cells.append(cell)
    return cells


def measure(case: Case, length: int, settings: Settings) -> dict[str, Any]:
    """Times, ratios and memory of one case at one length; only why, where our answer is wrong."""
    against = frozenset(settings.against)
    wrong = disagreement(case.make(case.gate_length, against))
    cell: dict[str, Any] = {"row": case.name, "title": case.title, "length": length}
    if OURS in wrong:
        return cell | {"refused": wrong[OURS]}
    work = case.make(length, against)
    sides = [name for name in work.sides if name not in wrong]
    left_out = wrong | dict(work.absent)
    cell |= {"left_out": left_out, "targets": [asdict(t) for t in _targets(case, length)]}
    cell |= {"peak_limit": case.peak_limits.get(length), "per_token": case.per_token}
    cell |= times(work, sides, settings.seconds)
    del work  # its tensors would count as memory of the processes to come
    if case.memory:
        cell["peak_bytes"] = {
            side: fresh_peak(case.name, length, side, settings.against)
            for side in sides
            if side != "flex"  # compiled again in each process
        }
    return cell


def _targets(case: Case, length: int) -> list[Any]:
    return [t for t in case.targets if t.lengths is None or length in t.lengths]


def times(
    work: Work, sides: list[str], seconds: float, *, min_rounds: int = MIN_ROUNDS
) -> dict[str, Any]:
    """Milliseconds of each side, and the ratio of ours to each other one, round by round."""
    calls = {name: partial(work.sides[name], *work.inputs) for name in sides}
    finish = torch.cuda.synchronize if work.inputs[0].is_cuda else None
    samples = interleaved(calls, seconds=seconds * len(sides), min_rounds=min_rounds, finish=finish)
    ours = np.array(samples[OURS])
    return {
        "ms": {name: quantiles(taken).as_dict(scale=1e3) for name, taken in samples.items()},
        "ratio": {
            name: quantiles(list(ours / np.array(taken))).as_dict()
            for name, taken in samples.items()
            if name != OURS
        },
    }


def fresh_peak(case: str, length: int, side: str, against: Sequence[str]) -> int | None:
    """Most resident bytes above the inputs' own during one call, in a process of its own."""
    command = [sys.executable, "-m", "posenc.bench.isolated", case, str(length), side, *against]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdigit() else None


def points(cells: Sequence[dict[str, Any]], what: str, side: str) -> list[tuple[int, float]]:
    """(length, median of `what`) of one side, where it was measured."""
    found = []
    for cell in cells:
        value = cell.get(what, {}).get(side)
        value = value["median"] if isinstance(value, dict) else value
        if value:
            found.append((cell["length"], value))
    return found


def growth(cells: Sequence[dict[str, Any]], case: str, what: str, side: str) -> float | None:
    """The exponent a of `what ~ T^a` by least squares over the lengths of a case, from three up.

    `what` is "ms" or "peak_bytes".
    """
    found = points([cell for cell in cells if cell["row"] == case], what, side)
    if len(found) < 3:
        return None
    lengths, values = np.log(np.array(found, dtype=float)).T
    return float(np.polyfit(lengths, values, 1)[0])
