"""Peak memory of one call, counted in the allocator: the same number on every run.

Resident size (RSS) would be the wrong ruler here: it moves in pages, keeps what the allocator caches,
and an earlier, larger call hides a later, smaller one unless each runs in its own process. The
profiler reports every allocation and release of PyTorch's CPU allocator in order, so the highest
running sum is exact and repeats to the byte. What it cannot see: buffers that a vendor library
(MKL, oneDNN) allocates for itself.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes alive at once during `call`, beyond those alive when it began; results included."""
    with _quiet_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        result = call()
        del result
    live = peak = 0
    for _, num_bytes in sorted(_allocations(run), key=lambda event: event[0]):
        live += num_bytes
        peak = max(peak, live)
    return peak


def _allocations(run: profile) -> Iterator[tuple[int, int]]:
    """(time, bytes) of every allocation, negative where memory was given back."""
    results = run.profiler.kineto_results if run.profiler else None
    assert results is not None, "the profiler ran"
    for event in results.events():
        if event.name() == "[memory]":
            yield event.start_ns(), event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The profiler's C++ side logs start and stop to file descriptor 2, whatever its log level."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
