"""Moving rotated keys: to another rotation, or to other positions, in a single step.

A key that is turned back and forth by a unit a thousand times is rounded a thousand times: for 64
channels in float16 it is 7% off, in bfloat16 66%. One turn by the difference is rounded once.
"""

from dataclasses import replace

import torch
from torch import Tensor

from posenc.contracts import RotaryEncoding, Table
from posenc.frequencies import host_for
from posenc.rotate import check_amplitude, rotate

__all__ = ["rerotate"]


def rerotate(
    k: Tensor,
    positions: Tensor,
    old: RotaryEncoding,
    new: RotaryEncoding,
    *,
    new_positions: Tensor | None = None,
) -> Tensor:
    """Keys `[B, H, T, D]` rotated under `old` at `positions`, as `new` would have rotated them.

    >>> k = rerotate(k, positions, rope, rope.at_length(8192))
    >>> k = rerotate(k, positions, rope, rope, new_positions=positions - 512)   # after eviction

    Any rotary form will do, amplitudes and several axes included, as long as both turn the same
    channels in the same pairs. Always start from the keys as they were first written: a chain of
    moves is rounded at every link.
    """
    host = host_for(k.device)
    moved = positions if new_positions is None else new_positions
    before, after = (
        form.tables(at.to(host), at.to(host), dtype=torch.float64).k
        for form, at in ((old, positions), (new, moved))
    )
    if _channels(before) != _channels(after):
        raise ValueError(f"keys of {old} cannot become keys of {new}: they turn other pairs")
    if after.amplified and k.dtype == torch.float16:
        check_amplitude(after, "k")
    amplitude = before.cos.square() + before.sin.square()
    cos = (after.cos * before.cos + after.sin * before.sin) / amplitude
    sin = (after.sin * before.cos - after.cos * before.sin) / amplitude
    cos, sin = (part.to(torch.promote_types(k.dtype, torch.float32)) for part in (cos, sin))
    cos, sin = cos.to(k.device), sin.to(k.device)
    return rotate(k, replace(after, cos=cos, sin=sin, amplified=False))


def _channels(table: Table) -> tuple[str, int, int, int]:
    return table.pairing, table.head_dim, table.start, table.rotary_dim
