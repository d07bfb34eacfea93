"""What an encoding costs: time against no encoding, parameters, tables, peak memory.

One row for each entry of the registry, at one size. A row is measured only after its fast path
agreed with the float64 reference at a smaller size; one that disagrees, or that does not fit the
size, is refused and says why.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from posenc.bench.memory import peak_bytes
from posenc.bench.step import Size, Step, gate, own_work
from posenc.bench.timing import Paired, paired, timed
from posenc.registry import Encoding

__all__ = ["Effort", "Size", "measure", "table_bytes"]


@dataclass(frozen=True)
class Effort:
    """Seconds spent on each kind of timing, for one row."""

    forward: float
    training: float
    own: float

    @classmethod
    def shared(cls, seconds: float, num_rows: int) -> "Effort":
        """A total divided among rows: the table takes as long however many encodings there are."""
        each = seconds / max(num_rows, 1)
        return cls(0.38 * each, 0.52 * each, 0.1 * each)


def measure(entry: Encoding, size: Size, effort: Effort) -> dict[str, Any]:
    """One row of the cost table, for a record; a row that cannot be trusted holds only why."""
    try:
        reason = gate(entry, size.for_gate())
        step = Step(entry, size)
    except (TypeError, ValueError) as error:
        return {"row": entry.name, "refused": " ".join(str(error).split())}
    if reason is not None:
        return {"row": entry.name, "refused": reason}
    bare = Step.without_encoding(entry, size)
    memory = {  # first: these runs also warm up
        "forward": _memory(bare.forward, step.forward),
        "training": _memory(bare.training, step.training),
    }
    return {
        "row": entry.name,
        "forward": _times(paired(bare.forward, step.forward, seconds=effort.forward)),
        "training": _times(paired(bare.training, step.training, seconds=effort.training)),
        "own_ms": _own_ms(step, effort.own),
        "num_parameters": sum(p.numel() for p in step.parameters()),
        "table_bytes": table_bytes(step),
        "dense_bias_bytes": 4 * size.num_heads * size.length**2 if step.scheme.bias else 0,
        "memory": memory,
    }


def table_bytes(step: Step) -> int:
    """Bytes of the distinct position values that one forward reads, in float32.

    Stored or made on the way alike: the T added vectors; cos and sin of T positions; a bias once
    for each distance, 0 … T-1, where it depends on nothing else, otherwise its learned table.
    """
    scheme, size, num_values = step.scheme, step.size, 0
    if scheme.additive is not None:
        num_values += size.length * size.dim
    if scheme.rotary is not None:
        pos = step.pos
        tables = scheme.rotary.tables(pos, pos)
        parts = {
            id(part): part for table in (tables.q, tables.k) for part in (table.cos, table.sin)
        }
        num_values += sum(part.numel() for part in parts.values())
    if scheme.bias is not None and scheme.bias.by_distance:
        num_values += size.num_heads * size.length
    elif scheme.bias is not None:
        num_values += sum(p.numel() for p in scheme.bias.parameters())
    if scheme.relative is not None:
        num_values += sum(p.numel() for p in scheme.relative.parameters())
    return 4 * num_values


def _own_ms(step: Step, seconds: float) -> dict[str, float]:
    """Milliseconds of the encoding's own work, summed over the parts of a hybrid."""
    with torch.no_grad():
        parts = [timed(work, seconds=seconds).as_dict(scale=1e3) for work in own_work(step)]
    return {name: sum(part[name] for part in parts) for name in ("median", "p10", "p90")}


def _memory(bare: Callable[[], object], step: Callable[[], object]) -> dict[str, int]:
    without, with_scheme = peak_bytes(bare), peak_bytes(step)
    return {"peak_bytes": with_scheme, "extra_bytes": with_scheme - without}


def _times(times: Paired) -> dict[str, Any]:
    return {
        "ms": times.candidate.as_dict(scale=1e3),
        "baseline_ms": times.baseline.as_dict(scale=1e3),
        "ratio": times.ratio.as_dict(),
    }
