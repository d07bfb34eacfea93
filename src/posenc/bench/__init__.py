"""What each encoding costs on this machine: time, parameters, memory."""

from posenc.bench.cost import Effort, measure
from posenc.bench.step import Size, Step
from posenc.bench.timing import Paired, Quantiles, paired, quantiles, timed

__all__ = [
    "Effort",
    "Paired",
    "Quantiles",
    "Size",
    "Step",
    "measure",
    "paired",
    "quantiles",
    "timed",
]
