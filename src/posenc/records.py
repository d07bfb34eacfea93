"""Results on disk: finished cells survive a kill, and nothing is ever half-written."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

__all__ = ["CellStore", "beside", "machine", "write_atomically"]


def write_atomically(path: Path, content: str | bytes, *, replace: bool = True) -> None:
    """Write beside the target and rename: readers see the old file or the new one, never a part."""
    with beside(path, replace=replace) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def beside(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """A path beside the target, for a file or a folder: renamed to it at the end.

    >>> with beside(Path("out.json")) as path:
    ...     path.write_text("{}")

    Folders above the target are made. Whatever is raised inside, and after Ctrl-C, neither the part
    nor the new folders stay. Raises FileExistsError where the target exists, `replace` aside; errors
    about writing name the target.
    """
    if not replace:
        _check_new(target)
    temporary = target.with_name(f".{target.name[:40]}.{os.getpid()}.part")
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        if not replace:
            _check_new(target)
        os.replace(temporary, target)
    except BaseException as error:
        _clear(temporary, made)
        if isinstance(error, OSError) and error.errno is not None:
            named = "" if error.filename is None else str(error.filename)
            if not named or named.startswith(str(temporary)):
                raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def _check_new(target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists: expected a new name, nothing is written over")


def _clear(temporary: Path, made: Sequence[Path]) -> None:
    """Take away a part and the folders made for it; what others put there in the meantime stays."""
    with suppress(OSError):
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


class CellStore:
    """A folder of finished cells, one JSON file each, all made under the same settings.

    >>> store = CellStore(Path("posenc-compare/cells"), settings={"budget": "quick"})
    >>> store.put("rope-seed0", {"nats": 1.4})

    Cells made under other settings (another text, budget or version) are not seen: their key holds
    a digest of the settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder / _digest(settings)
        self.settings = settings

    def get(self, key: str) -> dict[str, Any] | None:
        """The finished cell, or None; a file that is no result counts as not finished."""
        try:
            cell = json.loads(self._path(key).read_text())
        except (OSError, ValueError):
            return None
        return cell if isinstance(cell, dict) and "row" in cell else None

    def put(self, key: str, cell: dict[str, Any]) -> None:
        """Keep a finished cell."""
        write_atomically(self._path(key), json.dumps(cell, indent=1))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def machine() -> dict[str, Any]:
    """What a figure depends on: processor, threads, versions, the commit of this code, the time."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _digest(settings: dict[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of a source checkout; None where posenc is installed from a wheel."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
