"""Cells in worker processes of one thread each: results do not depend on the number of workers."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from posenc.lab.corpus import load
from posenc.lab.extrapolation import run_cell, work
from posenc.lab.rows import ROWS, Budget, Cell

__all__ = ["run_cells"]

SPAWN = multiprocessing.get_context("spawn")  # a fork of a process that has run torch may hang


def run_cells(
    cells: Sequence[Cell],
    budget: Budget,
    text: Path | None = None,
    *,
    workers: int,
    on_step: Callable[[str, int, int], None] = lambda key, done, total: None,
    on_result: Callable[[Cell, dict[str, Any]], None],
) -> None:
    """Run every cell, the longest first, and hand over each result as soon as it is there.

    >>> run_cells(cells(budget), budget, workers=2, on_result=keep)  # doctest: +SKIP

    Callbacks run in this process. Where a cell fails, the others are stopped and a RuntimeError
    names it; results already handed over stay. Ctrl-C stops the workers too. Should this process be
    killed, they end at their next step.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    waiting = sorted(cells, key=lambda cell: -work(ROWS[cell.row], budget))
    pool = []
    try:
        with _interrupts_held():
            for _ in range(min(workers, len(waiting))):
                pool.append(_Worker(budget, text))
        for worker in pool:
            worker.begin(waiting.pop(0))
        while busy := {worker.connection: worker for worker in pool if worker.cell is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # pyright: ignore[reportArgumentType]
                _handle(worker, waiting, on_step, on_result)
    finally:
        for worker in pool:
            worker.stop()


def _handle(
    worker: "_Worker",
    waiting: list[Cell],
    on_step: Callable[[str, int, int], None],
    on_result: Callable[[Cell, dict[str, Any]], None],
) -> None:
    """One message of a worker: a step, a failure, or a result and with it the next cell."""
    cell, (kind, content) = worker.cell, worker.receive()
    assert cell is not None
    if kind == "step":
        on_step(cell.key, *content)
    elif kind == "failure":
        reason, trace = content
        raise RuntimeError(f"{cell.key} failed: {reason}") from RuntimeError(trace)
    else:
        worker.begin(waiting.pop(0) if waiting else None)  # before the callback: no time is lost
        on_result(cell, content)


class _Worker:
    """A process that runs one cell at a time, and this end of its pipe."""

    def __init__(self, budget: Budget, text: Path | None) -> None:
        self.connection, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(theirs, budget, text), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self.cell: Cell | None = None

    def begin(self, cell: Cell | None) -> None:
        self.cell = cell
        if cell is not None:
            self.connection.send(cell)

    def receive(self) -> tuple[str, Any]:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(timeout=10)
            code = self.process.exitcode
            return "failure", (f"its worker process ended with exit code {code}", "")

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, budget: Budget, text: Path | None) -> None:
    """The worker: cells come in; steps, results and failures go out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    corpus = None
    try:
        while True:
            cell = connection.recv()
            try:
                corpus = corpus or load(text, longest_window=max(budget.contexts))
                result = run_cell(cell, budget, corpus, lambda *s: connection.send(("step", s)))
            except (BrokenPipeError, EOFError):
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                connection.send(("failure", (reason, traceback.format_exc())))
            else:
                connection.send(("result", result))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return  # the parent is gone: nobody waits for a result


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Workers start with SIGINT blocked: until they ignore it, Ctrl-C would print their traces."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
