"""Whether two elements of one or two tensors lie at the same place of memory."""

from torch import Tensor

__all__ = ["overlap", "overlaps_itself"]

Steps = list[tuple[int, int, int]]  # stride, smallest and largest difference of indices
MOST = 20_000  # steps of the search, beyond which an answer is not worth its time


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether writing to `a` changes `b`; a search that grows too long says yes.

    >>> fused = torch.empty(2, 5, 8, 4)                 # heads of one projection
    >>> overlap(fused[:, :, :6], fused[:, :, 6:])
    False
    """
    if not (a.numel() and b.numel()) or a.device != b.device:
        return False
    if not (_bytes(a)[0] <= _bytes(b)[1] and _bytes(b)[0] <= _bytes(a)[1]):
        return False
    size = a.element_size()
    apart = a.data_ptr() - b.data_ptr()
    if size != b.element_size() or apart % size:
        return True
    steps = [(s, 0, n - 1) for n, s in zip(a.shape, a.stride(), strict=True) if n > 1]
    steps += [(s, 1 - n, 0) for n, s in zip(b.shape, b.stride(), strict=True) if n > 1]
    return _meets(_joined(steps), -apart // size)


def overlaps_itself(x: Tensor) -> bool:
    """Whether two indices of `x` name one place."""
    steps = [(s, 1 - n, n - 1) for n, s in zip(x.shape, x.stride(), strict=True) if n > 1]
    for index, (stride, _, high) in enumerate(steps):  # the first index that differs, and is larger
        others = steps[index + 1 :]
        if _meets(_joined([(stride, 1, high), *others]), 0):
            return True
    return False


def _bytes(x: Tensor) -> tuple[int, int]:
    """Of the first and the last byte."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size() - 1


def _joined(steps: Steps) -> Steps:
    """One step for each stride, the largest first."""
    found: dict[int, tuple[int, int]] = {}
    for stride, low, high in steps:
        held = found.get(stride, (0, 0))
        found[stride] = held[0] + low, held[1] + high
    return [(stride, *found[stride]) for stride in sorted(found, reverse=True)]


def _meets(steps: Steps, wanted: int) -> bool:
    """Whether Σ stride · difference can be `wanted`; smaller strides bound what larger may leave."""
    lows, highs = [0], [0]
    for stride, low, high in reversed(steps):
        lows.append(lows[-1] + stride * low)
        highs.append(highs[-1] + stride * high)
    lows.reverse()
    highs.reverse()
    left = MOST
    open_ends = [(0, wanted)]
    while open_ends:
        left -= 1
        if left < 0:
            return True
        index, rest = open_ends.pop()
        if not lows[index] <= rest <= highs[index]:
            continue
        if index == len(steps):
            return True
        stride, low, high = steps[index]
        if stride == 0:
            open_ends.append((index + 1, rest))
            continue
        first = max(low, -((highs[index + 1] - rest) // stride))
        last = min(high, (rest - lows[index + 1]) // stride)
        open_ends.extend((index + 1, rest - stride * n) for n in range(first, last + 1))
    return False
