"""Which encoding, for a length and a checkpoint: ranked by what was measured or published.

The score of an option is the median, over the tables that speak of it, of its excess (see
`evidence`). Magnitudes do not carry over between setups, so the score only sorts options into those
that hold, degrade or fail, and orders coarsely those that do not hold; ties go to what needs less
training, then to what more tables speak of.
"""

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from posenc.report.checkpoints import CHECKPOINTS, FAMILIES, Checkpoint, Option, family_of
from posenc.report.evidence import Cited, Table, measured, published, verdict
from posenc.report.memory import Memory, estimate, parse_bytes

__all__ = ["NOTHING", "Answer", "Choice", "Reason", "Request", "choose", "parse_request"]

TASKS = ("language-model", "retrieval", "encoder", "vision")
TRAINING = ("none", "fine-tuning", "from scratch")
VERDICTS = ("holds", "degrades", "not measured", "fails")
NOTHING = "no table, measured or published, speaks of it"
CAPPED = 3.0  # excesses beyond this are one and the same failure


@dataclass(frozen=True)
class Request:
    """What a user asks."""

    max_length: int
    train_length: int
    checkpoint: str = "none"
    task: str = "language-model"
    memory_bytes: int | None = None
    shape: Checkpoint | None = None  # for memory; the checkpoint's well-known member by default

    @property
    def ratio(self) -> float:
        return self.max_length / self.train_length

    @property
    def model(self) -> Checkpoint:
        return self.shape or CHECKPOINTS[self.checkpoint]


@dataclass(frozen=True)
class Reason:
    """One line and what it points at: a measured row, a published table, or the registry."""

    text: str
    pointer: str
    counted: bool = True


@dataclass(frozen=True)
class Choice:
    """An option with its verdict, reasons and memory."""

    option: Option
    how: str
    verdict: str
    score: float | None
    memory: Memory
    reasons: list[Reason] = field(default_factory=list)
    num_tables: int = 0  # that count
    reach: float = 0.0  # multiple of the trained length up to which any of them lets it hold
    rank: int = 0  # shared by those that no figure tells apart


@dataclass(frozen=True)
class Answer:
    """Ranked choices, best first; what is ruled out, each with its reason; remarks."""

    request: Request
    ranked: list[Choice]
    ruled_out: list[tuple[str, Reason]]
    notes: list[str]


def parse_request(
    *, memory: str | None = None, model_shape: str | None = None, **asked: Any
) -> Request:
    """A request whose memory ("8GB") and shape ("32x8x128") come as text; ValueError if unusable."""
    plain = Request(**asked)
    shape = None if model_shape is None else plain.model.shaped(model_shape)
    return replace(plain, shape=shape, memory_bytes=None if memory is None else parse_bytes(memory))


def choose(request: Request, record: dict[str, Any] | None = None, where: str = "") -> Answer:
    """Rank the options that the checkpoint allows. `where` is the record's path, for pointers."""
    own = None if record is None else measured(record, where)
    tables = [*([] if own is None else [own]), *published()]
    ranked, ruled_out = [], _other_families(request)
    for option in FAMILIES[family_of(request.checkpoint, request.task)]:
        if request.ratio <= 1 and _extends(option):
            continue
        choice = _judged(option, request, tables, record or {}, where)
        obstacle = _obstacle(choice, request)
        if obstacle is None:
            ranked.append(choice)
        else:
            ruled_out.append((option.title, obstacle))
    ranked = _ranked(ranked)
    return Answer(request, ranked, ruled_out, _notes(request, ranked, own))


def _judged(
    option: Option, request: Request, tables: list[Table], record: dict[str, Any], where: str
) -> Choice:
    found = [c for table in tables if (c := table.cited(option.name, request.ratio)) is not None]
    counted = _counted(found, request)
    excesses = [min(c.excess, CAPPED) for c in counted]
    score = statistics.median(excesses) if excesses else None
    nearest = sorted(found, key=lambda c: _weight(c, counted, score))
    reasons = [_reason(c, c in counted) for c in nearest]
    reasons += _cost_reason(option, record, where)
    if not reasons:
        name = option.name.split("+")[0].split(",")[0]
        reasons = [Reason(NOTHING, f"posenc show {name}")]
    reach = max((c.table.reach(option.name) for c in counted), default=0.0)
    model = request.model
    how = option.how.format(
        factor=f"{max(request.ratio, 1):g}", train=request.train_length,
        head_dim=model.head_dim, heads=model.num_heads, rope=model.rope,
    )  # fmt: skip
    decoder = request.task in ("language-model", "retrieval")
    memory = estimate(option, model, request.max_length, request.train_length, decoder=decoder)
    label = "not measured" if score is None else verdict(score)
    return Choice(option, how, label, score, memory, reasons, len(counted), reach)


def _counted(found: list[Cited], request: Request) -> list[Cited]:
    """The figures that decide: of this task, far enough, and of models like the one asked about."""
    of_task = [c for c in found if c.table.task == request.task and c.counts]
    if CHECKPOINTS[request.checkpoint].family != "scratch":
        released = [c for c in of_task if c.table.setting in ("checkpoint", "both")]
        of_task = released or of_task
    if request.ratio <= 1:  # alone in its table a row says nothing about the others
        of_task = [c for c in of_task if len(c.table.rows) > 1]
    return of_task


def _weight(
    cited: Cited, counted: list[Cited], score: float | None
) -> tuple[bool, bool, float, float]:
    """Measured here first, then what counts and lies nearest to the score, then the furthest."""
    reach, counts = cited.context / cited.table.train, cited in counted
    away = abs(min(cited.excess, CAPPED) - score) if counts and score is not None else 0.0
    return cited.table.id != "record", not counts, away, -reach


def _reason(cited: Cited, counted: bool) -> Reason:
    return Reason(cited.text(), cited.table.pointer(cited.option), counted)


def _cost_reason(option: Option, record: dict[str, Any], where: str) -> list[Reason]:
    base = option.name.split("+")[0].split(",")[0]
    row = record.get("cost", {}).get("rows", {}).get(base, {"refused": ""})
    if "refused" in row:
        return []
    text = (
        f"costs: forward × {row['forward']['ratio']['median']:.2f}, with backward "
        f"× {row['training']['ratio']['median']:.2f} of no encoding, measured here"
    )
    return [Reason(text, f"{where}: cost.rows[{base!r}]", counted=False)]


def _order(choice: Choice) -> tuple[int, bool, float, int]:
    """A window comes after those of its verdict that use the whole text; what holds is equal."""
    score = CAPPED if choice.score is None else choice.score
    return (
        VERDICTS.index(choice.verdict),
        choice.option.window,
        0.0 if choice.verdict == "holds" else round(score, 1),
        TRAINING.index(choice.option.training),
    )


def _ranked(choices: list[Choice]) -> list[Choice]:
    """Best first; equals share a rank, ahead those that more tables speak of, and further."""
    ordered = sorted(choices, key=lambda c: (_order(c), -c.num_tables, -c.reach))
    orders = [_order(choice) for choice in ordered]
    return [replace(c, rank=1 + orders.index(_order(c))) for c in ordered]


def _obstacle(choice: Choice, request: Request) -> Reason | None:
    """Why an option cannot be had at all: no position past a table, or no room for its memory."""
    option = choice.option
    if option.stops and request.ratio > 1:
        own = [reason for reason in choice.reasons if reason.text.startswith("stops")]
        pointer = own[0].pointer if own else f"posenc show {option.name}"
        return Reason(f"no position past {request.train_length} exists; {option.caveat}", pointer)
    budget = request.memory_bytes
    if budget is not None and choice.memory.total > budget:
        text = (
            f"needs {choice.memory.total / 1e9:.3g} GB at {request.max_length} tokens, of which "
            f"keys and values {choice.memory.cache / 1e9:.3g} GB; given {budget / 1e9:.3g} GB"
        )
        return Reason(text, f"estimate for {request.model.member}")
    return None


def _extends(option: Option) -> bool:
    """Whether an option only makes sense past the trained length."""
    return option.window or "+" in option.name or "tuned" in option.name


def _other_families(request: Request) -> list[tuple[str, Reason]]:
    """What a checkpoint cannot become, once, in one line."""
    family = CHECKPOINTS[request.checkpoint].family
    if family == "scratch":
        if request.task == "encoder":
            text = "without a causal mask and without positions, attention cannot tell order"
            return [("No encoding", Reason(text, "posenc show none; arXiv 2203.16634"))]
        return []
    others = [name for name in ("rope", "alibi", "t5", "learned") if name != family]
    text = (
        f"{request.checkpoint}'s projections were trained under its own encoding ({family}); another "
        "one needs training from scratch (--checkpoint none)"
    )
    return [
        (", ".join(others), Reason(text, f"posenc show {'none' if family == 'nope' else family}"))
    ]


def _notes(request: Request, ranked: list[Choice], own: Table | None) -> list[str]:
    is_alibi = CHECKPOINTS[request.checkpoint].family == "alibi"
    is_lost = bool(ranked) and request.ratio > 1 and ranked[0].verdict == "fails"
    remarks = (
        (request.ratio <= 1, "Within the trained length nothing has to be extended."),
        (
            own is None,
            "No record of this machine: posenc compare makes one, --record FILE reads it.",
        ),
        (
            is_alibi and request.ratio >= 2,
            "Released ALiBi models fail at twice their length (ppl of BLOOM-1.1B 27.7 to 158, of "
            "MPT-7B 10.6 to 103.6; data/evidence.json: bloom-1.1b, mpt-7b); small ones stay flat.",
        ),
        (is_lost, "Nothing here reads that far: shorten the input, or train at the length itself."),
        (not ranked, "Nothing is left: shorten the input, raise --memory, or train at the length."),
    )
    return [text for applies, text in remarks if applies]
