"""Values by distance, brought to the pairs of queries and keys that lie at that distance.

Where tokens follow one by one it is a view, not a lookup. Row i holds a value for each offset
k_pos − q_pos, ascending, from that of the last query and the first key on; query i and key j then
meet in column Q − 1 − i + j. Read each row one entry shorter than it is, and the values stand where
attention wants them (the relative shift of Transformer-XL, arXiv 1901.02860, appendix B, for any
block of queries and keys). At other positions, values are looked up pair by pair.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc.contracts import Block

__all__ = [
    "FEW",
    "bucket_logits",
    "clipped_logits",
    "clipped_sums",
    "consecutive_offsets",
    "from_keys",
    "offset_range",
    "skewed",
    "unskewed",
]

FEW = 4  # queries, as in decoding
LEAST_KEYS = 64  # at a time, in terms that start from the keys


def offset_range(block: Block) -> tuple[int, int]:
    """The first offset of consecutive tokens and how many: one more than occur, for the view."""
    assert block.first is not None
    num_queries, num_keys = block.q_pos.shape[-1], block.k_pos.shape[-1]
    return block.first[1] - (block.first[0] + num_queries - 1), num_queries + num_keys


def consecutive_offsets(block: Block) -> Tensor:
    """The Q + K offsets of a block whose tokens follow one by one, ascending."""
    start, width = offset_range(block)
    return torch.arange(start, start + width, device=block.q_pos.device)


def skewed(rows: Tensor) -> Tensor:
    """`[..., Q, Q + K]` values by offset -> `[..., Q, K]` by key: a view of contiguous rows."""
    num_queries, width = rows.shape[-2:]
    flat = rows.contiguous().flatten(-2)
    flat = flat.narrow(-1, num_queries - 1, flat.shape[-1] - num_queries + 1)
    size = (*rows.shape[:-1], width - num_queries)
    return flat.as_strided(size, (*flat.stride()[:-1], width - 1, 1))


def unskewed(values: Tensor) -> Tensor:
    """`[..., Q, K]` by key -> `[..., Q, Q + K]` by offset, with zeros where no key stands."""
    num_queries, num_keys = values.shape[-2:]
    rows = values.new_zeros(*values.shape[:-1], num_queries + num_keys)
    skewed(rows).copy_(values)
    return rows


def from_keys(k: Tensor, block: Block, logits: Callable[[Tensor, Block], Tensor]) -> Tensor:
    """`[B, H, Q, K]` of a term that starts from the keys: `logits` sees them in the place of queries.

    As many keys at a time as there are queries: the rows of all of them would be [K, Q + K].
    """
    num_keys = k.shape[2]
    size = num_keys if block.first is None else max(block.q_pos.shape[-1], LEAST_KEYS)
    if size >= num_keys:
        return logits(k, _swapped(block, 0, num_keys)).mT
    starts = range(0, num_keys, size)
    parts = [(start, min(size, num_keys - start)) for start in starts]
    made = [logits(k.narrow(2, *part), _swapped(block, *part)).mT for part in parts]
    return torch.cat(made, -1)


def _swapped(block: Block, start: int, count: int) -> Block:
    first = None if block.first is None else (block.first[1] + start, block.first[0])
    return Block(block.k_pos.narrow(-1, start, count), block.q_pos, first=first)


def clipped_logits(per_row: Tensor, low: int, block: Block) -> Tensor:
    """`[B, H, Q, N]` values of the offsets from low on -> `[B, H, Q, K]`; ends serve all beyond."""
    num_rows = per_row.shape[-1]
    if block.first is None:
        index = (block.offsets() - low).clamp(0, num_rows - 1)
        return per_row.gather(-1, index.expand(*per_row.shape[:2], -1, -1))
    before, kept, after = _overlap(block, low, num_rows)
    lead = per_row.shape[:-1]
    left, right = per_row[..., :1].expand(*lead, before), per_row[..., -1:].expand(*lead, after)
    return skewed(torch.cat((left, per_row[..., kept], right), -1))


def clipped_sums(weights: Tensor, low: int, num_rows: int, block: Block) -> Tensor:
    """The transpose: `[B, H, Q, K]` weights summed by offset, `[B, H, Q, N]`."""
    if block.first is None:
        index = (block.offsets() - low).clamp(0, num_rows - 1).expand_as(weights)
        return weights.new_zeros(*weights.shape[:-1], num_rows).scatter_add(-1, index, weights)
    before, kept, after = _overlap(block, low, num_rows)
    by_offset = unskewed(weights)
    left, inside, right = by_offset.split((before, kept.stop - kept.start, after), -1)
    ends = [
        F.pad(end.sum(-1, keepdim=True), pad)
        for end, pad in ((left, (0, num_rows - 1)), (right, (num_rows - 1, 0)))
    ]
    return F.pad(inside, (kept.start, num_rows - kept.stop)) + ends[0] + ends[1]


def bucket_logits(
    x: Tensor, table: Tensor, row_of: Callable[[Tensor], Tensor], block: Block
) -> Tensor:
    """`x [B, H, Q, D]` · `table [H|1, N, D]` at row_of(k_pos − q_pos) -> `[B, H, Q, K]`."""
    if block.first is None:
        index = row_of(block.offsets()).expand(*x.shape[:2], -1, -1)
        return (x @ table.mT).gather(-1, index)
    offsets = consecutive_offsets(block)
    if x.shape[2] <= FEW:  # products with the rows, of which there are fewer than keys
        return skewed((x @ table.mT)[..., row_of(offsets)])
    return skewed(x @ table[..., row_of(offsets), :].mT)


def _overlap(block: Block, low: int, num_rows: int) -> tuple[int, slice, int]:
    """Of consecutive offsets: how many lie before the rows, which rows occur, how many lie after."""
    start, width = offset_range(block)
    before = min(max(low - start, 0), width)
    after = min(max(start + width - (low + num_rows), 0), width)
    first_row = min(max(start - low, 0), num_rows)
    return before, slice(first_row, first_row + width - before - after), after
