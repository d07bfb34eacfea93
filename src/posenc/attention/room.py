"""Space for tokens to come: a step of decoding copies one token, not the whole cache."""

import torch
from torch import Tensor

__all__ = ["Room"]

SPARE = 4  # a quarter more than is needed, so that n tokens are copied O(1) times each


class Room:
    """A buffer along tokens that grows; tensors in use are views of its beginning.

    >>> room = Room()
    >>> keys = room.extended(keys, new)               # [B, H, K, D] and [B, H, 1, D]

    The buffer is written only past everything that anybody was given: of two caches that share a
    beginning, the second to go on moves to a buffer of its own. While gradients are recorded nothing
    is written in place: autograd may have kept what lies there.
    """

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.filled = 0

    def extended(self, held: Tensor, new: Tensor) -> Tensor:
        """`held` and `new` side by side in dimension 2."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or held.dtype != new.dtype:
            return torch.cat((held, new), 2)
        begin, end = held.shape[2], held.shape[2] + new.shape[2]
        if self.buffer is None or not self._goes_on(self.buffer, held, end):
            self.buffer = held.new_empty(*held.shape[:2], end + end // SPARE, held.shape[3])
            self.buffer[:, :, :begin].copy_(held)
        self.buffer[:, :, begin:end].copy_(new)
        self.filled = end
        return self.buffer[:, :, :end]

    def _goes_on(self, buffer: Tensor, held: Tensor, end: int) -> bool:
        """Whether `held` is all that lies in the buffer, and the rest of it may be written."""
        is_frozen = buffer.is_inference() and not torch.is_inference_mode_enabled()
        is_beginning = held.data_ptr() == buffer.data_ptr() and held.stride() == buffer.stride()
        return (
            is_beginning
            and not is_frozen
            and held.shape[2] == self.filled
            and end <= buffer.shape[2]
        )
