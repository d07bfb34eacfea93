"""The text that models are trained and scored on, as bytes: any language, no tokenizer.

By default it is the source of Python's own standard library, which every machine has.
"""

import codecs
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["Corpus", "load"]

MAX_BYTES = 8 << 20  # of text read: more than any budget trains on
HELD_OUT = 0.1  # share of the bytes that no model is trained on
LARGEST_HELD_OUT = 0.2  # a file larger than this share of the text is never held out whole
# folders of the standard library that are tests, tables of numbers, or no part of it
SKIPPED = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib"} | {
    "lib2to3", "turtledemo", "pydoc_data", "encodings", "ensurepip", "lib-dynload", "_pyrepl"
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text split into a part to train on and a part held out, each uint8 `[bytes]`."""

    name: str
    source: str
    num_bytes: int
    digest: str  # of both parts: it says whether two results come from the same text
    train: Tensor
    held_out: Tensor

    def check_window(self, length: int) -> None:
        """Raise unless each part holds a window of `length` bytes and the byte that follows it."""
        for part, text in (("to train on", self.train), ("held out", self.held_out)):
            if text.numel() <= length:
                raise ValueError(
                    f"{self.source} is too short: {text.numel():,} of its {self.num_bytes:,} bytes "
                    f"are {part}, and the longest window needs {length + 1:,}"
                )


def load(path: Path | None = None, *, longest_window: int = 1) -> Corpus:
    """The text of a file, of a folder of text files, or of Python's standard library (None).

    >>> corpus = load()
    >>> corpus = load(Path("war-and-peace.txt"), longest_window=1024)  # doctest: +SKIP

    Whole files are held out where there are enough of them, the tail otherwise; which ones depends
    on their names alone. Raises OSError where the path cannot be read, ValueError where it holds no
    text, or too little for the longest window.
    """
    if path is None:
        root = Path(sysconfig.get_path("stdlib"))
        name = f"Python {platform.python_version()} standard library"
    else:
        root, name = Path(path), Path(path).name or str(path)
    texts = dict(_read_all(root, suffix=".py" if path is None else ""))
    corpus = _split(texts, name, str(root))
    corpus.check_window(longest_window)
    return corpus


def _read_all(root: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents, in the order of the names, up to MAX_BYTES."""
    if not root.exists():
        raise FileNotFoundError(f"no such file or folder: {root}")
    if not root.is_dir():
        yield root.name, _checked(_read(root, MAX_BYTES), root)
        return
    left, num_files = MAX_BYTES, 0
    for num_files, name in enumerate(_names(root, suffix), start=1):  # noqa: B007
        content = _read(root / name, left)
        if content and _why_no_text(content) is None:  # pictures among the texts are passed over
            left -= len(content)
            yield name, content
        if left == 0:
            return
    if left == MAX_BYTES:
        kind = f"{suffix} files" if suffix else "files"
        raise ValueError(f"{root} has no text: none of its {num_files} {kind} is non-empty UTF-8")


def _names(root: Path, suffix: str) -> list[str]:
    """Names relative to the folder, hidden files and SKIPPED folders left out, sorted."""
    found = []
    for folder, subfolders, files in os.walk(root, onerror=_raise):
        subfolders[:] = [s for s in subfolders if s not in SKIPPED and not s.startswith(".")]
        wanted = [f for f in files if f.endswith(suffix) and not f.startswith(".")]
        found += [(Path(folder) / f).relative_to(root).as_posix() for f in wanted]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise type(error)(f"cannot read {path}: {error.strerror or error}") from error


def _checked(content: bytes, path: Path) -> bytes:
    why = "it is empty" if not content else _why_no_text(content)
    if why is not None:
        raise ValueError(f"{path} is no text: {why}")
    return content


def _why_no_text(content: bytes) -> str | None:
    if b"\0" in content:
        return f"byte {content.index(0):,} is NUL"
    try:  # incremental: the limit may have cut the last character in two
        codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError as error:
        return f"byte {error.start:,} is not UTF-8"
    return None


def _split(texts: dict[str, bytes], name: str, source: str) -> Corpus:
    held_names = _held_out_names({file: len(text) for file, text in texts.items()})
    train = b"\n".join(text for file, text in texts.items() if file not in held_names)
    held_out = b"\n".join(text for file, text in texts.items() if file in held_names)
    if not held_names:
        cut = round(len(train) * (1 - HELD_OUT))
        train, held_out = train[:cut], train[cut:]
    digest = hashlib.sha256(len(train).to_bytes(8, "big") + train + held_out).hexdigest()
    num_bytes = len(train) + len(held_out)
    return Corpus(name, source, num_bytes, digest, _tensor(train), _tensor(held_out))


def _held_out_names(sizes: dict[str, int]) -> set[str]:
    """Files in the order of a hash of their names until HELD_OUT is reached; none if few are."""
    total, held, names = sum(sizes.values()), 0, set()
    for name in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if held < HELD_OUT * total and held + sizes[name] <= LARGEST_HELD_OUT * total:
            names.add(name)
            held += sizes[name]
    return names if held >= HELD_OUT * total / 2 else set()


def _tensor(text: bytes) -> Tensor:
    if not text:  # frombuffer refuses nothing at all
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
