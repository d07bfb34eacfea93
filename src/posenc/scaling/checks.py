"""Checks that scaling methods share: each error names the method, the field and what it got."""

import math
from typing import Any

__all__ = [
    "check_factor",
    "check_flag",
    "check_length",
    "check_one_of",
    "check_positive",
    "is_number",
]


def is_number(value: object) -> bool:
    """A finite int or float, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False


def check_factor(scaling: Any) -> None:
    """A factor stretches: 1 or more, finite; "4" and 0.25 are mistakes elsewhere."""
    if not is_number(scaling.factor) or scaling.factor < 1:
        raise ValueError(
            f"{type(scaling).__name__}: factor is new length / original length, a number of at "
            f"least 1, got {scaling.factor!r}"
        )


def check_length(scaling: Any) -> None:
    """The trained length: an int of at least 2."""
    length = scaling.original_length
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise ValueError(
            f"{type(scaling).__name__}: original_length must be an int of at least 2, got {length!r}"
        )
    current = getattr(scaling, "length", None)
    if current is not None and (isinstance(current, bool) or not isinstance(current, int)):
        raise ValueError(
            f"{type(scaling).__name__}: length must be an int or None, got {current!r}"
        )


def check_positive(scaling: Any, name: str) -> None:
    """None, or a positive finite number."""
    value = getattr(scaling, name)
    if value is not None and not (is_number(value) and value > 0):
        raise ValueError(f"{type(scaling).__name__}: {name} must be positive, got {value!r}")


def check_flag(scaling: Any, name: str) -> None:
    """True or False; "no" is neither."""
    value = getattr(scaling, name)
    if not isinstance(value, bool):
        raise ValueError(f"{type(scaling).__name__}: {name} must be True or False, got {value!r}")


def check_one_of(scaling: Any, name: str, choices: tuple[str, ...]) -> None:
    """One of the named options."""
    value = getattr(scaling, name)
    if value not in choices:
        raise ValueError(
            f"{type(scaling).__name__}: {name} must be one of {choices}, got {value!r}"
        )
