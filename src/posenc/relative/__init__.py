"""Relative positions as vectors on keys and values."""

from posenc.relative.shaw import Shaw

__all__ = ["Shaw"]
