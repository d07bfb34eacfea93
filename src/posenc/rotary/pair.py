"""Tables of queries and of keys, for every form whose queries and keys take the same table."""

from typing import Protocol

import torch
from torch import Tensor

from posenc.contracts import RotaryTables, Table
from posenc.frequencies import Frequencies

__all__ = ["TableMaker", "tables_of"]


class TableMaker(Protocol):
    """A rotary form whose queries and keys take the same table."""

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table: ...

    def frequencies(self, device: torch.device | None = None) -> Frequencies: ...


def tables_of(
    form: TableMaker, q_pos: Tensor, k_pos: Tensor, dtype: torch.dtype = torch.float32
) -> RotaryTables:
    """Tables of queries and keys; made once where both positions are the same tensor."""
    q = form.table(q_pos, dtype=dtype)
    k = q if k_pos is q_pos else form.table(k_pos, dtype=dtype)
    frequencies = form.frequencies()
    return RotaryTables(
        q,
        k,
        form,
        frequencies.attention_factor,
        frequencies.softmax_scale,
        (q_pos, k_pos),
    )
