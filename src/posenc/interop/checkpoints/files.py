"""Reading and writing safetensors files one tensor at a time.

The format: 8 bytes with the length of the header, a JSON header, the raw bytes of every tensor.
Nothing here decodes a number, so every dtype passes through, including ones torch does not know.
"""

import json
import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from posenc.interop.config_files import OTHER_WEIGHTS, parse_object
from posenc.interop.errors import ConfigError
from posenc.interop.keys import shown

__all__ = ["CheckpointError", "Header", "Stored", "read_header", "rewrite"]

MAX_HEADER = 100_000_000  # what the safetensors library accepts
CHUNK = 1 << 20
LFS_POINTER = b"version "  # how the text begins that stands for a file until it is fetched
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or converted: names the file and the tensor."""


@dataclass(frozen=True)
class Stored:
    """One tensor in a file: `start` and `stop` count bytes from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of itself."""

    path: Path
    tensors: tuple[Stored, ...]  # in the order of their bytes
    metadata: Mapping[str, str]
    data_start: int

    def read(self, tensor: Stored) -> bytearray:
        """The raw bytes of one tensor."""
        with self.path.open("rb") as file:
            file.seek(self.data_start + tensor.start)
            data = bytearray(tensor.num_bytes)
            _fill(file, data, self.path)
            return data


def read_header(path: Path) -> Header:
    """The checked header of a file: tensors must fill the rest of it without gap or overlap.

    >>> [tensor.name for tensor in read_header(Path("model.safetensors")).tensors]
    """
    if path.suffix in OTHER_WEIGHTS:
        raise CheckpointError(
            f"{path} is not read, since {path.suffix} files may hold pickles or layouts of their "
            "own: expected safetensors"
        )
    if not path.is_file():
        raise CheckpointError(f"{path} is no file: expected safetensors")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if start == LFS_POINTER:
            raise CheckpointError(f"{path} is a pointer of Git LFS, not the weights: fetch them")
        length = int.from_bytes(start, "little")
        if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER):
            raise CheckpointError(
                f"{path} is no safetensors file: its header cannot be {length} bytes"
            )
        try:
            header = parse_object(file.read(length), "its header")
        except ConfigError as error:
            raise CheckpointError(f"{path} is no safetensors file: {error}") from error
    metadata = _metadata(path, header.pop("__metadata__", {}))
    tensors = [_stored(path, name, entry) for name, entry in header.items()]
    ordered = tuple(sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)))
    _check_contiguous(path, ordered, size - 8 - length)
    return Header(path, ordered, metadata, 8 + length)


def rewrite(
    header: Header,
    target: Path,
    new_order: Callable[[Stored], Tensor | None],
    *,
    metadata: Mapping[str, str],
) -> None:
    """Write a new file with the same tensors, the rows of some in another order.

    `new_order` gives which old row each new row of a tensor holds, or None where it stays. A tensor
    that changes is read whole, one at a time; the others are copied in small pieces. Files are read,
    not mapped: mapped pages would stay in memory for as long as there is room.
    """
    piece = bytearray(CHUNK)
    with header.path.open("rb") as source, target.open("xb") as out:
        out.write(_encoded(header, metadata))
        source.seek(header.data_start)
        for tensor in header.tensors:
            order = new_order(tensor)
            if order is None:
                _copy(source, out, tensor.num_bytes, header.path, piece)
            else:
                _move(source, out, tensor.num_bytes, header.path, order)


def _stored(path: Path, name: str, entry: Any) -> Stored:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        counts = [*shape, start, stop]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name!r} has no dtype, shape and offsets") from error
    whole = all(type(n) is int and n >= 0 for n in counts) and start <= stop
    if not whole or not isinstance(dtype, str):
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {dtype!r}, shape {shape}, offsets {start}, {stop}: "
            "expected a string and whole numbers"
        )
    bits = BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits // 8 != stop - start:
        raise CheckpointError(
            f"{path}: tensor {name!r} is {dtype} {list(shape)} but has {stop - start} bytes"
        )
    return Stored(name, dtype, shape, start, stop)


def _metadata(path: Path, given: Any) -> Mapping[str, str]:
    if not isinstance(given, dict) or not all(isinstance(x, str) for x in given.values()):
        raise CheckpointError(
            f"{path}: __metadata__ = {shown(given)}: expected an object from strings to strings"
        )
    return given


def _check_contiguous(path: Path, tensors: tuple[Stored, ...], num_bytes: int) -> None:
    position = 0
    for tensor in tensors:
        if tensor.start != position:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} starts at byte {tensor.start}, expected {position}"
            )
        position = tensor.stop
    if position != num_bytes:
        raise CheckpointError(f"{path}: tensors take {position} bytes, the file holds {num_bytes}")


def _encoded(header: Header, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for tensor in header.tensors:
        offsets = [tensor.start, tensor.stop]
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _copy(source: BinaryIO, out: BinaryIO, num_bytes: int, path: Path, piece: bytearray) -> None:
    for start in range(0, num_bytes, len(piece)):
        some = memoryview(piece)[: num_bytes - start]
        _fill(source, some, path)
        out.write(some)


def _move(source: BinaryIO, out: BinaryIO, num_bytes: int, path: Path, order: Tensor) -> None:
    if num_bytes == 0:
        return
    data = mmap.mmap(-1, num_bytes)  # goes back to the system at once, where a heap would keep it
    _fill(source, data, path)
    rows = torch.frombuffer(data, dtype=torch.uint8).view(order.numel(), -1)
    parts = order.split(max(1, CHUNK // rows.shape[1]))
    moved = torch.empty_like(rows[: len(parts[0])])
    for some in parts:
        out.write(torch.index_select(rows, 0, some, out=moved[: len(some)]).numpy().data)


def _fill(file: Any, data: bytearray | memoryview | mmap.mmap, path: Path) -> None:
    if file.readinto(data) != len(data):
        raise CheckpointError(f"{path} ends in the middle of a tensor")
