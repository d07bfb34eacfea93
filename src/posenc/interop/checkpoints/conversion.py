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
from posenc.interop.checkpoints.files import CheckpointError, Header, Stored, rewrite
from posenc.interop.checkpoints.heads import Layout, layout_from
from posenc.interop.checkpoints.layouts import Plan, check_numbering, plan
from posenc.interop.checkpoints.permutation import check_pairing, row_order
from posenc.interop.checkpoints.shards import load_config, read_headers
from posenc.interop.config_files import OTHER_WEIGHTS
from posenc.interop.text_section import FAMILIES, text_section, with_section
from posenc.records import beside

__all__ = ["METADATA_KEY", "Conversion", "convert"]

METADATA_KEY = "posenc.pairing"
INTERLEAVE = "rope_interleave"  # DeepSeek V3 and its kin read it: whether pairs are adjacent


@dataclass(frozen=True)
class Conversion:
    """What a conversion did: `moved` and `kept` name every tensor once."""

    source_pairing: Pairing
    pairing: Pairing
    moved: tuple[str, ...]
    kept: tuple[str, ...]
    noted: str | None  # the key of config.json that now says so; None where none can: `told` says
    left_out: tuple[str, ...]  # files beside the weights that were not copied
    told: str = ""  # where the new pairing is written, and what whoever loads the weights must do


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
    _check_places(source, target)
    config = load_config(source) if config is None else config
    layout, headers = layout_from(config), read_headers(source)
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
    with beside(target) as temporary:
        noted, left_out = _write(source, temporary, headers, plans, config, to)
    kept = tuple(name for name in _names(headers) if name not in plans)
    told = _told(config, to, noted)
    return Conversion(found, to, tuple(plans), kept, noted, left_out, told)


def _check_places(source: Path, target: Path) -> None:
    """Raise unless there is a source, and a target outside it that is not there yet."""
    if not source.exists():
        raise CheckpointError(f"no such file or folder: {source}")
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists: a conversion never writes over anything")
    inner, outer = (Path(os.path.realpath(path)) for path in (target, source))
    if source.is_dir() and inner.is_relative_to(outer):
        raise CheckpointError(f"{target} is inside {source}, which stays as it is")


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
    (target / "config.json").write_text(json.dumps(noted, indent=2) + "\n", "utf-8")
    return INTERLEAVE, left_out


def _noted(config: Mapping[str, Any], to: Pairing) -> dict[str, Any] | None:
    """The config with the pairing in it, or None where its family's code reads no key for that.

    A config that leaves the key out means the family's own pairing, so it is written even then.
    """
    if not _has_key(config):
        return None
    path, section = text_section(config)
    noted = with_section(config, path, {**section, INTERLEAVE: to == "adjacent"})
    said = layout_from(noted).pairing
    if said != to:
        raise CheckpointError(f"the converted config would say {said} pairs over {to} weights")
    return noted


def _has_key(config: Mapping[str, Any]) -> bool:
    family = FAMILIES.get(layout_from(config).model_type)
    return family is not None and family.interleave


def _told(config: Mapping[str, Any], to: Pairing, noted: str | None) -> str:
    """Where the new pairing is said, for people: a checkpoint must not be mistaken for its source."""
    if noted is not None:
        return f"config.json says so in {noted!r}"
    layout = layout_from(config)
    model_type = layout.model_type
    if _has_key(config):
        value = json.dumps(to == "adjacent")
        return (
            "no config.json was written: it is noted in the weights' metadata, and the config of "
            f"{model_type} must say {INTERLEAVE} = {value} to go with these weights"
        )
    if layout.pairing == to:
        return (
            f"{to} pairs are what {model_type} code rotates: these weights go with it as they are"
        )
    return (
        "the config has no key for the pairing: it is noted in the weights' metadata, and code that "
        f"reads them must rotate {to} pairs, which {model_type} code does not unless it is told "
        "(set_rope)"
    )


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
        # weights in other forms would still have the old pairing
        weights = path.suffix in OTHER_WEIGHTS or ".safetensors" in path.name
        index = path.name == "model.safetensors.index.json"
        if path.is_file() and (index or not weights):
            shutil.copy2(path, target / path.name)
        else:
            left_out.append(path.name)
    return tuple(left_out)
