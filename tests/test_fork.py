"""A process forked from one whose threads have rotated."""

import os
import subprocess
import sys

import pytest

from posenc.kernels import native

# An interpreter of its own: a process that is itself forked may have lost the pool already.
PROGRAM = """
import os, signal
import numpy as np
import torch
from posenc import Rope, rotate_qk
from posenc.positions import sequence

torch.set_num_threads(2)
q, k = torch.randn(2, 4, 2000, 64), torch.randn(2, 1, 2000, 64)
tables = Rope(64).tables(sequence(2000), sequence(2000))
expected = rotate_qk(q, k, tables)  # the pool has run
child = os.fork()
if child == 0:
    signal.alarm(5)
    turned = rotate_qk(q, k, tables)
    same = all(np.array_equal(x.numpy(), y.numpy()) for x, y in zip(turned, expected))
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.skipif(native.missing() is not None, reason="the kernel was not built")
def test_a_forked_process_turns_too() -> None:
    """The threads of the pool stay with the parent: to wait for them would be forever."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout == "0\n", run.stderr
