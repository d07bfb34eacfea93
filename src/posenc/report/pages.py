"""`posenc list` and `posenc show`: the registry, with an example that runs and the known traps."""

import difflib
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from posenc.registry import ENCODINGS, SCALINGS, Encoding, Method
from posenc.report.examples import EXAMPLES, TRAPS, scaling_example

__all__ = ["Page", "nearest", "page", "print_page", "print_registry", "registry"]


@dataclass(frozen=True)
class Page:
    """What `posenc show` prints."""

    name: str
    title: str
    source: str
    summary: str
    enters: str
    options: str
    example: str
    traps: tuple[str, ...]


def page(name: str) -> Page:
    """The page of an encoding or a scaling method; KeyError for any other name."""
    if name in ENCODINGS:
        return _encoding_page(ENCODINGS[name])
    return _scaling_page(SCALINGS[name])


def nearest(name: str, names: list[str]) -> list[str]:
    """The names that somebody who typed `name` may have meant, best first.

    >>> nearest("alibbi", ["alibi", "rope"])
    ['alibi']
    """
    return difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)


def registry() -> dict[str, list[dict[str, Any]]]:
    """The registry as plain data, for --json."""
    encodings = [
        {
            "name": e.name, "title": e.title, "enters": e.enters, "source": e.source,
            "summary": e.summary, "options": e.options, "has_limit": e.has_limit,
        }
        for e in ENCODINGS.values()
    ]  # fmt: skip
    scalings = [
        {"name": m.name, "title": m.title, "source": m.source, "summary": m.summary}
        for m in SCALINGS.values()
    ]
    return {"encodings": encodings, "scalings": scalings}


def print_registry(console: Console) -> None:
    """Two tables: encodings, and scaling methods of Rope."""
    encodings = Table("name", "encoding", "enters", "source", title="Encodings", box=None)
    for entry in ENCODINGS.values():
        encodings.add_row(*map(escape, (entry.name, entry.title, entry.enters, entry.source)))
    scalings = Table("name", "method", "source", title="Scaling of Rope", box=None)
    for method in SCALINGS.values():
        scalings.add_row(*map(escape, (method.name, method.title, method.source)))
    for table in (encodings, scalings):
        table.title_justify, table.title_style = "left", "bold"
        console.print(table)
        console.print()
    console.print("posenc show NAME prints a page with an example.", style="dim")


def print_page(shown: Page, console: Console) -> None:
    """Title, source, place, options, example, traps."""
    console.print(f"[bold]{escape(shown.title)}[/]  ({escape(shown.name)})")
    console.print(escape(shown.summary))
    for label, text in (
        ("source", shown.source),
        ("enters", shown.enters),
        ("options", shown.options),
    ):
        console.print(f"[dim]{label:8}[/]{escape(text)}", highlight=False)
    console.print(Panel(escape(shown.example.strip()), title="example", title_align="left"))
    for trap in shown.traps:
        console.print(f"• {escape(trap)}", highlight=False)


def _encoding_page(entry: Encoding) -> Page:
    traps = TRAPS.get(entry.name, ())
    if entry.has_limit:
        traps += ("A position past its table or window is an error, never a wrong read.",)
    if entry.positions is not None:
        traps += (
            "Positions have two axes: posenc.positions.grid(height, width), or centred for reals.",
        )
    example = EXAMPLES.get(entry.name) or _from_registry(entry)
    return Page(
        entry.name, entry.title, entry.source, entry.summary, entry.enters, entry.options,
        example, traps,
    )  # fmt: skip


def _from_registry(entry: Encoding) -> str:
    """An example for an entry that has none of its own yet."""
    position = ", q_pos=cells, k_pos=cells" if entry.positions else ""
    lines = [
        "import torch",
        "from posenc import attention",
        "from posenc.registry import ENCODINGS, Shape",
        "",
        f'entry = ENCODINGS["{entry.name}"]',
        "shape = Shape(dim=256, num_heads=4, length=64)",
        *(["cells = entry.positions(shape)"] if entry.positions else []),
        "q, k, v = (torch.randn(2, 4, 64, 64) for _ in range(3))   # [B, H, T, D]",
        f"out = attention(q, k, v, scheme=entry.build(shape){position}, mask=entry.mask)",
    ]
    return "\n".join(lines)


def _scaling_page(method: Method) -> Page:
    traps = TRAPS.get(method.name, ())
    call = method.build(4.0, 2048)
    return Page(
        method.name, method.title, method.source, method.summary, "rotary, as Rope(scaling=...)",
        f"by default: {call!r}", scaling_example(method.name, call), traps,
    )  # fmt: skip
