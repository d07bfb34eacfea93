"""Which tokens each rank holds under context parallelism: positions travel with the tokens.

>>> index = shard(16, rank=0, num_ranks=2, layout="zigzag")
>>> out = layer(x[:, index], positions[index])

The indices pick tokens, labels, segments and positions alike, so a rank never counts from 0.
"""

from typing import Literal

import torch
from torch import Tensor

from posenc.positions.checks import check_whole

__all__ = ["Layout", "padded_length", "shard", "unshard"]

Layout = Literal["contiguous", "zigzag", "striped"]


def shard(
    num_tokens: int,
    rank: int,
    num_ranks: int,
    *,
    layout: Layout = "contiguous",
    device: torch.device | str | None = None,
) -> Tensor:
    """Indices of the tokens of one rank, int64 `[num_tokens / num_ranks]`.

    >>> shard(16, 0, 2, layout="zigzag").tolist()
    [0, 1, 2, 3, 12, 13, 14, 15]

    "contiguous" gives rank r the r-th run; "zigzag" the r-th of 2R runs and the r-th from the end,
    which evens out causal work; "striped" every R-th token (Brandon 2023, arXiv 2311.09431).
    Raises ValueError where the tokens do not divide evenly: pad to `padded_length` first.
    """
    check_whole(num_tokens=num_tokens, rank=rank, num_ranks=num_ranks)
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank must be between 0 and num_ranks - 1, got {rank} of {num_ranks}")
    padded = padded_length(num_tokens, num_ranks, layout=layout)
    if padded != num_tokens:
        raise ValueError(
            f"{num_tokens} tokens do not divide over {num_ranks} ranks ({layout}): pad to {padded}"
        )
    index = torch.arange(num_tokens, device=device)
    if layout == "contiguous":
        return index.view(num_ranks, -1)[rank]
    if layout == "striped":
        return index.view(-1, num_ranks)[:, rank]
    runs = index.view(2 * num_ranks, -1)
    return torch.cat((runs[rank], runs[-1 - rank]))


def unshard(
    num_tokens: int,
    num_ranks: int,
    *,
    layout: Layout = "contiguous",
    device: torch.device | str | None = None,
) -> Tensor:
    """Indices that put shards, gathered in the order of ranks, back into the order of tokens.

    >>> whole = torch.cat(gathered, dim=1)[:, unshard(16, 2, layout="zigzag")]
    """
    shards = [shard(num_tokens, r, num_ranks, layout=layout) for r in range(num_ranks)]
    return torch.cat(shards).argsort().to(device)


def padded_length(num_tokens: int, num_ranks: int, *, layout: Layout = "contiguous") -> int:
    """The smallest length of at least `num_tokens` that divides evenly.

    >>> padded_length(2999, 4, layout="zigzag")
    3000
    """
    if layout not in ("contiguous", "zigzag", "striped"):
        raise ValueError(f"layout must be 'contiguous', 'zigzag' or 'striped', got {layout!r}")
    check_whole(num_tokens=num_tokens, num_ranks=num_ranks)
    if num_tokens < 1 or num_ranks < 1:
        raise ValueError(
            f"num_tokens and num_ranks must be at least 1, got {num_tokens} and {num_ranks}"
        )
    unit = num_ranks * (2 if layout == "zigzag" else 1)
    return -(-num_tokens // unit) * unit
