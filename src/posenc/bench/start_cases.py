"""A fresh interpreter that imports the library, beside one that imports PyTorch alone."""

import subprocess
import sys

import torch
from torch import Tensor

from posenc.bench.work import OURS, Case, Side, Target, Work

__all__ = ["START"]

TORCH = "torch alone"


def _fresh(statement: str) -> Side:
    def run(x: Tensor) -> tuple[Tensor]:
        subprocess.run([sys.executable, "-c", statement], check=True)
        return (x,)

    return run


def _start(length: int, against: frozenset[str]) -> Work:
    del length, against
    sides = {OURS: _fresh("import torch, posenc"), TORCH: _fresh("import torch")}
    return Work((torch.zeros(1),), sides, lambda x: (x,), 0.0, frozenset({TORCH}))


START: tuple[Case, ...] = (
    # 50 ms of the two seconds that PyTorch takes here
    Case("import", "A fresh interpreter imports posenc", (1,), _start, (Target(TORCH, 1.025),)),
)
