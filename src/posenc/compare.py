"""`posenc compare`: every cell of cost and extrapolation, once; then one record and one figure."""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import posenc
from posenc.bench import Effort, Size, measure
from posenc.lab import BUDGETS, ROWS, Cell, Corpus, cells, load, run_cells, settings
from posenc.lab.rows import reads
from posenc.records import CellStore, machine, write_atomically
from posenc.registry import ENCODINGS
from posenc.report.progress import Reporter
from posenc.report.summary import summarise

__all__ = ["PARTS", "Plan", "RunError", "compare", "read_record", "write_record"]

PARTS = ("cost", "extrapolation")
FORMAT = 1
TIMING_SECONDS = {"quick": 30.0, "full": 240.0}  # for all rows together, warm-up not included


class RunError(RuntimeError):
    """A run that cannot go on, in one line; finished cells stay."""


@dataclass(frozen=True)
class Plan:
    """What one command asks for."""

    size: Size
    budget: str
    corpus: Corpus | None  # None where extrapolation is not asked for
    text: Path | None
    num_seeds: int | None  # None: the budget's own number of them
    out: Path
    workers: int
    parts: Sequence[str] = PARTS

    @classmethod
    def of(
        cls,
        *,
        batch_size: int = 8,
        length: int = 512,
        width: int = 768,
        heads: int = 12,
        text: Path | None = None,
        seeds: int | None = None,
        budget: str = "quick",
        out: Path = Path("posenc-compare"),
        workers: int = 2,
        only: str | None = None,
    ) -> "Plan":
        """From the options of the command; the text is read, for a bad one should not cost minutes.

        Raises ValueError or OSError, in one line, where something cannot be used.
        """
        if width % heads:
            raise ValueError(f"--width must be a multiple of --heads, got {width} and {heads}")
        if out.exists() and not out.is_dir():
            raise ValueError(f"--out must be a folder, got the file {out}")
        corpus = None
        if only != "cost":
            corpus = _text(text, longest_window=max(BUDGETS[budget].contexts))
        size, parts = Size(batch_size, length, width, heads), PARTS if only is None else (only,)
        return cls(size, budget, corpus, text, seeds, out, workers, parts)

    def cells(self) -> list[Cell]:
        """The training runs."""
        seeds = None if self.num_seeds is None else range(self.num_seeds)
        return cells(BUDGETS[self.budget], seeds)


def compare(plan: Plan, reporter: Reporter, *, command: Sequence[str] = ()) -> dict[str, Any]:
    """Run what is missing and return the whole record; a part not asked for stays as it was."""
    with _writing(plan.out):
        plan.out.mkdir(parents=True, exist_ok=True)
    earlier = {part: kept for part, kept in _earlier(plan.out).items() if part in PARTS}
    record = _head(command) | earlier
    with reporter:
        if "cost" in plan.parts:
            record["cost"] = _cost(plan, reporter)
        if "extrapolation" in plan.parts:
            record["extrapolation"] = _extrapolation(plan, reporter)
    return record


def write_record(record: dict[str, Any], out: Path) -> list[Path]:
    """`record.json` and `figure.png`, each whole or not at all."""
    from posenc.report.figure import png  # noqa: PLC0415  matplotlib takes a second to load

    files = {"record.json": json.dumps(record, indent=1), "figure.png": png(record)}
    for name, content in files.items():
        with _writing(out / name):
            write_atomically(out / name, content)
    return [out / name for name in files]


def read_record(path: Path) -> dict[str, Any]:
    """A record that `compare` wrote. Raises ValueError, in one line."""
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"{path}: {reason}; expected a record.json of posenc compare") from error
    except ValueError as error:
        raise ValueError(f"{path} is no record of posenc compare: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f'{path} is no record of posenc compare: no "format": {FORMAT} in it')
    for part in PARTS:
        kept = record.get(part, {"rows": {}})
        rows = kept.get("rows") if isinstance(kept, dict) else None
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise ValueError(f'{path} is no record of posenc compare: "{part}" has no "rows"')
    return record


def _text(path: Path | None, *, longest_window: int) -> Corpus:
    try:
        return load(path, longest_window=longest_window)
    except (OSError, ValueError) as error:
        given = "the default --text" if path is None else f"--text {path}"
        raise ValueError(f"{given}: {error}; expected a file or folder of readable text") from error


def _head(arguments: Sequence[str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "posenc": posenc.__version__,
        "command": shlex.join(["posenc", *arguments]),
        "machine": machine(),
    }


def _earlier(out: Path) -> dict[str, Any]:
    try:
        return read_record(out / "record.json")
    except ValueError:
        return {}


def _cost(plan: Plan, reporter: Reporter) -> dict[str, Any]:
    seconds = TIMING_SECONDS.get(plan.budget, 1.0)
    entries = {n: e for n, e in ENCODINGS.items() if plan.budget == "full" or not e.only_full}
    if len(entries) < len(ENCODINGS):
        reporter.say(
            f"cost: {len(entries)} of {len(ENCODINGS)} encodings; --budget full: all of them"
        )
    effort, here = Effort.shared(seconds, len(entries)), machine()
    chosen = {"size": plan.size.as_dict(), "effort": asdict(effort)}
    # a time is worth keeping only for the code and the machine that it was taken with
    place = {name: here[name] for name in ("processor", "threads", "torch", "commit")}
    store = CellStore(
        plan.out / "cells", {"part": "cost", "posenc": posenc.__version__, **chosen, **place}
    )
    rows = {name: row for name in entries if (row := store.get(f"cost-{name}")) is not None}
    reporter.begin("cost", len(entries), len(rows))
    for name, entry in entries.items():
        if name not in rows:
            reporter.step(name, 0, 1)
            rows[name] = measure(entry, plan.size, effort)
            _keep(store, f"cost-{name}", rows[name])
            reporter.finish(name, _cost_line(rows[name]))
    return {
        "settings": chosen,
        "machine": here,
        "rows": {name: rows[name] for name in entries},
    }


def _cost_line(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"refused, {row['refused']}"
    forward, training = row["forward"], row["training"]
    return (
        f"forward {forward['ms']['median']:.0f} ms (× {forward['ratio']['median']:.2f}), "
        f"with backward {training['ms']['median']:.0f} ms (× {training['ratio']['median']:.2f})"
    )


def _extrapolation(plan: Plan, reporter: Reporter) -> dict[str, Any]:
    assert plan.corpus is not None
    budget = BUDGETS[plan.budget]
    chosen = settings(budget, plan.corpus)
    store = CellStore(plan.out / "cells", {"part": "extrapolation", **chosen})
    wanted = plan.cells()
    results = {cell.key: got for cell in wanted if (got := store.get(cell.key)) is not None}
    reporter.begin("extrapolation", len(wanted), len(results))

    def finished(cell: Cell, result: dict[str, Any]) -> None:
        _keep(store, cell.key, result)
        results[cell.key] = result
        reporter.finish(cell.key, f"trained and scored in {result['seconds']:.0f} s")

    missing = [cell for cell in wanted if cell.key not in results]
    with _one_line("a training run ended"):
        run_cells(
            missing,
            budget,
            plan.text,
            workers=plan.workers,
            on_step=reporter.step,
            on_result=finished,
        )
    return _extrapolation_part(plan, chosen, [results[cell.key] for cell in wanted])


def _extrapolation_part(
    plan: Plan, chosen: dict[str, Any], results: list[dict[str, Any]]
) -> dict[str, Any]:
    assert plan.corpus is not None
    budget = BUDGETS[plan.budget]
    names = dict.fromkeys(result["row"] for result in results)
    lines = [read for name in names for read in reads(ROWS[name], budget)]
    summary = summarise(results)
    return {
        "settings": chosen,
        "machine": machine(),
        "text": {"name": plan.corpus.name, "num_bytes": plan.corpus.num_bytes},
        "seeds": sorted({result["seed"] for result in results}),
        "train_length": budget.length,
        "contexts": list(budget.contexts),
        "titles": {read.name: {"title": read.title, "note": read.note} for read in lines},
        "rows": {read.name: summary[read.name] for read in lines if read.name in summary},
        "cells": results,
    }


def _keep(store: CellStore, key: str, result: dict[str, Any]) -> None:
    with _writing(store.folder):
        store.put(key, result)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {path}: {reason}; expected a folder with room") from error


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    try:
        yield
    except RunError:
        raise
    except RuntimeError as error:
        raise RunError(f"{what}: {' '.join(str(error).split())}") from error
