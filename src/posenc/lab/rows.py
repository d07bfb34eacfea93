"""What the extrapolation experiment runs: budgets, rows, and the ways to read a trained row."""

from collections.abc import Sequence
from dataclasses import dataclass

from posenc.lab.train import Recipe

__all__ = ["BUDGETS", "ROWS", "TUNED_FACTOR", "Budget", "Cell", "Read", "Row", "cells", "reads"]

TUNED_FACTOR = 4  # fine-tuning is for this many times the trained length


@dataclass(frozen=True)
class Budget:
    """The size of the experiment, the same for every row. `length` is the trained length, L."""

    name: str
    length: int
    num_layers: int
    dim: int
    num_heads: int
    steps: int
    batch_size: int
    lr: float
    num_windows: int
    num_scored: int  # bytes at the end of each window, at most L / 4
    num_seeds: int
    all_rows: bool = False
    tuned_steps: int = 0  # of fine-tuning at TUNED_FACTOR times the length; 0 leaves it out
    factors: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16)

    @property
    def contexts(self) -> tuple[int, ...]:
        """How many bytes the model sees before it predicts, ascending."""
        return tuple(int(factor * self.length) for factor in self.factors)

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.length, self.steps, self.batch_size, self.lr)


BUDGETS = {
    "quick": Budget(
        "quick", length=64, num_layers=3, dim=64, num_heads=4, steps=1000, batch_size=16, lr=5e-3,
        num_windows=128, num_scored=16, num_seeds=1,
    ),
    "full": Budget(
        "full", length=128, num_layers=3, dim=128, num_heads=4, steps=1200, batch_size=8, lr=3e-3,
        num_windows=128, num_scored=32, num_seeds=2, all_rows=True, tuned_steps=50,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One trained model, and how to read it once trained: as it is, scaled, through a window."""

    name: str
    title: str
    encoding: str  # of the registry
    scalings: tuple[str, ...] = ()
    window: bool = False  # also read with the last L keys of each query alone
    tuned: bool = False  # also fine-tuned at a longer length, where the budget says so
    largest_gap: int = 1  # between neighbouring positions, drawn at random; 1 is no gaps
    note: str = ""
    only_full: bool = False


GAPS = "positions 1 to 8 apart, when trained and when read"
ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("none", "No encoding (NoPE)", "none", window=True),
        Row("sinusoidal", "Sinusoids", "sinusoidal"),
        Row("learned", "Learned table", "learned"),
        Row("t5", "T5 relative bias", "t5", window=True),
        Row("alibi", "ALiBi", "alibi"),
        Row("rope", "RoPE", "rope", ("linear", "ntk", "yarn"), window=True, tuned=True),
        Row("learned+rope", "Learned table and RoPE", "learned+rope", only_full=True),
        Row("learned-scale-rope", "RoPE, learned scale", "learned-scale-rope", only_full=True),
        Row("kerple", "KERPLE", "kerple", only_full=True),
        Row("sandwich", "Sandwich", "sandwich", only_full=True),
        Row("fire", "FIRE", "fire", only_full=True),
        Row("shaw", "Shaw's vectors", "shaw", only_full=True),
        Row("transformer-xl", "Transformer-XL", "transformer-xl", only_full=True),
        Row("cope", "CoPE", "cope", only_full=True),
        Row("rope+gaps", "RoPE, gaps", "rope", largest_gap=8, note=GAPS, only_full=True),
        Row(
            "learned-scale-rope+gaps", "RoPE, learned scale, gaps", "learned-scale-rope",
            largest_gap=8, note=GAPS, only_full=True,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """One line of the results: a trained row, and what is changed when it is read.

    A window of L keys needs no training of its own: at the trained length it hides nothing.
    """

    name: str
    title: str
    scaling: str | None = None
    window: bool = False
    tuned: bool = False
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One training run. `key` names its result on disk."""

    key: str
    row: str
    seed: int


def cells(budget: Budget, seeds: Sequence[int] | None = None) -> list[Cell]:
    """Every training run of a budget; seeds default to 0 … num_seeds - 1.

    >>> [cell.key for cell in cells(BUDGETS["quick"], seeds=[0])][:2]
    ['none-seed0', 'sinusoidal-seed0']
    """
    seeds = range(budget.num_seeds) if seeds is None else seeds
    names = [row.name for row in ROWS.values() if budget.all_rows or not row.only_full]
    return [Cell(f"{name}-seed{seed}", name, seed) for seed in seeds for name in names]


def reads(row: Row, budget: Budget) -> list[Read]:
    """The lines that one trained row gives, as it is first."""
    lines = [Read(row.name, row.title, note=row.note)]
    for name in row.scalings:
        title, note = f"{row.title}, {name}", "needs the target length"
        lines.append(Read(f"{row.name}+{name}", title, name, note=note))
    if row.window:
        note = "control: each layer sees the last L bytes alone"
        lines.append(Read(f"{row.name}+window", f"{row.title}, window", window=True, note=note))
    if row.tuned and budget.tuned_steps:
        lines += [_tuned_read(row, budget, None), _tuned_read(row, budget, "linear")]
    return lines


def _tuned_read(row: Row, budget: Budget, scaling: str | None) -> Read:
    after = f"{budget.tuned_steps} steps"
    note = f"trained {after} more at {TUNED_FACTOR} L"
    name, title = (row.name, row.title) if scaling is None else (
        f"{row.name}+{scaling}", f"{row.title}, {scaling}"
    )  # fmt: skip
    return Read(f"{name}, {after}", f"{title}, {after}", scaling, tuned=True, note=note)
