"""Time against length: causal softmax attention and causal linear attention, both with rotary.

    .venv/bin/python runs/linear_attention.py [LENGTH ...]

Prints the table of docs/claims.md. Rounds are interleaved, so that both meet the same machine; the
median and quantiles are over rounds. Batch 1, 8 heads of 64 channels, float32, no gradients.
"""

import sys

import torch
from rich.console import Console
from rich.table import Table

from posenc import Rope, Scheme, attention, linear_attention
from posenc.bench.timing import paired

SCHEME = Scheme(rotary=Rope(64))


def measure(length: int) -> list[str]:
    """One row of the table."""
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    with torch.no_grad():
        times = paired(
            lambda: attention(q, k, v, scheme=SCHEME),
            lambda: linear_attention(q, k, v, scheme=SCHEME),
            seconds=6.0,
        )
    softmax, linear = (part.as_dict(scale=1e3) for part in (times.baseline, times.candidate))
    ratio = times.ratio.as_dict()
    return [
        f"{length:,}",
        f"{softmax['median']:.1f}",
        f"{linear['median']:.1f}",
        f"{ratio['median']:.2f} ({ratio['p10']:.2f} to {ratio['p90']:.2f})",
        f"{1e3 * linear['median'] / length:.1f}",
    ]


def main(lengths: list[int]) -> None:
    """Print the table."""
    table = Table("length", "softmax, ms", "linear, ms", "linear / softmax", "linear, µs a token")
    for length in lengths:
        table.add_row(*measure(length))
    Console(width=100).print(table)


if __name__ == "__main__":
    main([int(length) for length in sys.argv[1:]] or [512, 1024, 2048, 4096, 8192, 16384])
