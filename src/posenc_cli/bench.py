"""Commands about speed: bench, and doctor for what is installed."""
# ruff: noqa: PLC0415

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

__all__ = ["commands"]


@click.command(short_help="Time and memory beside peers and beside the limit.")
@click.option("--case", "cases", multiple=True, help="Only cases that begin so; may be repeated.")
@click.option(
    "--against", default="transformers,transformers-compiled", show_default=True,
    help="Peers: also rotary-embedding-torch, x-transformers, torchtune, flex.",
)  # fmt: skip
@click.option("--seconds", type=click.FloatRange(min=0.0), default=2.0, show_default=True,
              help="For each side of a case at one length.")  # fmt: skip
@click.option("--max-length", type=click.IntRange(min=1), help="Leave out longer inputs.")
@click.option("--baseline", help="A git ref of posenc to compare with, in processes of its own.")
@click.option("--out", type=click.Path(path_type=Path), default="posenc-bench", show_default=True,
              help="Folder for results; it is what resumes.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def bench(
    cases: tuple[str, ...],
    against: str,
    seconds: float,
    max_length: int | None,
    baseline: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Time and memory beside peers and beside the limit, each side checked before it is timed.

    Killed at any moment, the same command goes on where it stopped.
    """
    from posenc.bench.run import Settings, chosen, run_all
    from posenc.bench.versions import beside
    from posenc.records import CellStore, machine, write_atomically
    from posenc.report.console import console
    from posenc.report.speed import picture, print_speed

    try:
        peers = tuple(name.strip() for name in against.split(",") if name.strip())
        settings = Settings(chosen(cases), peers, seconds, max_length)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    here = machine()
    kept = {"against": peers, "seconds": seconds, "commit": here["commit"], "torch": here["torch"]}
    store = CellStore(out / "cells", settings=kept)
    with _version(baseline) as site:  # a ref that is none is told before minutes are spent
        cells = run_all(settings, store, lambda line: click.echo(line, err=True))
        if site is not None:
            beside(site, cells, seconds)
    import posenc

    record: dict[str, Any] = {
        "posenc": posenc.__version__,
        "command": ["posenc", *sys.argv[1:]],
        "machine": here,
        "cells": cells,
    }
    write_atomically(out / "bench.json", json.dumps(record, indent=1))
    image = picture(record)
    if image is not None:
        write_atomically(out / "bench.png", image)
    if as_json:
        click.echo(json.dumps(record, indent=1))
    else:
        print_speed(record, console(width=160))
        click.echo(f"written: {out / 'bench.json'}")


@contextmanager
def _version(ref: str | None) -> Iterator[Path | None]:
    """The package of a git ref, for as long as it is measured; None without a ref."""
    from tempfile import TemporaryDirectory

    from posenc.bench.versions import built

    if ref is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        try:
            site = built(ref, Path(folder))
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        yield site


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(as_json: bool) -> None:
    """What is installed, what impl="auto" would pick here, and why."""
    from posenc.bench.doctor import findings

    found = findings()
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    width = max(map(len, found))
    for name, told in found.items():
        click.echo(f"{name:<{width}}  {told}")


commands = (bench, doctor)
