"""Memory by the operating system's count, in processes of their own: distances stay vectors where
documents are packed and where positions are given."""

import subprocess
import sys

import pytest

from posenc.bench.isolated import peak_of_call

LENGTH, HEADS, WIDTH = 4096, 8, 8
MEGABYTE = 1 << 20
CALL = f"""
import sys
import torch
from posenc import Alibi, Scheme, T5Bias, attention, causal, same_segment
from posenc.bench.isolated import peak_of_call
from posenc.positions import from_lengths

torch.set_num_threads(1)
kind, bias, length, records = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "grad"
scheme = Scheme(bias={{"alibi": Alibi({HEADS}), "t5": T5Bias({HEADS}, bidirectional=False)}}[bias])

def run(length):
    q, k, v = (torch.randn(1, {HEADS}, length, {WIDTH}, requires_grad=records) for _ in range(3))
    at, ids = from_lengths([length // 2, length - length // 2])
    mask = causal & same_segment(ids) if kind == "packed" else causal
    at = torch.arange(length) + 7 if kind == "later" else at
    def call():
        out = attention(q, k, v, scheme=scheme, q_pos=at, k_pos=at, mask=mask)
        if records:
            out.sum().backward()
    return call

run(512)()
call = run(length)
with torch.set_grad_enabled(records):
    print(peak_of_call(call))
"""


def peak(kind: str, bias: str, length: int, grad: str) -> int:
    command = [sys.executable, "-c", CALL, kind, bias, str(length), grad]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the count is Linux's")
@pytest.mark.parametrize(
    ("kind", "bias", "grad"),
    [
        ("later", "alibi", "none"),
        ("packed", "alibi", "none"),
        ("later", "t5", "none"),
        ("packed", "t5", "none"),
        ("packed", "t5", "grad"),
    ],
)
def test_peak_memory_of_documents_and_given_positions_is_linear(
    kind: str, bias: str, grad: str
) -> None:
    """A bias `[H, T, T]` of the longer call is 2 GB; blocks of one are 64 MB.

    The gradient writes out weights of a few queries, 16 MB, several of them at once.
    """
    short, long = (peak(kind, bias, length, grad) for length in (LENGTH, 2 * LENGTH))
    most = (24 if grad == "none" else 300) * MEGABYTE
    assert long < most, f"{long:,} bytes"
    assert long < 2.2 * short + 8 * MEGABYTE, f"{short:,} and {long:,} bytes"


def test_the_count_sees_what_is_allocated() -> None:
    assert peak_of_call(lambda: bytearray(100 * MEGABYTE)) > 90 * MEGABYTE
