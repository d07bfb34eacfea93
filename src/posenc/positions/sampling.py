"""Positions drawn at random in training, so that short sequences teach long ones."""

import torch
from torch import Tensor

from posenc.positions.checks import check_whole

__all__ = ["pose", "randomized"]


def randomized(
    num_tokens: int,
    num_positions: int,
    *,
    batch: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Randomized positions (Ruoss 2023, arXiv 2305.16843, section 3): a sorted random subset.

    >>> positions = randomized(40, 2048, batch=8)     # [8, 40], each row drawn anew
    >>> y = layer(x, positions)

    Each row holds `num_tokens` of the positions 0 … num_positions − 1, drawn without replacement and
    ascending: order survives, distances vary. `batch=None` gives one row, `[num_tokens]`.
    """
    _check_batch(batch)
    check_whole(num_tokens=num_tokens, num_positions=num_positions)
    if not 1 <= num_tokens <= num_positions:
        raise ValueError(
            f"{num_tokens} different positions cannot be drawn from {num_positions}: "
            "1 <= num_tokens <= num_positions is needed"
        )
    shape = (num_positions,) if batch is None else (batch, num_positions)
    order = torch.rand(shape, generator=generator).argsort(-1)
    return order[..., :num_tokens].sort(-1).values.to(device)


def pose(
    num_tokens: int,
    target_length: int,
    *,
    num_chunks: int = 2,
    batch: int | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Skip-wise positions (PoSE, Zhu 2023, arXiv 2309.10400, section 3.2): chunks with gaps between.

    >>> positions = pose(2048, 16_384, batch=4)       # [4, 2048] within 0 … 16,383

    A row is cut at random into `num_chunks` runs of consecutive positions. The first begins at 0;
    each other is moved on by a skip drawn uniformly from the previous skip up to
    `target_length − num_tokens`, so that distances up to the target are seen at the short length's
    cost.
    """
    _check_batch(batch)
    check_whole(num_tokens=num_tokens, target_length=target_length, num_chunks=num_chunks)
    if not 1 <= num_chunks <= num_tokens <= target_length:
        raise ValueError(
            f"1 <= num_chunks <= num_tokens <= target_length is needed, got num_chunks {num_chunks}, "
            f"num_tokens {num_tokens}, target_length {target_length}"
        )
    room = target_length - num_tokens
    drawn = [_skipped(num_tokens, room, num_chunks, generator) for _ in range(batch or 1)]
    return (drawn[0] if batch is None else torch.stack(drawn)).to(device)


def _check_batch(batch: int | None) -> None:
    check_whole(batch=1 if batch is None else batch)
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, or None for one row, got {batch}")


def _skipped(
    num_tokens: int, room: int, num_chunks: int, generator: torch.Generator | None
) -> Tensor:
    cuts = 1 + torch.randperm(num_tokens - 1, generator=generator)[: num_chunks - 1]
    positions, skip = torch.arange(num_tokens), 0
    for cut in cuts.sort().values.tolist():
        further = int(torch.randint(room - skip + 1, (), generator=generator))
        positions[cut:] += further
        skip += further
    return positions
