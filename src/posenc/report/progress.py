"""Progress of a long run: bars on a terminal, a few plain lines elsewhere."""

import time
from contextlib import AbstractContextManager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Bars", "Lines", "Reporter", "reporter"]

SECONDS_BETWEEN_LINES = 20.0


class Reporter(AbstractContextManager["Reporter"], Protocol):
    """What a run tells whoever watches."""

    def say(self, line: str) -> None:
        """A line that stays."""
        ...

    def begin(self, title: str, total: int, kept: int) -> None:
        """A part of `total` cells, `kept` of which an earlier run finished."""
        ...

    def step(self, key: str, done: int, total: int) -> None:
        """Cell `key` got this far."""
        ...

    def finish(self, key: str, result: str) -> None:
        """Cell `key` is stored."""
        ...


def reporter(console: Console) -> Reporter:
    """Bars where the console is a terminal, lines where it is a file or a pipe."""
    return Bars(console) if console.is_terminal else Lines(console)


class Bars(Reporter):
    """One bar for the part, one for each cell that is running."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._part = self._progress.add_task("starting", total=None)
        self._running: dict[str, int] = {}

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False)

    def begin(self, title: str, total: int, kept: int) -> None:
        self._progress.reset(self._part, total=total, completed=kept, description=title)
        if kept:
            self._progress.console.print(_kept(title, total, kept))

    def step(self, key: str, done: int, total: int) -> None:
        if key not in self._running:
            self._running[key] = self._progress.add_task(f"  {key}", total=total)
        self._progress.update(self._running[key], completed=done, total=total)  # pyright: ignore[reportArgumentType]

    def finish(self, key: str, result: str) -> None:
        if key in self._running:
            self._progress.remove_task(self._running.pop(key))  # pyright: ignore[reportArgumentType]
        self._progress.advance(self._part)
        self._progress.console.print(f"{key}: {result}", highlight=False)


class Lines(Reporter):
    """A line for each finished cell, and a sign of life every twenty seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title, self._done, self._total = "", 0, 0
        self._running: dict[str, int] = {}  # percent
        self._last = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        return None

    def begin(self, title: str, total: int, kept: int) -> None:
        self._title, self._done, self._total = title, kept, total
        self.say(_kept(title, total, kept) if kept else f"{title}: {total} cells")

    def step(self, key: str, done: int, total: int) -> None:
        self._running[key] = 100 * done // total
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            shares = ", ".join(f"{name} {share}%" for name, share in self._running.items())
            self.say(f"{self._title} [{self._done}/{self._total}] {shares}")

    def finish(self, key: str, result: str) -> None:
        self._done += 1
        self._running.pop(key, None)
        self.say(f"{self._title} [{self._done}/{self._total}] {key}: {result}")

    def say(self, line: str) -> None:
        self._last = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _kept(title: str, total: int, kept: int) -> str:
    return f"{title}: {kept} of {total} cells are finished already"
