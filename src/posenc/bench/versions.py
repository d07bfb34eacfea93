"""Another version of this library, any git ref, as a baseline: each in processes of its own.

    python -m posenc.bench.versions CASE LENGTH SECONDS BENCH_FOLDER

measures one case under whatever posenc comes first on the path, with the cases of BENCH_FOLDER:
the older version need not know them.
"""

import os
import statistics
import subprocess
import sys
import tarfile
import types
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

__all__ = ["beside", "built"]

ROUNDS = 3  # processes of each version, in turns
FOLDER = Path(__file__).parent


def built(ref: str, folder: Path) -> Path:
    """The package of a git ref, with its compiled kernel, in a folder to put on the path."""
    root = FOLDER.parents[2]
    if not (root / ".git").exists():
        raise ValueError(f"a baseline needs a git checkout of posenc; {root} is none")
    archive = subprocess.run(
        ["git", "-C", str(root), "archive", f"{ref}^{{commit}}"], capture_output=True, check=False
    )
    if archive.returncode:
        told = archive.stderr.decode().strip()
        raise ValueError(f"--baseline takes a commit, branch or tag; git says of {ref!r}: {told}")
    source, site = folder / "source", folder / "site"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(source, filter="data")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"the package of {ref} could not be built: {done.stderr.strip()}")
    return site


def beside(site: Path, cells: Sequence[dict[str, Any]], seconds: float) -> None:
    """Add to each cell the time of this version over that of the other, `baseline_ratio`."""
    for cell in cells:
        if "refused" in cell:
            continue
        pairs = [
            [_seconds(path, cell, seconds) for path in (FOLDER.parents[1], site)]
            for _ in range(ROUNDS)
        ]
        ratios = [mine / its for mine, its in pairs if mine and its]
        cell["baseline_ratio"] = statistics.median(ratios) if ratios else None


def _seconds(path: Path, cell: dict[str, Any], seconds: float) -> float | None:
    script = [sys.executable, str(Path(__file__))]
    arguments = [cell["row"], str(cell["length"]), str(seconds / ROUNDS), str(FOLDER)]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [*script, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    return float(done.stdout) if done.returncode == 0 else None


def _main(name: str, length: str, seconds: str, folder: str) -> None:
    sys.path = [path for path in sys.path if Path(path or ".").resolve() != FOLDER.resolve()]
    cases = types.ModuleType("posenc.bench")
    cases.__path__ = [folder]
    import posenc  # noqa: F401, PLC0415  the version on the path

    sys.modules["posenc.bench"] = cases
    from posenc.bench.run import CASES  # noqa: PLC0415
    from posenc.bench.timing import timed  # noqa: PLC0415
    from posenc.bench.work import OURS  # noqa: PLC0415

    work = CASES[name].make(int(length), frozenset())
    print(timed(lambda: work.sides[OURS](*work.inputs), seconds=float(seconds)).median)


if __name__ == "__main__":
    _main(*sys.argv[1:])
