"""Positions of tokens in a row: one document, several packed into one, padded batches, decoding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.positions.checks import check_whole, host_all

__all__ = ["following", "from_lengths", "from_padding_mask", "on_axes", "sequence"]


def sequence(length: int, *, start: int = 0, device: torch.device | str | None = None) -> Tensor:
    """Consecutive positions `start, start + 1, …` as int64 `[length]`.

    >>> sequence(3, start=5)
    tensor([5, 6, 7])
    """
    check_whole(length=length, start=start)
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    return torch.arange(start, start + length, dtype=torch.int64, device=device)


def from_padding_mask(mask: Tensor, *, padding: int = -1) -> Tensor:
    """Positions that count real tokens only: left, right or scattered padding, `[B, T]`.

    `mask` is 1 (or True) at real tokens. Padding gets the position `padding`; −1 is what
    `Learned(..., offset=...)` maps to the row before its first one (RoBERTa, OPT), and what
    `MultiHeadAttention` shows to no other token. `attention` itself takes −1 for a position: there
    the mask is `causal & same_segment(mask)`.

    >>> from_padding_mask(torch.tensor([[0, 0, 1, 1, 1]]))
    tensor([[-1, -1,  0,  1,  2]])
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {type(mask).__name__}: {mask!r}")
    real = mask.to(torch.int64)
    if mask.is_floating_point() or not host_all((real == 0) | (real == 1)):
        raise ValueError(f"a padding mask holds 0 and 1 (or bools), got dtype {mask.dtype}, {mask}")
    return torch.where(real == 1, real.cumsum(-1) - 1, padding)


def from_lengths(
    lengths: Sequence[int], *, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Positions and segments of documents packed into one row, each `[sum(lengths)]`.

    >>> from_lengths([3, 2])
    (tensor([0, 1, 2, 0, 1]), tensor([0, 0, 0, 1, 1]))
    """
    for n in lengths:
        check_whole(length=n)
    if not lengths or any(n < 1 for n in lengths):
        raise ValueError(f"lengths must be positive, one for each document, got {list(lengths)}")
    positions = torch.cat([sequence(n, device=device) for n in lengths])
    counts = torch.tensor(lengths, device=device)
    return positions, torch.arange(len(lengths), device=device).repeat_interleave(counts)


def following(positions: Tensor, num_tokens: int, *, num_axes: int = 1) -> Tensor:
    """The next positions of each row, after its own largest one: `[B, T]` -> `[B, num_tokens]`.

    A padded row goes on from its own last token, whichever side the padding (−1) is on, and a row
    with axes from its largest coordinate, on all axes at once (text after an image, M-RoPE).

    >>> following(torch.tensor([[-1, 0, 1], [0, 1, 2]]), 2)
    tensor([[2, 3],
            [3, 4]])
    """
    check_whole(num_tokens=num_tokens)
    if not isinstance(positions, Tensor) or num_tokens < 0:
        raise ValueError(f"{num_tokens} positions cannot follow {positions!r}")
    token_dim = -1 if num_axes == 1 else -2
    ahead = torch.arange(1, num_tokens + 1, device=positions.device)
    if num_axes == 1:
        return positions.amax(token_dim, keepdim=True) + ahead
    largest = positions.amax((-2, -1), keepdim=True)
    return (largest + ahead[:, None]).expand(*positions.shape[:-2], num_tokens, num_axes)


def on_axes(positions: Tensor, num_axes: int) -> Tensor:
    """Text among several axes: the same coordinate on each, `[..., T]` -> `[..., T, num_axes]`.

    >>> on_axes(sequence(2), 3).tolist()
    [[0, 0, 0], [1, 1, 1]]
    """
    return positions[..., None].expand(*positions.shape, num_axes)
