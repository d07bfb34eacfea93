"""Beyond the training length: one small model per row, the same text, budget and seeds for all.

Every context scores THE SAME bytes, the last ones of held-out windows. A mean over all bytes of a
window would hide the failure (most bytes have a short context) and sell the smaller share of early
bytes in a longer window as a gain.
"""

import copy
import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc.contracts import RotaryEncoding, Scheme
from posenc.lab.corpus import Corpus
from posenc.lab.model import Decoder
from posenc.lab.rows import BUDGETS, ROWS, TUNED_FACTOR, Budget, Cell, Read, Row, cells, reads
from posenc.lab.train import OnStep, train
from posenc.masks import causal, window
from posenc.registry import Shape, encoding, scaling
from posenc.rotary import LearnedScaleRope, Rope

__all__ = [
    "BUDGETS",
    "ROWS",
    "Budget",
    "Cell",
    "Probe",
    "Read",
    "Row",
    "cells",
    "reads",
    "run_cell",
    "settings",
    "work",
]

BATCH_TOKENS = 8192  # read at once when scoring: bounds the memory
CURVE_POINTS = 40  # of a stored training curve
WITHOUT_EFFECT = {"bench", "interop", "report", "cli.py", "compare.py", "__main__.py"}  # on a cell


def settings(budget: Budget, corpus: Corpus) -> dict[str, Any]:
    """Everything that a cell depends on beside its row and seed, for `records.CellStore`."""
    return {
        "budget": asdict(budget),
        "text": corpus.digest,
        "torch": torch.__version__,
        "posenc": posenc.__version__,
        "code": _code_digest(),
    }


def work(row: Row, budget: Budget) -> int:
    """The steps of one cell: of training, of fine-tuning, and one per L bytes of context scored."""
    lines = reads(row, budget)
    tuned = sum(line.tuned for line in lines) * budget.tuned_steps
    return budget.steps + tuned + len(lines) * sum(_weight(c, budget) for c in budget.contexts)


def run_cell(
    cell: Cell, budget: Budget, corpus: Corpus, on_step: OnStep = lambda done, total: None
) -> dict[str, Any]:
    """Train one row under one seed, then score it at every context; a JSON-able result.

    >>> budget = BUDGETS["quick"]
    >>> result = run_cell(cells(budget)[0], budget, load())  # doctest: +SKIP
    >>> result["reads"]["none"]["1024"]["nats"]  # doctest: +SKIP
    """
    row, start = ROWS[cell.row], time.perf_counter()
    probe = Probe.of(corpus, budget, row.largest_gap)
    progress = _Progress(on_step, work(row, budget))
    model = build(row, budget, cell.seed)
    positions = gapped(row.largest_gap)
    losses = train(
        model, corpus.train, budget.recipe,
        seed=cell.seed, positions=positions, on_step=progress.step,
    )  # fmt: skip
    training_seconds = time.perf_counter() - start
    scored = {}
    for read in reads(row, budget):
        reader = _reader(model, read, cell.seed, budget, corpus, progress)
        scored[read.name] = _score_contexts(reader, read, row, budget, probe, progress)
    return {
        "row": row.name,
        "seed": cell.seed,
        "seconds": round(time.perf_counter() - start, 2),
        "training_seconds": round(training_seconds, 2),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "learned_scale": _learned_scale(model.scheme),
        "train_loss": _curve(losses),
        "reads": scored,
    }


def build(row: Row, budget: Budget, seed: int) -> Decoder:
    """The untrained model of a row; the same one for all, but for the encoding's own parameters."""
    shape = Shape(budget.dim, budget.num_heads, budget.length)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scheme = encoding(row.encoding).build(shape)
    return Decoder(
        scheme,
        dim=budget.dim,
        num_heads=budget.num_heads,
        num_layers=budget.num_layers,
        seed=seed,
    )


def gapped(largest_gap: int) -> Callable[[int, int, torch.Generator], Tensor] | None:
    """Draws positions `[B, T]` from 0 on, 1 to `largest_gap` apart; None where there are no gaps."""
    if largest_gap == 1:
        return None

    def draw(batch: int, length: int, generator: torch.Generator) -> Tensor:
        gaps = torch.randint(1, largest_gap + 1, (batch, length), generator=generator)
        return gaps.cumsum(1) - gaps[:, :1]

    return draw


@dataclass(frozen=True, eq=False)
class Probe:
    """Held-out windows of the longest context and the byte after, and the positions of its bytes."""

    windows: Tensor  # [N, longest + 1] int64
    positions: Tensor | None  # [N, longest]; None: consecutive
    num_scored: int

    @classmethod
    def of(cls, corpus: Corpus, budget: Budget, largest_gap: int = 1) -> "Probe":
        """The same windows for every row and seed, spread evenly over the held-out text."""
        longest, text = max(budget.contexts), corpus.held_out
        corpus.check_window(longest)
        ends = torch.linspace(longest + 1, text.numel(), budget.num_windows, dtype=torch.float64)
        columns = torch.arange(-longest - 1, 0)
        draw, generator = gapped(largest_gap), torch.Generator().manual_seed(0)
        positions = None if draw is None else draw(budget.num_windows, longest, generator)
        windows = text[ends.long()[:, None] + columns].long()
        return cls(windows, positions, budget.num_scored)

    def context(self, length: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Inputs `[N, length]`, positions from 0 on, and the scored targets `[N, S]`."""
        positions = None if self.positions is None else self.positions[:, -length:]
        if positions is not None:
            positions = positions - positions[:, :1]
        return self.windows[:, -length - 1 : -1], positions, self.windows[:, -self.num_scored :]

    @torch.no_grad()
    def nats(self, model: Decoder, length: int, rotary: RotaryEncoding | None = None) -> Tensor:
        """Mean loss of the scored bytes of each window `[N]`, given `length` bytes of context."""
        inputs, positions, targets = self.context(length)
        size = max(1, BATCH_TOKENS // length)
        losses = []
        for rows in torch.arange(len(inputs)).split(size):
            where = None if positions is None else positions[rows]
            logits = model(inputs[rows], where, rotary=rotary, last=self.num_scored)
            loss = F.cross_entropy(logits.flatten(0, 1), targets[rows].flatten(), reduction="none")
            losses.append(loss.view(len(rows), -1).double().mean(1))
        return torch.cat(losses)


def _score_contexts(
    model: Decoder, read: Read, row: Row, budget: Budget, probe: Probe, progress: "_Progress"
) -> dict[str, dict[str, Any]]:
    """Nats per byte at each context, or the encoding's own error where it has a limit."""
    has_limit = encoding(row.encoding).has_limit
    nats, errors = {}, {}
    model.eval()
    for context in budget.contexts:
        try:
            nats[context] = probe.nats(model, context, _rotary(model.scheme, read, context, budget))
        except ValueError as error:
            if not has_limit or context <= budget.length:
                raise
            errors[context] = {"error": str(error)}
        progress.step(weight=_weight(context, budget))
    summaries = {c: _summary(x, nats[budget.length]) for c, x in nats.items()}
    return {str(c): entry for c, entry in (summaries | errors).items()}


def _summary(nats: Tensor, at_length: Tensor) -> dict[str, float]:
    """Mean over windows; `change` since the trained length is paired, window by window."""
    change, root = nats - at_length, len(nats) ** 0.5
    values = {
        "nats": nats.mean(),
        "sem": nats.std() / root,
        "change": change.mean(),
        "change_sem": change.std() / root,
    }
    return {name: round(float(value), 5) for name, value in values.items()}


def _rotary(scheme: Scheme, read: Read, context: int, budget: Budget) -> Rope | None:
    """The rotation to read with; a scaling method is told the context it must reach."""
    if read.scaling is None:
        return None
    assert isinstance(scheme.rotary, Rope), f"{read.name} scales a Rope, got {scheme.rotary}"
    factor = float(TUNED_FACTOR) if read.tuned else max(1.0, context / budget.length)
    return replace(scheme.rotary, scaling=scaling(read.scaling).build(factor, budget.length))


def _reader(
    model: Decoder, read: Read, seed: int, budget: Budget, corpus: Corpus, progress: "_Progress"
) -> Decoder:
    """The trained model, or a copy under a window or trained some steps more on longer windows."""
    if read.window:
        return model.with_mask(causal & window(budget.length))
    if not read.tuned:
        return model
    recipe = replace(
        budget.recipe,
        length=TUNED_FACTOR * budget.length,
        steps=budget.tuned_steps,
        batch_size=max(1, budget.batch_size // TUNED_FACTOR),
        lr=budget.lr / 4,  # the rate that the trained model ended at was lower still
        warmup=10,
    )
    tuned = copy.deepcopy(model)
    rotary = _rotary(model.scheme, read, recipe.length, budget)
    train(tuned, corpus.train, recipe, seed=seed, rotary=rotary, on_step=progress.step)
    return tuned


class _Progress:
    """Counts the steps of one cell over its parts."""

    def __init__(self, on_step: OnStep, total: int) -> None:
        self.on_step, self.done, self.total = on_step, 0, total

    def step(self, *_: int, weight: int = 1) -> None:
        self.done += weight
        self.on_step(self.done, self.total)


def _weight(context: int, budget: Budget) -> int:
    return max(1, context // budget.length)


def _learned_scale(scheme: Scheme) -> float | None:
    rotary = scheme.rotary
    return round(rotary.scale.item(), 4) if isinstance(rotary, LearnedScaleRope) else None


def _curve(losses: list[float]) -> list[float]:
    """The training loss in CURVE_POINTS means, nats per byte."""
    size = max(1, len(losses) // CURVE_POINTS)
    parts = [losses[i : i + size] for i in range(0, len(losses), size)]
    return [round(sum(part) / len(part), 4) for part in parts]


def _code_digest() -> str:
    """Of every source that a result may depend on."""
    root = Path(posenc.__file__).parent
    sources = sorted(path for kind in ("*.py", "*.cpp") for path in root.rglob(kind))
    kept = [path for path in sources if path.relative_to(root).parts[0] not in WITHOUT_EFFECT]
    return hashlib.sha256(b"".join(path.read_bytes() for path in kept)).hexdigest()[:12]
