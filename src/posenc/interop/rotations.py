"""What is inside a rotation: M-RoPE, xPos and a learned scale all turn by a rope of their own."""

from typing import Any

__all__ = ["rope_of", "scaling_of"]


def rope_of(rotary: Any) -> Any:
    """The innermost rotation: of `MRope(Rope(64))` the rope, of anything else itself."""
    while (inner := getattr(rotary, "rope", None)) is not None:
        rotary = inner
    return rotary


def scaling_of(rotary: Any) -> Any:
    """The scaling method of a rotation, however it is wrapped; None where it has none.

    >>> scaling_of(MRope(Rope(128, scaling=Yarn(4.0, 32768)), (16, 24, 24)))
    Yarn(factor=4.0, original_length=32768, ...)
    """
    return getattr(rope_of(rotary), "scaling", None)
