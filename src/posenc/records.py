"""Results on disk: finished cells survive a kill, and nothing is ever half-written."""

import hashlib
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

__all__ = ["CellStore", "machine", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the target and rename: readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
