"""Commands about models on disk: inspect, extend, convert, detect."""
# ruff: noqa: PLC0415

import errno
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from posenc.inspection import Facts, RotationFacts

__all__ = ["commands"]

_pairing = click.Choice(["half", "adjacent"])
# Errors that are the machine's and not the arguments': a full disk, a quota, a fault of the device.
_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Path(click.Path):
    """A path; an empty one, of an unset variable in a script, is no path to the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("a path is expected, got an empty one", param, ctx)
        return super().convert(value, param, ctx)


_path = _Path(path_type=Path)


class _Unusable(click.ClickException):
    """Something that the command cannot use: one line, exit code 2."""

    exit_code = 2


class _Failed(click.ClickException):
    """Something that did not work out: one line, exit code 1."""

    exit_code = 1


@click.command(short_help="What a config says about positions, and its mistakes.")
@click.argument("path", type=_Path())
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def inspect(path: str, as_json: bool) -> None:
    """What a model's config says about positions, in numbers, and known mistakes in it.

    PATH is a model's folder, a config.json, a params.json, a .gguf file, or the name of a model on
    the Hugging Face hub.
    """
    from posenc.inspection import inspect as look

    with _usable():
        facts = look(_local(path))
    if as_json:
        click.echo(json.dumps(facts.as_dict(), indent=1, default=str))
    else:
        _print_facts(facts)


@click.command(short_help="Write a config for longer texts; each number explained.")
@click.argument("path", type=_path)
@click.option("--to", "length", type=click.IntRange(min=2), required=True, help="Tokens to reach.")
@click.option(
    "--method", default="yarn", show_default=True, help="yarn, linear, ntk, dynamic, llama3."
)
@click.option("--out", type=_path, help="File to write; else the config is printed.")
@click.option("--replace", "replaced", is_flag=True, help="Start again from the trained length.")
@click.option(
    "--original-length",
    type=click.IntRange(min=2),
    metavar="N",
    help="The trained length, where the config does not say it or has a longer maximum.",
)
def extend(
    path: Path,
    length: int,
    method: str,
    out: Path | None,
    replaced: bool,
    original_length: int | None,
) -> None:
    """Write a config for longer texts and explain each number. The old file is never touched."""
    from posenc.interop.config_files import config_path, read_object
    from posenc.interop.extend import extend_config
    from posenc.records import write_atomically

    with _usable():
        old = config_path(path)
        if old.suffix == ".gguf":
            raise _Unusable(
                f"{old} is read by inspect alone: extend writes a config.json, give one"
            )
        if out is not None and os.path.lexists(out):
            raise _Unusable(f"{out} exists: name a new file")
        new = extend_config(
            read_object(old),
            to=length,
            method=method,
            replace_scaling=replaced,
            original_length=original_length,
        )
        text = json.dumps(new.config, indent=2) + "\n"
        if out is not None:
            write_atomically(out, text, replace=False)
    if out is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"written: {out}", err=True)
    for line in new.explained:
        click.echo(line, err=True)


@click.command(short_help="Copy a checkpoint with its pairs in the other order.")
@click.argument("source", type=_path)
@click.argument("target", type=_path)
@click.option("--to", "pairing", type=_pairing, required=True, help="The pairing to write.")
@click.option("--from", "source_pairing", type=_pairing, help="Else the weights and config say.")
@click.option(
    "--config", type=_path, help="Else the config.json or params.json beside the weights."
)
@click.option("--keep", multiple=True, metavar="PATTERN", help="Tensors to leave as they are.")
def convert(
    source: Path,
    target: Path,
    pairing: Any,
    source_pairing: Any,
    config: Path | None,
    keep: tuple[str, ...],
) -> None:
    """Copy a safetensors checkpoint with its queries and keys in the other pairing.

    SOURCE is a folder or one file and stays as it is; TARGET must not exist. A tensor that is not
    recognised stops the conversion before anything is written.
    """
    from posenc.interop.checkpoints import convert as run_convert
    from posenc.interop.config_files import read_object

    with _usable(), _stopped_by(signal.SIGTERM):
        content = None if config is None else read_object(config)
        done = run_convert(
            source,
            target,
            to=pairing,
            config=content,
            source_pairing=source_pairing,
            keep=keep,
        )
    click.echo(
        f"{done.source_pairing} -> {done.pairing}: {len(done.moved)} tensors moved, "
        f"{len(done.kept)} as they were, written to {target}"
    )
    click.echo(done.told)
    if done.left_out:
        click.echo(f"not copied: {', '.join(done.left_out)}")


@click.command(short_help="Which pairing the weights of a checkpoint have.")
@click.argument("source", type=_path)
@click.option(
    "--config", type=_path, help="Else the config.json or params.json beside the weights."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def detect(source: Path, config: Path | None, as_json: bool) -> None:
    """Tell from its weights which pairing a checkpoint was trained with, and how sure that is."""
    from dataclasses import asdict

    from posenc.interop.checkpoints import detect as run_detect
    from posenc.interop.config_files import read_object

    with _usable():
        found = run_detect(source, config=None if config is None else read_object(config))
    click.echo(json.dumps(asdict(found), indent=1) if as_json else str(found))


commands: list[click.Command] = [inspect, extend, convert, detect]


@contextmanager
def _usable() -> Iterator[None]:
    """Errors about what was given become one line and exit code 2; of the machine, exit code 1."""
    try:
        yield
    except OSError as error:
        kind = _Failed if error.errno in _ROOM else _Unusable
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise kind(" ".join(told.split())) from error
    except ValueError as error:  # ConfigError and CheckpointError are ValueErrors
        raise _Unusable(" ".join(str(error).split())) from error


@contextmanager
def _stopped_by(number: signal.Signals) -> Iterator[None]:
    """A signal that would end the process at once does what Ctrl-C does: the part is taken away."""

    def stop(received: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, before)


def _local(path: str) -> Path:
    """The path itself, or the config of a model on the hub."""
    if "://" in path:
        raise _Unusable(f"{path} is an address: expected a path, or a name on the hub, org/model")
    if Path(path).exists() or path.count("/") != 1 or path.startswith((".", "/", "~")):
        return Path(path)
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
    except ImportError as error:
        hint = "for a model on the hub, install huggingface_hub"
        raise _Unusable(f"{path} does not exist here; {hint}") from error
    cached = try_to_load_from_cache(path, "config.json")
    if isinstance(cached, str):
        return Path(cached)
    try:
        api = HfApi()
        api.model_info(path, timeout=10)  # a download without network tries again for half a minute
        return Path(api.hf_hub_download(path, "config.json"))
    except Exception as error:
        problem = f"{path} does not exist here, and the hub gave no config.json: {error}"
        raise _Unusable(" ".join(problem.split())) from error


def _print_facts(facts: "Facts") -> None:
    click.echo(f"{facts.model_type}: {facts.num_rotating} of {facts.num_layers} layers rotate")
    click.echo(
        f"trained length {_tokens(facts.trained_length)}, maximum {_tokens(facts.max_length)}"
    )
    for rotation in facts.rotations:
        _print_rotation(rotation, facts)
    for line in facts.other:
        click.echo(line)
    for name, value in facts.defaults_used.items():
        click.echo(f"{name} is not in the config: {value} by default")
    for note in facts.notes:
        click.echo(f"note: {note}")
    for warned in facts.warnings:
        click.echo(f"warning: {warned.text} [{warned.name}: {warned.source}]")


def _print_rotation(rotation: "RotationFacts", facts: "Facts") -> None:
    whole = rotation.rotary_dim == rotation.head_dim
    turned = "all" if whole else f"the {rotation.placement}"
    base = "" if rotation.base is None else f" base {rotation.base:g},"
    pairs, noted = f"{rotation.pairing} pairs", facts.noted_pairing
    if noted not in (None, rotation.pairing):
        pairs += f" in the config, {noted} in the weights"
    click.echo(f"layers {rotation.layers}: {rotation.method},{base} {pairs}")
    value = _LONG_LIST.sub(_shortened, rotation.value)
    click.echo(f"  {turned} {rotation.rotary_dim} of {rotation.head_dim} channels turn: {value}")
    if rotation.wavelengths:
        shortest, longest = min(rotation.wavelengths), max(rotation.wavelengths)
        click.echo(f"  wavelengths {shortest:.4g} to {longest:.6g} tokens")
    if rotation.num_incomplete is not None:
        click.echo(_incomplete(rotation, facts))
    scale = rotation.softmax_scale
    scaled = f", softmax scale times {scale:.4f}" if scale != 1 else ""
    click.echo(f"  attention factor {rotation.attention_factor:.4f}{scaled}")
    reach = rotation.supported_length
    told = "more tokens than were searched" if reach is None else f"{reach} tokens"
    click.echo(
        "  by Men 2024's bound (arXiv 2405.14591) these frequencies tell near from far up to "
        f"{told}, a rule of thumb{_but(whole)}"
    )


def _incomplete(rotation: "RotationFacts", facts: "Facts") -> str:
    """Pairs that never come round: their angles beyond the length are new to the model."""
    trained, longest = facts.trained_length, facts.max_length
    line = (
        f"  {rotation.num_incomplete} of {len(rotation.wavelengths)} pairs never complete a turn in "
        f"{trained} tokens"
    )
    if longest is None or longest == trained:
        return line
    return f"{line}, {rotation.num_incomplete_at_maximum} of them in {longest}"


def _but(whole: bool) -> str:
    return "" if whole else ": a bound for whole heads, and channels that do not turn see farther"


def _tokens(length: int | None) -> str:
    return "not in the config" if length is None else str(length)


_LONG_LIST = re.compile(r"\(([^(), ]+), ([^()]+), ([^(), ]+)\)")


def _shortened(found: re.Match[str]) -> str:
    """A list of numbers by its ends, where it would fill the screen."""
    between = found[2].count(",") + 1
    return found[0] if between < 8 else f"({found[1]}, …, {found[3]}: {between + 2} numbers)"
