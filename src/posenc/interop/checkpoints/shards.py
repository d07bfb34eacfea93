"""The files of a checkpoint: its config, its shards, and whether the index says what they hold."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.interop.checkpoints.files import CheckpointError, Header, read_header
from posenc.interop.config_files import CONFIGS, OTHER_WEIGHTS, read_object
from posenc.interop.errors import ConfigError
from posenc.interop.keys import shown

__all__ = ["load_config", "read_headers"]

INDEX = "model.safetensors.index.json"


def load_config(source: Path) -> dict[str, Any]:
    """The config.json or params.json beside the weights."""
    if not source.exists():
        raise CheckpointError(f"no such file or folder: {source}")
    folder = source if source.is_dir() else source.parent
    for name in CONFIGS:
        if (folder / name).is_file():
            return read_object(folder / name)
    raise CheckpointError(f"{folder} has no {' or '.join(CONFIGS)}: give one (config=, --config)")


def read_headers(source: Path) -> list[Header]:
    """The headers of a checkpoint: of the file itself, or of what a folder's index lists.

    >>> [header.path.name for header in read_headers(Path("llama"))]
    ['model.safetensors']

    Raises CheckpointError where a shard is missing, where the index looks outside the folder, and
    where a tensor is not in the shard that the index names, or in two.
    """
    if not source.exists():
        raise CheckpointError(f"no such file or folder: {source}")
    if source.is_file():
        return [read_header(source)]
    index = source / INDEX
    if not index.is_file():
        return [read_header(_single(source))]
    listed = _listed(index)
    headers = [read_header(source / name) for name in sorted(set(listed.values()))]
    _check_held(index, listed, headers)
    return headers


def _single(source: Path) -> Path:
    single = source / "model.safetensors"
    found = [single] if single.exists() else sorted(source.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    unread = ", ".join(sorted(p.name for p in source.iterdir() if p.suffix in OTHER_WEIGHTS))
    hint = f"; {unread} is not read: save the model as safetensors" if unread else ""
    raise CheckpointError(
        f"{source}: expected model.safetensors, an index, or one .safetensors file; got {names}{hint}"
    )


def _listed(index: Path) -> Mapping[str, str]:
    """The shard of every tensor, each a file beside the index."""
    try:
        listed = read_object(index).get("weight_map")
    except ConfigError as error:
        raise CheckpointError(str(error)) from error
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(
            f"{index}: weight_map = {shown(listed)}: expected an object from tensors to files"
        )
    for tensor, name in listed.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(
                f"{index}: tensor {tensor!r} in {shown(name)}: expected a file of the same folder"
            )
    missing = sorted({x for x in listed.values() if not (index.parent / x).is_file()})
    if missing:
        raise CheckpointError(f"{index} lists files that are not there: {', '.join(missing)}")
    return listed


def _check_held(index: Path, listed: Mapping[str, str], headers: list[Header]) -> None:
    held: dict[str, str] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in held:
                raise CheckpointError(
                    f"tensor {tensor.name!r} is in {held[tensor.name]} and in {header.path.name}: "
                    "which one is meant is not known"
                )
            held[tensor.name] = header.path.name
    for name, shard in listed.items():
        if held.get(name) != shard:
            where = f"in {held[name]}" if name in held else "in none of the shards"
            raise CheckpointError(f"{index}: tensor {name!r} is {where}, expected in {shard}")
