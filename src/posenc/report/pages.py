"""`posenc list` and `posenc show`: the registry, with an example that runs and the known traps."""

import re
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from posenc.registry import ENCODINGS, RELATED, SCALINGS, Encoding, Method, Shape
from posenc.report.examples import EXAMPLES, TRAPS, scaling_example
from posenc.report.formulas import FORMULAS

__all__ = ["Page", "canonical", "page", "print_page", "print_registry", "registry"]

# As configs and papers call them.
OTHER_NAMES = {
    "nope": "none",
    "dynamic": "dynamic-ntk",
    "p-rope": "proportional",
    "m-rope": "mrope",
}
REAL_CELLS = "Positions have two axes: posenc.positions.grid(height, width), or centred for reals."
WHOLE_CELLS = "Positions have two axes, whole numbers: posenc.positions.grid(height, width)."


@dataclass(frozen=True)
class Page:
    """What `posenc show` prints."""

    name: str
    title: str
    source: str
    summary: str
    formula: str
    enters: str
    options: str
    example: str
    traps: tuple[str, ...]


def page(name: str) -> Page:
    """The page of an encoding or a scaling method; KeyError for any other name."""
    if name in ENCODINGS:
        return _encoding_page(ENCODINGS[name])
    return _scaling_page(SCALINGS[name]) if name in SCALINGS else _related_page(name)


def canonical(name: str) -> str | None:
    """The name in the registry, from one in any case, of a class, or of a config; None: unknown.

    >>> [canonical(name) for name in ("ALiBi", "T5Bias", "NTKByParts", "dynamic")]
    ['alibi', 't5', 'ntk-by-parts', 'dynamic-ntk']
    """
    return _names().get(_plain(name))


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


@cache
def _names() -> dict[str, str]:
    """Plain names of everything that has a page: its own, then classes, then other names."""
    every = [*ENCODINGS, *SCALINGS, *RELATED]
    classes = [
        (found, entry.name)
        for entry in (*ENCODINGS.values(), *RELATED.values())
        for found in re.findall(r"\b([A-Z]\w+)\(", entry.options)
    ]
    classes += [(type(m.build(4.0, 2048)).__name__, m.name) for m in SCALINGS.values()]
    names = {name: name for name in every}
    for other, name in (*classes, *OTHER_NAMES.items()):
        names.setdefault(_plain(other), name)
    return names


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
    related = [asdict(entry) for entry in RELATED.values()]
    return {"encodings": encodings, "scalings": scalings, "related": related}


def print_registry(console: Console) -> None:
    """Two tables: encodings, and scaling methods of Rope."""
    encodings = Table("name", "encoding", "enters", "source", title="Encodings", box=None)
    for entry in ENCODINGS.values():
        encodings.add_row(*map(escape, (entry.name, entry.title, entry.enters, entry.source)))
    scalings = Table("name", "method", "source", title="Scaling of Rope", box=None)
    for method in SCALINGS.values():
        scalings.add_row(*map(escape, (method.name, method.title, method.source)))
    for other in RELATED.values():
        if other.is_scaling:
            scalings.add_row(*map(escape, (other.name, other.title, other.source)))
        else:
            encodings.add_row(*map(escape, (other.name, other.title, other.enters, other.source)))
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
        ("formula", shown.formula),
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
        traps += (REAL_CELLS if _takes_reals(entry) else WHOLE_CELLS,)
    example = EXAMPLES.get(entry.name) or _from_registry(entry)
    return Page(
        entry.name, entry.title, entry.source, entry.summary, FORMULAS.get(entry.name, ""),
        entry.enters, entry.options, example, traps,
    )  # fmt: skip


def _takes_reals(entry: Encoding) -> bool:
    with torch.random.fork_rng(devices=[]):
        scheme = entry.build(Shape(dim=64, num_heads=4, length=16))
    parts = (scheme.additive, scheme.rotary)
    return any(getattr(part, "real_positions", False) for part in parts)


def _related_page(name: str) -> Page:
    entry = RELATED[name]
    return Page(
        entry.name, entry.title, entry.source, entry.summary, FORMULAS[name], entry.enters,
        entry.options, EXAMPLES[name], TRAPS[name],
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
        method.name, method.title, method.source, method.summary, FORMULAS.get(method.name, ""),
        "rotary, as Rope(scaling=...)", f"by default: {call!r}", scaling_example(call), traps,
    )  # fmt: skip
