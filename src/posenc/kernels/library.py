"""The compiled libraries of the CPU kernels: found, checked against this source, given threads."""

import ctypes
import os
from functools import cache
from pathlib import Path

import torch

__all__ = ["join_pool", "joins_pool", "leave_pool", "load"]

AGAIN = "install posenc again with a C++ compiler present"
_LOADED: list[ctypes.CDLL] = []


def load(name: str, version: int) -> tuple[ctypes.CDLL | None, str | None]:
    """The library beside this file, on PyTorch's threads; or None, and why there is none."""
    path = Path(__file__).with_name(name)
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None, f"the kernel was not built ({name}): {AGAIN}"
    try:
        found = library.posenc_version()
    except AttributeError:
        found = 1  # had no such function
    if found != version:
        return None, (
            f"{name} was built from another source (version {found}, this is {version}): {AGAIN}"
        )
    library.posenc_use_pool.argtypes = (ctypes.c_void_p,) * 3
    library.posenc_use_pool.restype = None
    _LOADED.append(library)
    join_pool()
    return library, None


@cache
def _pool() -> tuple[ctypes.c_void_p, ...] | None:
    """The entry points of the OpenMP library that runs PyTorch's threads, where one does."""
    library = Path(torch.__file__).parent / "lib/libtorch_cpu.so"
    try:
        loaded = ctypes.CDLL(str(library))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        return tuple(ctypes.cast(loaded[name], ctypes.c_void_p) for name in names)
    except (OSError, AttributeError):
        return None


def joins_pool() -> bool:
    """Whether the kernels can run on PyTorch's own threads."""
    return bool(_LOADED) and _pool() is not None


def join_pool() -> None:
    """Run on PyTorch's own threads from now on; where there are none, on threads of the kernels'."""
    pool = _pool()
    if pool is not None:
        for library in _LOADED:
            library.posenc_use_pool(*pool)


def leave_pool() -> None:
    """Start threads of the kernels' own from now on."""
    for library in _LOADED:
        library.posenc_use_pool(None, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=leave_pool)  # the pool stays with the parent
