"""Build hook: compiles the CPU kernel where there is a C++ compiler, and goes on without one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/posenc/kernels/rotary.cpp")
LIBRARY = Path("src/posenc/kernels/_rotary.so")
# -ffp-contract=off: the same rounding on every processor, and equal to PyTorch's own operations
FLAGS = [
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-pthread",
]


class KernelHook(BuildHookInterface):
    """Adds the compiled library to the wheel, or to the source tree of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel with a library is tagged for the platform, one without for any."""
        del version
        if self.target_name != "wheel" or not self._compiled():
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(str(LIBRARY))

    def _compiled(self) -> bool:
        root = Path(self.root)
        library, source = root / LIBRARY, root / SOURCE
        compiler = os.environ.get("CXX") or next(
            (name for name in ("c++", "g++", "clang++") if shutil.which(name)), None
        )
        if compiler is None:
            self.app.display_warning("no C++ compiler: the CPU kernel is left out")
            return False
        temporary = library.with_suffix(f".{os.getpid()}.part")
        command = [*compiler.split(), *FLAGS, str(source), "-o", str(temporary)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            print(result.stderr, file=sys.stderr)
            self.app.display_warning("the CPU kernel did not compile and is left out")
            temporary.unlink(missing_ok=True)
            return False
        temporary.replace(library)
        return True
