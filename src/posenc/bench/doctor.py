"""What this installation can do, and what impl="auto" picks here."""

import importlib.util
import platform

import torch

import posenc
from posenc.kernels import native

__all__ = ["findings"]

OPTIONAL = ("triton", "transformers", "huggingface_hub", "gguf")


def findings() -> dict[str, str]:
    """A line for each thing that decides which code runs."""
    why = native.missing()
    rotation = (
        "native: the compiled kernel, for float32 and bfloat16, on "
        + ("PyTorch's threads" if native.joins_pool() else "threads of its own")
        if why is None
        else f"eager, block by block: {why}"
    )
    found = {
        "posenc": posenc.__version__,
        "python": platform.python_version(),
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "rotate on the CPU": rotation,
        "rotate elsewhere": "eager: PyTorch's operations, which torch.compile fuses",
        "attention, bias by distance": "sdpa, over a strided view of one vector per head, O(H·T)",
        "attention, other schemes": "sdpa, a block of queries at a time where a mask is built",
        "GPU": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }
    for name in OPTIONAL:
        found[name] = "installed" if importlib.util.find_spec(name) else "not installed"
    return found
