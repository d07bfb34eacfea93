"""What `import posenc` loads, which way imports point, and what every module says it exports."""

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import posenc
import posenc_cli

ROOT = Path(posenc.__file__).parent
HEAVY = ("matplotlib", "click", "rich", "transformers", "triton", "hypothesis", "pandas", "scipy")

# What a layer may import: itself (within one package), and every layer above it in this list.
LAYERS: list[set[str]] = [
    {"positions", "masks", "frequencies"},
    {"scaling"},
    {"contracts"},
    {"kernels"},
    {"rotate"},
    {"additive", "rotary", "bias", "relative", "query_scale"},
    {"attention", "sharding"},
    {"records", "registry"},
    {"interop", "bench", "lab"},
    {"report", "inspection"},
    {"compare"},
    {"cli"},
    {"__main__"},
]


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the library: its dotted name and its file."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def unit(name: str) -> str:
    """`posenc.bias.t5` -> `bias`; the package itself -> ``."""
    return [*name.split("."), ""][1]


def imported(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """The modules of ours that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "posenc":
                names = [f"posenc.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "posenc":
                yield name, node


def depth(name: str) -> int:
    found = [i for i, layer in enumerate(LAYERS) if name in layer]
    assert found, f"{name} has no layer: name it in LAYERS"
    return found[0]


@pytest.mark.parametrize("name", [name for name in MODULES if unit(name)])
def test_imports_point_from_the_command_line_to_the_positions(name: str) -> None:
    mine = unit(name)
    for target, _ in imported(MODULES[name]):
        theirs = unit(target)
        if theirs not in set().union(*LAYERS):
            # `from posenc import Rope`, `import posenc`: the surface itself, for what stands on it
            assert depth(mine) >= depth("records"), f"{name} imports the surface ({target})"
            continue
        is_inside = theirs == mine
        assert is_inside or depth(theirs) < depth(mine), f"{name} imports {target}"


@pytest.mark.parametrize("name", [name for name in MODULES if unit(name) != "kernels"])
def test_kernels_are_imported_inside_functions_only(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for target, node in imported(MODULES[name]):
        assert unit(target) != "kernels" or id(node) not in top, f"{name} imports {target}"


def is_bare(path: Path) -> bool:
    """A docstring and nothing else."""
    return all(isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if not is_bare(path)])
def test_all_exists_and_resolves(name: str) -> None:
    if name == "posenc.__main__":  # importing it runs it
        return
    if name.endswith(".triton_kernel"):
        pytest.importorskip("triton")
    module = importlib.import_module(name)
    exported = module.__all__
    assert len(exported) == len(set(exported))
    assert all(hasattr(module, attribute) for attribute in exported)


def test_the_surface_is_what_all_says() -> None:
    submodules = {unit(name) for name in MODULES}
    public = {name for name in vars(posenc) if not name.startswith("_")} - submodules
    assert public <= set(posenc.__all__)


def run(code: str) -> str:
    inherited = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    made = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=inherited,
    )
    return made.stdout


def test_importing_the_library_loads_nothing_heavy() -> None:
    loaded = run("import sys, posenc; print(' '.join(sys.modules))").split()
    assert "torch" in loaded
    ours = {name.split(".")[0] for name in loaded}
    assert not ours & set(HEAVY)
    units = {unit(name) for name in loaded if name.startswith("posenc.")}
    assert not units & {
        "registry",
        "lab",
        "bench",
        "report",
        "cli",
        "interop",
        "compare",
        "kernels",
    }


WORK = """
import json, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
before, calls, operators = set(sys.modules), 0, 0

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        global operators
        operators += 1
        return func(*args, **(kwargs or {}))

def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

with Seen():
    sys.setprofile(count)
    import posenc
    sys.setprofile(None)
others = [name for name in set(sys.modules) - before if name.split(".")[0] != "posenc"]
print(json.dumps([calls, operators, others]))
"""


def test_importing_the_library_does_little_beyond_importing_torch() -> None:
    """Its work is counted, not timed: no other module, no tensor, and calls as few as now.

    The time is a row of the benchmark, `import`; most of the calls make the dataclasses.
    """
    calls, operators, others = json.loads(run(WORK))
    assert others == []
    assert operators == 0
    assert calls < 40_000, f"{calls:,} calls; 28,000 when this was written"


CLI = Path(posenc_cli.__file__).parent


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_the_command_line_imports_the_library_inside_functions_only(path: Path) -> None:
    """What is outside of functions loads with `posenc --help`: the standard library and click."""
    allowed = {"click", "posenc_cli", *sys.stdlib_module_names}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert {name.split(".")[0] for name in names} <= allowed, ast.unparse(node)


@pytest.mark.parametrize(
    "name", [name for name in MODULES if unit(name) not in ("cli", "__main__")]
)
def test_the_library_does_not_import_the_command_line(name: str) -> None:
    assert "posenc_cli" not in MODULES[name].read_text(encoding="utf-8")


def test_modules_are_found_beside_the_functions_of_their_name() -> None:
    """`posenc.attention` is the function: `import posenc.attention.module as m` finds no module."""
    from posenc.attention import module  # noqa: PLC0415
    from posenc.rotate import rotate_qk  # noqa: PLC0415

    assert module.MultiHeadAttention is posenc.MultiHeadAttention
    assert rotate_qk is posenc.rotate_qk and callable(posenc.attention) and callable(posenc.rotate)
