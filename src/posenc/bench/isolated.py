"""Peak memory of one side of one case, in a process that does nothing else.

    python -m posenc.bench.isolated CASE LENGTH SIDE [PEER ...]

Prints the most resident bytes during one call beyond those resident before it.
"""

import resource
import sys
from pathlib import Path

from posenc.bench.run import CASES

__all__ = ["main", "peak_of_call"]


def main(arguments: list[str]) -> None:
    """Print the figure."""
    name, length, side, *against = arguments
    case, peers = CASES[name], frozenset(against)
    small = case.make(case.gate_length, peers)
    small.sides[side](*small.inputs)  # code, thread pools and compiled kernels are loaded by now
    work = case.make(int(length), peers)
    print(peak_of_call(lambda: work.sides[side](*work.inputs)))


def peak_of_call(call: object) -> int:
    """Bytes above the resident size before; Linux forgets its high-water mark on request."""
    assert callable(call)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return max(0, _status("VmHWM") - before)
    except OSError:  # not Linux: the mark of the whole process, which only rises
        unit = 1 if sys.platform == "darwin" else 1024
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    main(sys.argv[1:])
