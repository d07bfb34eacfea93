"""Commands about models on disk: inspect, extend, convert, detect."""
# ruff: noqa: PLC0415

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from posenc.inspection import Facts, RotationFacts

__all__ = ["commands"]

_pairing = click.Choice(["half", "adjacent"])
_path = click.Path(path_type=Path)


class _Unusable(click.ClickException):
    """Something that the command cannot use: one line, exit code 2."""

    exit_code = 2


@click.command()
@click.argument("path")
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


@click.command()
@click.argument("path", type=_path)
@click.option("--to", "length", type=click.IntRange(min=2), required=True, help="Tokens to reach.")
@click.option(
    "--method", default="yarn", show_default=True, help="yarn, linear, ntk, dynamic, llama3."
)
@click.option("--out", type=_path, help="File to write; else the config is printed.")
@click.option("--replace", "replaced", is_flag=True, help="Start again from the trained length.")
def extend(path: Path, length: int, method: str, out: Path | None, replaced: bool) -> None:
    """Write a config for longer texts and explain each number. The old file is never touched."""
    from posenc.inspection import config_path, raw_config
    from posenc.interop.extend import extend_config
    from posenc.records import write_atomically

    with _usable():
        old = config_path(path)
        if out is not None and out.exists():
            raise _Unusable(f"{out} exists: name a new file")
        new = extend_config(raw_config(old), to=length, method=method, replace_scaling=replaced)
    text = json.dumps(new.config, indent=2) + "\n"
    if out is None:
        click.echo(text, nl=False)
    else:
        try:
            write_atomically(out, text)
        except OSError as error:
            raise click.ClickException(f"cannot write {out}: {error.strerror or error}") from error
        click.echo(f"written: {out}", err=True)
    for line in new.explained:
        click.echo(line, err=True)


@click.command()
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

    with _usable():
        content = None if config is None else _json(config)
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
    if done.noted is None:
        click.echo(
            "the config has no key for the pairing: it is noted in the weights' metadata, and code "
            f"that reads them must rotate {done.pairing} pairs"
        )
    else:
        click.echo(f"config.json says so in {done.noted!r}")
    if done.left_out:
        click.echo(f"not copied: {', '.join(done.left_out)}")


@click.command()
@click.argument("source", type=_path)
@click.option(
    "--config", type=_path, help="Else the config.json or params.json beside the weights."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def detect(source: Path, config: Path | None, as_json: bool) -> None:
    """Tell from its weights which pairing a checkpoint was trained with, and how sure that is."""
    from dataclasses import asdict

    from posenc.interop.checkpoints import detect as run_detect

    with _usable():
        found = run_detect(source, config=None if config is None else _json(config))
    click.echo(json.dumps(asdict(found), indent=1) if as_json else str(found))


commands: list[click.Command] = [inspect, extend, convert, detect]


@contextmanager
def _usable() -> Iterator[None]:
    """Errors about what was given become one line and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:  # ConfigError and CheckpointError are ValueErrors
        raise _Unusable(" ".join(str(error).split())) from error


def _json(path: Path) -> Mapping[str, Any]:
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def _local(path: str) -> Path:
    """The path itself, or the config of a model on the hub."""
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
    click.echo(f"trained length {facts.trained_length}, maximum {facts.max_length}")
    for rotation in facts.rotations:
        _print_rotation(rotation, facts.trained_length)
    for line in facts.other:
        click.echo(line)
    for name, value in facts.defaults_used.items():
        click.echo(f"{name} is not in the config: {value} by default")
    for note in facts.notes:
        click.echo(f"note: {note}")
    for warned in facts.warnings:
        click.echo(f"warning: {warned.text} [{warned.name}: {warned.source}]")


def _print_rotation(facts: "RotationFacts", trained: int | None) -> None:
    turned = "all" if facts.rotary_dim == facts.head_dim else f"the {facts.placement}"
    base = "" if facts.base is None else f" base {facts.base:g},"
    click.echo(f"layers {facts.layers}: {facts.method},{base} {facts.pairing} pairs")
    click.echo(f"  {turned} {facts.rotary_dim} of {facts.head_dim} channels turn: {facts.value}")
    if facts.wavelengths:
        shortest, longest = min(facts.wavelengths), max(facts.wavelengths)
        click.echo(f"  wavelengths {shortest:.4g} to {longest:.6g} tokens")
    if facts.num_incomplete is not None:
        click.echo(
            f"  {facts.num_incomplete} of {len(facts.wavelengths)} pairs never complete a turn in "
            f"{trained} tokens"
        )
    scale = f", softmax scale times {facts.softmax_scale:.4f}" if facts.softmax_scale != 1 else ""
    click.echo(f"  attention factor {facts.attention_factor:.4f}{scale}")
    reach = "more than was searched" if facts.supported_length is None else facts.supported_length
    click.echo(f"  the base supports {reach} tokens (Men 2024, arXiv 2405.14591)")
