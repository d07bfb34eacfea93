"""Settings of every run: one thread, fixed seeds, warnings are errors (pyproject)."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():  # read when a kernel is defined: Triton's interpreter runs it
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=20,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Every test starts from the same random state and leaves the default dtype as it was."""
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs a GPU skips with a reason where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
