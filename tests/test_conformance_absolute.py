"""The comparisons of tests/conformance/sinusoids.py: what they let through, and what they do not.

Their cases run with all others of docs/conformance.md in test_mrope_vision.py.
"""

import pytest
import torch

from conformance.sinusoids import assert_encodes, assert_near
from posenc import Sinusoidal
from posenc.positions import sequence


def test_the_comparison_sees_two_roundings_and_one_position() -> None:
    at, encoding = sequence(64), Sinusoidal(32)
    made = encoding.encode(at)
    assert_encodes(encoding, at, made, exact=True)
    for wrong in (made + 2**-22, encoding.encode(at + 1)):
        with pytest.raises(AssertionError, match="off by"):
            assert_near(wrong, encoding.encode(at, dtype=torch.float64))
    with pytest.raises(AssertionError, match="off by"):
        assert_encodes(encoding, at + 1, made)
