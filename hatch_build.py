"""Build hook: compiles the CPU kernels where there is a C++ compiler, and goes on without one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/posenc/kernels")
# -ffp-contract=off: the same rounding on every processor, and equal to PyTorch's own operations
KERNELS = {
    "_rotary.so": ("rotary.cpp", "-ffp-contract=off"),
    "_attention.so": ("attention.cpp", "-ffp-contract=fast"),
}
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-pthread", "-Wno-psabi"]


class KernelHook(BuildHookInterface):
    """Adds the compiled libraries to the wheel, or to the source tree of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel with a library is tagged for the platform, one without for any."""
        del version
        if self.target_name != "wheel":
            return
        built = [name for name in KERNELS if self._compiled(name)]
        if not built:
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"] += [str(FOLDER / name) for name in built]

    def _compiled(self, name: str) -> bool:
        folder, (source, rounding) = Path(self.root) / FOLDER, KERNELS[name]
        library = folder / name
        compiler = os.environ.get("CXX") or next(
            (name for name in ("c++", "g++", "clang++") if shutil.which(name)), None
        )
        if compiler is None:
            self.app.display_warning(f"no C++ compiler: the CPU kernel {name} is left out")
            return False
        temporary = library.with_suffix(f".{os.getpid()}.part")
        command = [*compiler.split(), *FLAGS, rounding, str(folder / source), "-o", str(temporary)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            print(result.stderr, file=sys.stderr)
            self.app.display_warning(f"the CPU kernel {name} did not compile and is left out")
            temporary.unlink(missing_ok=True)
            return False
        temporary.replace(library)
        return True
