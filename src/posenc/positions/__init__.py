"""Positions: integer coordinates of tokens, always explicit, never inferred from storage.

A position is an integer tensor `[T]` or `[B, T]`; with several axes a last dimension is added,
`[T, A]` or `[B, T, A]`. Every encoding takes them, so packed documents, padding, prefixes, shards and
cached decoding are all the same call with other positions.
"""

from posenc.positions.checks import (
    assert_on_device,
    check_ints,
    check_positions,
    check_range,
    check_whole,
    check_window,
    query_key_positions,
)
from posenc.positions.grids import (
    centred,
    from_pixel_mask,
    grid,
    unravel,
    volume,
    with_class_token,
)
from posenc.positions.multimodal import Image, Text, Video, multimodal
from posenc.positions.sampling import pose, randomized
from posenc.positions.shards import padded_length, shard, unshard
from posenc.positions.tokens import following, from_lengths, from_padding_mask, on_axes, sequence

__all__ = [
    "Image",
    "Text",
    "Video",
    "assert_on_device",
    "centred",
    "check_ints",
    "check_positions",
    "check_range",
    "check_whole",
    "check_window",
    "following",
    "from_lengths",
    "from_padding_mask",
    "from_pixel_mask",
    "grid",
    "multimodal",
    "on_axes",
    "padded_length",
    "pose",
    "query_key_positions",
    "randomized",
    "sequence",
    "shard",
    "unravel",
    "unshard",
    "volume",
    "with_class_token",
]
