"""Learned absolute positions: a vector per position. BERT (Devlin 2018, arXiv 1810.04805), GPT-2.

With `offset=2` the tables of OPT and BART; with `padding_idx` the one of RoBERTa and fairseq.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.additive.resize import Kernel, resize_grid
from posenc.contracts import add_encoding
from posenc.positions import check_ints, check_positions, check_range

__all__ = ["Learned"]


class Learned(nn.Module):
    """A table of `num_positions` vectors, added to embeddings `[B, T, dim]`.

    >>> x = Learned(512, 768)(x)                                # BERT, GPT-2
    >>> positions = posenc.positions.from_padding_mask(m)
    >>> x = Learned(2048, 768, offset=2)(x, positions)          # OPT
    >>> x = Learned(512, 768, padding_idx=1)(x, positions)      # RoBERTa

    Position p reads row p + offset. With an offset, position −1 marks padding and reads the row
    before the first one; `padding_idx` sets offset to padding_idx + 1, and that row is zero and
    stays zero. A position outside the table is a ValueError before anything is read.
    """

    def __init__(
        self, num_positions: int, dim: int, *, offset: int = 0, padding_idx: int | None = None
    ) -> None:
        super().__init__()
        for name, value in (("num_positions", num_positions), ("dim", dim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive int, got {value!r}")
        check_ints(offset=offset, padding_idx=0 if padding_idx is None else padding_idx)
        if padding_idx is not None:
            if offset not in (0, padding_idx + 1) or padding_idx < 0:
                raise ValueError(
                    f"padding_idx {padding_idx} means offset {padding_idx + 1}, got offset {offset}"
                )
            offset = padding_idx + 1
        if offset < 0:
            raise ValueError(f"offset must be 0 or more, got {offset}")
        self.num_positions, self.dim = num_positions, dim
        self.offset, self.padding_idx = offset, padding_idx
        self.weight = nn.Parameter(
            nn.init.normal_(torch.empty(num_positions + offset, dim), std=0.02)
        )
        if padding_idx is not None:
            nn.init.zeros_(self.weight.data[padding_idx])

    def encode(self, positions: Tensor) -> Tensor:
        """`[T]` or `[B, T]` positions -> `[..., T, dim]`."""
        positions = check_positions(positions)
        lowest = -1 if self.offset else 0
        check_range(
            positions,
            lowest,
            self.num_positions - 1,
            name=f"positions of a learned table of size {self.num_positions}",
        )
        return F.embedding(positions + self.offset, self.weight, self.padding_idx)

    def resized(self, num_positions: int) -> "Learned":
        """A new table whose first and last vectors are the old ones, linear in between."""
        new = Learned(num_positions, self.dim, offset=self.offset, padding_idx=self.padding_idx)
        new = new.to(self.weight)
        kept, table = self.weight[: self.offset], self.weight[self.offset :]
        resampled = F.interpolate(
            table.T[None].double(), size=num_positions, mode="linear", align_corners=True
        )[0].T
        new.weight.data.copy_(torch.cat((kept, resampled.to(table))))
        return new

    def resized_grid(
        self,
        grid: tuple[int, int],
        *,
        old_grid: tuple[int, int] | None = None,
        num_prefix: int = 0,
        kernel: Kernel = "bicubic",
        antialias: bool = False,
        align_corners: bool = False,
    ) -> "Learned":
        """A new table of the cells of an image in another (height, width): see `resize_grid`.

        >>> vit = Learned(1 + 14 * 14, 768)               # a class token, then the cells
        >>> finer = vit.resized_grid((24, 32), num_prefix=1)
        """
        if self.offset:
            raise ValueError(
                f"a table of cells has no rows before its own, got offset {self.offset}"
            )
        table = resize_grid(
            self.weight.detach(), grid, old_grid=old_grid, num_prefix=num_prefix, kernel=kernel,
            antialias=antialias, align_corners=align_corners,
        )  # fmt: skip
        new = Learned(len(table), self.dim).to(self.weight)
        new.weight.data.copy_(table)
        return new

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return add_encoding(self, x, positions)

    def extra_repr(self) -> str:
        padding = f", padding_idx={self.padding_idx}" if self.padding_idx is not None else ""
        return f"{self.num_positions}, {self.dim}, offset={self.offset}{padding}"
