"""An answer of `posenc choose`, for people and for programs."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from posenc.lab.rows import ROWS
from posenc.report.choose import NOTHING, Answer, Choice, Reason
from posenc.report.evidence import evidence_file
from posenc.report.memory import ASSUMPTIONS
from posenc.report.tables import bytes_text

__all__ = ["as_dict", "print_answer"]

SHOWN = 3  # reasons of one choice on the terminal; --json has all
SHOWN_OF_FAILING = 2  # what was measured here, and the row nearest to the score
COLOURS = {"holds": "green", "degrades": "yellow", "not measured": "dim", "fails": "red"}


def as_dict(answer: Answer) -> dict[str, Any]:
    """Everything, in plain data."""
    request = answer.request
    return {
        "request": {
            "max_length": request.max_length,
            "train_length": request.train_length,
            "checkpoint": request.checkpoint,
            "task": request.task,
            "memory_bytes": request.memory_bytes,
        },
        "ranked": [_choice_dict(choice) for choice in answer.ranked],
        "ruled_out": [{"option": name, **asdict(reason)} for name, reason in answer.ruled_out],
        "notes": answer.notes,
        "evidence": evidence_file(),
        "memory_assumes": f"{ASSUMPTIONS}; {request.model.member}",
    }


def print_answer(answer: Answer, console: Console) -> None:
    """The ranked list, each choice with its reasons and where they stand."""
    request = answer.request
    console.print(
        f"[bold]Reading {request.max_length} tokens after training at {request.train_length}[/] "
        f"({request.ratio:.3g} L), checkpoint {request.checkpoint}, {request.task}",
        highlight=False,
    )
    unknown = [c for c in answer.ranked if _is_unknown(c)]
    for choice in answer.ranked:
        if choice not in unknown:
            _print_choice(choice, console)
    if unknown:
        console.print("[bold]No table speaks of[/]")
        titles = ", ".join(choice.option.title for choice in unknown)
        _indented(f"{escape(titles)} [dim]→ {_way_to_know(unknown)}[/]", console)
    if answer.ruled_out:
        console.print("[bold]Ruled out[/]")
    for name, reason in answer.ruled_out:
        _indented(f"{escape(name)}: {_line(reason)}", console)
    for note in answer.notes:
        console.print(f"• {escape(note)}", highlight=False)
    console.print(LEGEND, style="dim", highlight=False)
    console.print(f"Memory: {ASSUMPTIONS}; {request.model.member}.", style="dim", highlight=False)
    told = f"data/evidence.json is {evidence_file()}"
    console.print(escape(told), style="dim", highlight=False, soft_wrap=True)


LEGEND = (
    "holds, degrades, fails: up to 0.1, up to 0.3, over 0.3 nats (or shares of accuracy) worse than "
    "the best row of the same table at its trained length."
    "\nThe median over tables ranks, and the row nearest to it comes first; equals share a rank."
    "\nGrades: P read in the paper, D derived from its data, S transcribed, M from memory."
)


def _print_choice(choice: Choice, console: Console) -> None:
    option, colour = choice.option, COLOURS[choice.verdict]
    training = {"none": "no training", "fine-tuning": "needs fine-tuning"}.get(
        option.training, option.training
    )
    several = f", median of {choice.num_tables} tables" if choice.num_tables > 1 else ""
    score = "" if choice.score is None else f" ({choice.score:+.2f}{several})"
    console.print(
        f"{choice.rank}. [bold]{escape(option.title)}[/]: [{colour}]{choice.verdict}[/]{score}; "
        f"{training}; memory {bytes_text(choice.memory.total)}",
        highlight=False,
    )
    _indented(f"[cyan]{escape(choice.how)}[/]", console)
    if option.caveat:
        _indented(f"but {escape(option.caveat)}", console)
    num_shown = SHOWN_OF_FAILING if choice.verdict == "fails" else SHOWN
    for reason in choice.reasons[:num_shown]:
        _indented(f"• {_line(reason)}", console)
    num_hidden = len(choice.reasons) - num_shown
    if num_hidden > 0:
        _indented(f"and {num_hidden} more (--json)", console)


def _way_to_know(unknown: list[Choice]) -> str:
    """What measures encodings that no table speaks of: text alone is learned here."""
    trained = {row.encoding for row in ROWS.values()}
    measured = [c.option.title for c in unknown if c.option.name in trained]
    how = "--json says how each is written"
    if not measured:
        return how
    return f"posenc compare --budget full measures {', '.join(measured)}; {how}"


def _is_unknown(choice: Choice) -> bool:
    """Whether nothing, measured or published, was found for an encoding of a new model."""
    return choice.option.training == "from scratch" and choice.reasons[0].text == NOTHING


def _indented(text: str, console: Console) -> None:
    console.print(Padding(text, (0, 0, 0, 3)), highlight=False)


def _line(reason: Reason) -> str:
    aside = "" if reason.counted else "(not counted) "
    return f"{escape(aside + reason.text)} [dim]→ {escape(reason.pointer)}[/]"


def _choice_dict(choice: Choice) -> dict[str, Any]:
    return {
        "rank": choice.rank,
        "option": choice.option.name,
        "title": choice.option.title,
        "verdict": choice.verdict,
        "score": choice.score,
        "training": choice.option.training,
        "how": choice.how,
        "caveat": choice.option.caveat,
        "memory_bytes": {**asdict(choice.memory), "total": choice.memory.total},
        "reasons": [asdict(reason) for reason in choice.reasons],
    }
