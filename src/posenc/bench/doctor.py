"""What this installation can do, and what impl="auto" picks here."""

import importlib.util
import platform

import torch

import posenc
from posenc.kernels import attention, library, native, triton_rotary

__all__ = ["findings"]

OPTIONAL = ("triton", "transformers", "huggingface_hub", "gguf")


def findings() -> dict[str, str]:
    """A line for each thing that decides which code runs."""
    why = native.missing()
    rotation = (
        "native: the compiled kernel, for float32 and bfloat16, on "
        + ("PyTorch's threads" if library.joins_pool() else "threads of its own")
        if why is None
        else f"eager, block by block: {why}"
    )
    found = {
        "posenc": posenc.__version__,
        "python": platform.python_version(),
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "rotate on the CPU": rotation,
        "rotate on a GPU": _on_gpu(),
        "rotate elsewhere, or compiled": "eager: PyTorch's operations, which torch.compile fuses",
        "attention, bias by distance": _by_distance(),
        "attention, other schemes": "sdpa, a block of queries at a time where a mask is built",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
    for name in OPTIONAL:
        found[name] = "installed" if importlib.util.find_spec(name) else "not installed"
    return found


def _by_distance() -> str:
    view = "sdpa, over a strided view of one vector per head, O(H·T)"
    why = attention.missing()
    if why is not None:
        return f"{view}: {why}"
    return f"native, in float32 without gradients on the CPU: the compiled kernel; else {view}"


def _on_gpu() -> str:
    device = (
        torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    )
    why = triton_rotary.missing(device)
    if why is not None:
        return f"eager: {why}"
    kernel = "triton: one kernel for queries and keys, in float32, bfloat16 and float16"
    return kernel if device else f"none here; interpreted on the CPU by name: {kernel}"
