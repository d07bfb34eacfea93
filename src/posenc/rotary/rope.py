"""Rotary position embedding. Su et al. 2021, "RoFormer", arXiv 2104.09864, section 3.2.2.

Pair i of a query at position p turns by p · base**(-2i/d); so does the key, and their product
depends on the distance alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from posenc.contracts import Pairing, RotaryTables, Table, rows, table_from_angles
from posenc.frequencies import Frequencies, Spectrum, angles, check_base, geometric, host_for
from posenc.positions import check_positions, check_whole
from posenc.rotary.pair import tables_of
from posenc.scaling import Scaling

__all__ = ["Rope"]


@dataclass(frozen=True)
class Rope:
    """Rotation of queries and keys of `head_dim` channels. A value: no buffers, no cache, no limit.

    >>> rope = Rope(128, base=500_000.0, scaling=Yarn(factor=8.0, original_length=4096))
    >>> tables = rope.tables(q_pos, k_pos)            # once per forward
    >>> q, k = rotate_qk(q, k, tables)                # in every layer

    `pairing` is "half" (channels i and i + d/2: Llama, Qwen, GPT-NeoX) or "adjacent" (2i and
    2i + 1: the paper, GPT-J, Meta's own Llama weights). Only `rotary_dim` channels turn: the first
    ones, or with `placement="trailing"` the last (DeepSeek's decoupled keys).
    `direction=-1` turns them the other way, by −p·θ (nanochat): the inv_freq are then negative.
    `angle_dtype=torch.float32` reproduces the rounded angles of transformers bit for bit.
    """

    head_dim: int
    base: float = 10_000.0
    pairing: Pairing = "half"
    rotary_dim: int | None = None
    scaling: Scaling | None = None
    angle_dtype: torch.dtype = torch.float64
    placement: Literal["leading", "trailing"] = "leading"
    direction: Literal[1, -1] = 1

    def __post_init__(self) -> None:
        if not isinstance(self.head_dim, int) or self.head_dim < 2:
            raise ValueError(f"head_dim must be an int of at least 2, got {self.head_dim!r}")
        if self.pairing not in ("half", "adjacent"):
            raise ValueError(f"pairing must be 'half' or 'adjacent', got {self.pairing!r}")
        width = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if not isinstance(width, int) or width % 2 or not 2 <= width <= self.head_dim:
            raise ValueError(
                f"rotary_dim must be even and between 2 and head_dim = {self.head_dim}: channels "
                f"turn in pairs; got {width!r}"
            )
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            hint = ""
            if isinstance(self.scaling, Mapping):
                hint = "; posenc.interop.hf.scheme_from_config reads the config of a model"
            raise TypeError(f"scaling must be a scaling method, got {self.scaling!r}{hint}")
        if self.angle_dtype not in (torch.float64, torch.float32):
            raise ValueError(f"angle_dtype must be float64 or float32, got {self.angle_dtype}")
        if self.placement not in ("leading", "trailing"):
            raise ValueError(f"placement must be 'leading' or 'trailing', got {self.placement!r}")
        if isinstance(self.direction, bool) or self.direction not in (1, -1):
            raise ValueError(f"direction must be 1 or -1, got {self.direction!r}")
        check_base(self.base)
        object.__setattr__(self, "rotary_dim", width)  # Rope(64) == Rope(64, rotary_dim=64)

    @property
    def start(self) -> int:
        """The first channel that turns."""
        width = self.rotary_dim or self.head_dim
        return 0 if self.placement == "leading" else self.head_dim - width

    def frequencies(self, device: torch.device | None = None) -> Frequencies:
        """Radians per position of each pair `[rotary_dim / 2]`, and the attention factor."""
        width = self.rotary_dim or self.head_dim
        per_radian = geometric(width // 2, width, self.base, dtype=self.angle_dtype, device=device)
        spectrum = Spectrum(per_radian, self.base, width)
        scaling = self.scaling
        made = Frequencies(spectrum.inv_freq) if scaling is None else scaling(spectrum)
        return replace(made, inv_freq=self.direction * made.inv_freq)

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table:
        """cos and sin at `[T]` or `[B, T]` positions: repeated, unordered, negative or huge."""
        positions = check_positions(positions)
        host = host_for(positions.device)
        frequencies = self.frequencies(host)
        angle = angles(rows(positions).to(host), frequencies.inv_freq)
        return table_from_angles(angle, self, frequencies.attention_factor, dtype, positions.device)

    def tables(
        self, q_pos: Tensor, k_pos: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> RotaryTables:
        """Tables of queries and keys; made once where both positions are the same tensor."""
        return tables_of(self, q_pos, k_pos, dtype)

    def at_length(self, length: int) -> "Rope":
        """The value for sequences of `length`; the same one unless the method depends on it."""
        check_whole(length=length)
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        at_length = getattr(self.scaling, "at_length", None)
        if at_length is None:
            return self
        return replace(self, scaling=at_length(length))
