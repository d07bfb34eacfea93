"""Checkpoints moved from one pairing to the other: file by file, tensor by tensor, never in place."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import Tensor

from posenc.contracts import Pairing
from posenc.interop.checkpoints.files import CheckpointError, Header, Stored, read_header, rewrite
from posenc.interop.checkpoints.heads import Layout, layout_from
from posenc.interop.checkpoints.layouts import Plan, check_numbering, plan
from posenc.interop.checkpoints.permutation import check_pairing, row_order

__all__ = ["Conversion", "convert", "load_config", "weight_files"]

CONFIGS = ("config.json", "params.json")
METADATA_KEY = "posenc.pairing"
INTERLEAVE = "rope_interleave"  # DeepSeek V3 and its kin read it: whether pairs are adjacent
# Weights in other forms would still have the old pairing; they are left out of the copy.
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt")


@dataclass(frozen=True)
class Conversion:
    """What a conversion did: `moved` and `kept` name every tensor once."""

    source_pairing: Pairing
    pairing: Pairing
    moved: tuple[str, ...]
    kept: tuple[str, ...]
    noted: str | None  # the key of config.json that now says so, where the format has one
    left_out: tuple[str, ...]  # files beside the weights that were not copied


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Pairing,
    config: Mapping[str, Any] | None = None,
    source_pairing: Pairing | None = None,
    keep: Sequence[str] = (),
) -> Conversion:
    """Copy a safetensors checkpoint with its queries and keys in another pairing.

    >>> convert("llama", "llama-adjacent", to="adjacent")
    >>> convert("model.safetensors", "out.safetensors", to="half", config=config)

    A folder (one file or a sharded index, with its config.json) becomes a folder, a file a file.
    `keep` are patterns of names that stay as they are. `source_pairing` overrules what the weights
    and the config say. Raises CheckpointError for a tensor that is not recognised, for heads that do
    not fit the rows, and where the checkpoint has the wanted pairing already; FileExistsError where
    the target exists. The inverse gives every tensor back bit for bit.
    """
    check_pairing(to)
    source, target = Path(source), Path(target)
    if target.exists():
        raise FileExistsError(f"{target} exists: a conversion never writes over anything")
    config = load_config(source) if config is None else config
    layout, headers = layout_from(config), [read_header(path) for path in weight_files(source)]
    found = source_pairing or pairing_of(headers, layout)
    if found == to:
        raise CheckpointError(f"{source} is {to} already: there is nothing to convert")
    plans = _plans(headers, layout, keep)
    check_numbering([name for name in _names(headers) if not _is_kept(name, keep)], layout)
    if layout.values_are_keys:
        raise CheckpointError(
            "attention_k_eq_v is set: the channels of values would change places too, and the "
            "output projection still read them in the old order"
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        noted, left_out = _write(source, temporary, headers, plans, config, to)
        os.replace(temporary, target)
    finally:
        _remove(temporary)
    kept = tuple(name for name in _names(headers) if name not in plans)
    return Conversion(found, to, tuple(plans), kept, noted, left_out)


def weight_files(source: Path) -> list[Path]:
    """The safetensors files of a checkpoint: the file itself, or what a folder's index lists."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise CheckpointError(f"{source} does not exist")
    index = source / "model.safetensors.index.json"
    if index.is_file():
        listed = sorted(set(_json(index).get("weight_map", {}).values()))
        missing = [name for name in listed if not (source / name).is_file()]
        if missing or not listed:
            raise CheckpointError(f"{index} lists files that are not there: {', '.join(missing)}")
        return [source / name for name in listed]
    single = source / "model.safetensors"
    found = [single] if single.is_file() else sorted(source.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise CheckpointError(
            f"{source}: expected model.safetensors, an index, or one .safetensors file; got {names}"
        )
    return found


def load_config(source: Path) -> dict[str, Any]:
    """The config.json or params.json beside the weights."""
    folder = source if source.is_dir() else source.parent
    for name in CONFIGS:
        if (folder / name).is_file():
            return _json(folder / name)
    raise CheckpointError(f"{folder} has no {' or '.join(CONFIGS)}: give one (config=, --config)")


def pairing_of(headers: Sequence[Header], layout: Layout) -> Pairing:
    """What the weights say (a converted checkpoint notes it), or else their config."""
    said = {header.metadata.get(METADATA_KEY) for header in headers} - {None}
    if len(said) > 1:
        raise CheckpointError(f"the files disagree about their pairing: {sorted(map(str, said))}")
    pairing = said.pop() if said else layout.pairing
    if pairing == "half" or pairing == "adjacent":  # noqa: PLR1714 - narrows the type
        return pairing
    raise CheckpointError("the layers do not share one pairing: give source_pairing (--from)")


def _plans(headers: Sequence[Header], layout: Layout, keep: Sequence[str]) -> dict[str, Plan]:
    """The rows to move, by tensor; everything is planned before anything is written."""
    plans = {}
    for header in headers:
        for tensor in header.tensors:
            found = None if _is_kept(tensor.name, keep) else plan(tensor, layout)
            if found is not None:
                plans[tensor.name] = found
    if not plans:
        raise CheckpointError("no tensor of this checkpoint turns: there is nothing to convert")
    return plans


def _names(headers: Sequence[Header]) -> list[str]:
    return [tensor.name for header in headers for tensor in header.tensors]


def _is_kept(name: str, keep: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in keep)


def _write(
    source: Path,
    target: Path,
    headers: Sequence[Header],
    plans: Mapping[str, Plan],
    config: Mapping[str, Any],
    to: Pairing,
) -> tuple[str | None, tuple[str, ...]]:
    if source.is_file():
        _rewrite(headers[0], target, plans, to)
        return None, ()
    target.mkdir(parents=True)
    for header in headers:
        _rewrite(header, target / header.path.name, plans, to)
    left_out = _copy_others(source, target)
    noted = _noted(config, to)
    if noted is None or not (target / "config.json").is_file():
        return None, left_out
    (target / "config.json").write_text(json.dumps(noted, indent=2) + "\n")
    return INTERLEAVE, left_out


def _noted(config: Mapping[str, Any], to: Pairing) -> dict[str, Any] | None:
    """The config with the pairing in it, or None where its format has no key for that."""
    if INTERLEAVE in config:
        return {**config, INTERLEAVE: to == "adjacent"}
    for name, section in config.items():
        if isinstance(section, Mapping) and INTERLEAVE in section:
            return {**config, name: {**section, INTERLEAVE: to == "adjacent"}}
    return None


def _rewrite(header: Header, target: Path, plans: Mapping[str, Plan], to: Pairing) -> None:
    def order(tensor: Stored) -> Tensor | None:
        if tensor.name not in plans:
            return None
        runs, groups = plans[tensor.name]
        return row_order(runs, to, groups=groups)

    rewrite(header, target, order, metadata={**header.metadata, METADATA_KEY: to})


def _copy_others(source: Path, target: Path) -> tuple[str, ...]:
    """Copy tokenizers and the like; other weights and folders are named, not copied."""
    left_out = []
    for path in sorted(source.iterdir()):
        if (target / path.name).exists():
            continue
        weights = path.suffix in OTHER_WEIGHTS or ".safetensors" in path.name
        index = path.name == "model.safetensors.index.json"
        if path.is_file() and (index or not weights):
            shutil.copy2(path, target / path.name)
        else:
            left_out.append(path.name)
    return tuple(left_out)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
