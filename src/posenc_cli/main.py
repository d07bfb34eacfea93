"""The commands. The library is imported inside them: `posenc --help` waits for no torch.

Exit codes: 0; 1 where a run failed; 2 where the command was given something it cannot use; 130 after
Ctrl-C. Every error is one line; `--traceback` or POSENC_DEBUG=1 shows where it came from.
"""
# ruff: noqa: PLC0415

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from posenc_cli import __version__, bench, models
from posenc_cli.names import BUDGETS, CHECKPOINTS, TASKS, nearest

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["cli", "main", "run"]

OUT = "posenc-compare"


class _Failed(click.ClickException):
    exit_code = 1


class _Interrupted(click.ClickException):
    exit_code = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are printed, never raised."""
    wants_trace = "--traceback" in arguments or bool(os.environ.get("POSENC_DEBUG"))
    try:
        result = cli.main(list(arguments), prog_name="posenc", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except BrokenPipeError:  # `posenc list | head`: nobody reads any more
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  or the interpreter complains as it ends
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if wants_trace:
            traceback.print_exception(error)
        message, code = _described(error)
    click.echo(f"posenc: {' '.join(message.split())}", err=True)
    return code


def _described(error: BaseException) -> tuple[str, int]:
    """One line and an exit code."""
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "stopped", 130
    return f"{type(error).__name__}: {error}", 1


@click.group(invoke_without_command=True)
@click.version_option(__version__, message="posenc %(version)s")
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
@click.pass_context
def cli(context: click.Context, traceback: bool) -> None:
    """Positional encodings: measure them on this machine, choose one, look one up."""
    del traceback  # read by run(), which prints errors
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _known(names: Sequence[str]) -> Callable[..., str]:
    """A callback for an option that takes one of these names."""

    def check(context: click.Context, parameter: click.Parameter, value: str) -> str:
        return _checked_name(value, names)

    return check


def _checked_name(value: str, known: Sequence[str]) -> str:
    if value in known:
        return value
    close = nearest(value, list(known))
    hint = f"did you mean {' or '.join(close)}?" if close else f"expected {', '.join(known)}"
    raise click.BadParameter(f"{value!r} is unknown; {hint}")


_option = partial(click.option, show_default=True)
_count = partial(_option, type=click.IntRange(min=1))
_path = click.Path(path_type=Path)
_json = click.option("--json", "as_json", is_flag=True, help="For programs.")


@cli.command(short_help="Measure the cost and the reach of encodings here.")
@_count("--batch-size", default=8, help="Sequences, for cost.")
@_count("--length", default=512, help="Tokens, for cost.")
@_count("--width", default=768, help="Channels of the model, for cost.")
@_count("--heads", default=12, help="Heads, for cost.")
@_option("--text", type=_path, help="File or folder to train on; else Python's own sources.")
@_count("--seeds", help="Models of each row; else the budget's own number.")
@_option(
    "--budget",
    default="quick",
    callback=_known(BUDGETS),
    help="quick: 13 of the 25 encodings, minutes; full: all, an hour.",
)
@_option("--out", type=_path, default=OUT, help="Folder for results; it is what resumes.")
@_count("--workers", default=2, help="Models trained at once.")
@_option("--only", type=click.Choice(["cost", "extrapolation"]), help="One part alone.")
def compare(**options: Any) -> None:
    """Measure what encodings cost and how far they read beyond their training length.

    Of the 25 encodings the quick budget measures 13; --budget full measures all of them. Killed at
    any moment, the same command goes on where it stopped.
    """
    from posenc.compare import Plan, RunError, write_record
    from posenc.compare import compare as run_compare
    from posenc.report.progress import reporter
    from posenc.report.tables import print_record

    with _usage():
        plan = Plan.of(**options)
    try:
        record = run_compare(plan, reporter(_console(stderr=True)), command=_command_line())
        written = write_record(record, plan.out)
    except RunError as error:
        raise _Failed(f"{error}; finished cells are kept, the same command goes on") from error
    except KeyboardInterrupt:
        resume = f"finished cells are kept in {plan.out}, the same command goes on"
        raise _Interrupted(f"stopped; {resume}") from None
    console = _console()
    print_record(record, console)
    console.print(f"written: {', '.join(map(str, written))}", highlight=False)


@cli.command(short_help="Rank the encodings for a length and a checkpoint.")
@_count("--max-length", required=True, help="Tokens to be read.")
@_count("--train-length", required=True, help="Tokens trained at.")
@_option(
    "--checkpoint", default="none", callback=_known(CHECKPOINTS),
    help="llama, mistral, gpt-neox, bloom, t5, bert, …; none is training from scratch.",
)  # fmt: skip
@_option(
    "--task", default="language-model", callback=_known(TASKS),
    help="language-model, retrieval, encoder or vision.",
)  # fmt: skip
@_option("--memory", help="For keys, values and positions, like 8GB.")
@_option("--model-shape", metavar="LAYERSxKEY_HEADSxCHANNELS", help="For --memory: 32x8x128.")
@_option("--record", type=_path, help=f"Else {OUT}/record.json, where there is one.")
@_json
def choose(record: Path | None, as_json: bool, **asked: Any) -> None:
    """Rank what a checkpoint allows, each reason a measured row or a published table."""
    from posenc.report.answer import as_dict, print_answer
    from posenc.report.choose import choose as rank
    from posenc.report.choose import parse_request

    usual = Path(OUT) / "record.json"
    where = usual if record is None and usual.exists() else record
    with _usage():
        wanted = parse_request(**asked)
        content = None if where is None else _read(where)
    try:
        answer = rank(wanted, content, str(where))
    except (AttributeError, KeyError, TypeError) as error:
        if content is None:
            raise
        raise click.UsageError(
            f"{where} is no whole record of posenc compare: {type(error).__name__}: {error}"
        ) from error
    if as_json:
        click.echo(json.dumps(as_dict(answer), indent=1))
    else:
        print_answer(answer, _console())


@cli.command("list")
@_json
def list_registry(as_json: bool) -> None:
    """Every encoding and every scaling method."""
    from posenc.report.pages import print_registry, registry

    if as_json:
        click.echo(json.dumps(registry(), indent=1))
    else:
        print_registry(_console())


@cli.command(short_help="One encoding or scaling method: formula, example, traps.")
@click.argument("name")
@_option("--figure", type=_path, help="Also draw what it does: a .png or .svg file.")
@_json
def show(name: str, figure: Path | None, as_json: bool) -> None:
    """Formula, source, options, an example that runs and the traps of one encoding or scaling method.

    NAME is one of posenc list, or a class, in any case: alibi, ALiBi, T5Bias, Yarn, dynamic.
    """
    from posenc.registry import ENCODINGS, RELATED, SCALINGS
    from posenc.report.pages import canonical, page, print_page

    name = canonical(name) or _checked_name(name, [*ENCODINGS, *SCALINGS, *RELATED])
    shown = page(name)
    if figure is not None:
        _draw(name, figure)
    if as_json:
        click.echo(json.dumps(asdict(shown), indent=1))
    else:
        print_page(shown, _console())


def _draw(name: str, figure: Path) -> None:
    from posenc.report.pictures.draw import write

    with _usage():
        write(name, figure)
    click.echo(f"written: {figure}", err=True)


for _command in (*models.commands, *bench.commands):
    cli.add_command(_command)


@contextmanager
def _usage() -> Iterator[None]:
    """What a user gave and the program cannot use: exit code 2."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error


def _read(where: Path) -> dict[str, Any]:
    from posenc.compare import read_record

    return read_record(where)


def _command_line() -> list[str]:
    """What was typed, for the record; in a test or a notebook, the bare command."""
    is_script = Path(sys.argv[0]).stem in ("posenc", "__main__")
    return sys.argv[1:] if is_script else ["compare"]


def _console(*, stderr: bool = False) -> "Console":
    from posenc.report.console import console

    return console(stderr=stderr)
