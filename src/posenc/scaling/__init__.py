"""Scaling methods: from a rope's trained spectrum to one that reaches further.

Each is a small frozen value, `scaling(spectrum) -> Frequencies`. A new method is a new class in a
file of its own; kernels, attention and models never hear of it. `factor` is new length / original
length. A method that depends on the length of the sequence says so with `at_length`, and never looks
at a batch.
"""

from typing import Protocol, runtime_checkable

from posenc.frequencies import Frequencies, Spectrum
from posenc.scaling.linear import Linear
from posenc.scaling.llama3 import Llama3
from posenc.scaling.longrope import LongRope
from posenc.scaling.ntk import NTK, DynamicNTK
from posenc.scaling.proportional import Proportional
from posenc.scaling.qwen import QwenNTK
from posenc.scaling.yarn import NTKByParts, Yarn

__all__ = [
    "NTK",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRope",
    "NTKByParts",
    "Proportional",
    "QwenNTK",
    "Scaling",
    "Yarn",
]


@runtime_checkable
class Scaling(Protocol):
    """What `Rope(scaling=...)` takes."""

    def __call__(self, spectrum: Spectrum) -> Frequencies: ...
