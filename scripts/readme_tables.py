"""Put the figures of a compare record into the README pages, between their compare markers.

    python scripts/readme_tables.py            # write
    python scripts/readme_tables.py --check    # fail where the pages say something else

The record is runs/compare.json, which runs/compare.sh keeps.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.report.summary import row_points

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "runs" / "compare.json"
MARKED = re.compile(r"(?<=<!-- compare:begin -->\n).*?(?=<!-- compare:end -->)", re.DOTALL)


@dataclass(frozen=True)
class Language:
    """The words of one page."""

    page: str
    heads: tuple[str, str, str]
    stops: str
    caption: str


LANGUAGES = (
    Language(
        "README.md",
        ("encoding", "forward", "with backward"),
        "stops",
        "Times are ratios to no encoding at batch {batch_size}, length {length}, width {dim}, "
        "{num_heads} heads. Under 1 L to 16 L: nats per byte on the same last bytes of held-out "
        "windows of {text}, trained at L = {train_length}, {seeds} seed(s); lower is better. "
        "Measured with `{command}` on {threads} threads of {processor}, torch {torch}: "
        "[the record](runs/compare.json), [the commands](runs/README.md).",
    ),
    Language(
        "README.zh-CN.md",
        ("编码", "前向", "前向加反向"),
        "止步",
        "耗时为相对无编码的倍数，批 {batch_size}、长度 {length}、宽度 {dim}、{num_heads} 头。"
        "1 L 到 16 L 各列是留出窗口（{text}）末尾同一批字节上的每字节 nat 数，"
        "训练长度 L = {train_length}，{seeds} 个种子，越低越好。"
        "用 `{command}` 在 {processor} 的 {threads} 个线程上测得，torch {torch}："
        "[原始记录](runs/compare.json)，[所用命令](runs/README.md)。",
    ),
)


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 if `--check` finds a page out of date."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    record = json.loads(RECORD.read_text()) if RECORD.exists() else None
    stale = []
    for language in LANGUAGES:
        path = ROOT / language.page
        page = path.read_text(encoding="utf-8")
        section = "" if record is None else f"\n{table(record, language)}\n"
        filled = MARKED.sub(lambda _, section=section: section, page)
        if filled != page:
            stale.append(language.page)
            if not arguments:
                path.write_text(filled, encoding="utf-8")
    if arguments and stale:
        print(f"not the figures of runs/compare.json: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


def table(record: dict[str, Any], language: Language) -> str:
    """A Markdown table of cost and reach, and where it comes from."""
    cost, reach = record["cost"], record["extrapolation"]
    contexts = [c for c in reach["contexts"] if c >= reach["train_length"]]
    heads = [*language.heads, *(f"{c // reach['train_length']} L" for c in contexts)]
    names = dict.fromkeys([*reach["rows"], *cost["rows"]])
    rows = [
        [f"`{name}`", *_ratios(cost["rows"].get(name)), *_nats(reach, name, contexts, language)]
        for name in names
    ]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    caption = language.caption.format(
        **cost["settings"]["size"],
        **{name: record["machine"][name] for name in ("threads", "processor", "torch")},
        text=reach["text"]["name"],
        train_length=reach["train_length"],
        seeds=len(reach["seeds"]),
        command=record["command"],
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{caption}\n"


def _ratios(row: dict[str, Any] | None) -> list[str]:
    if row is None or "refused" in row:
        return ["", ""]
    return [f"{row[kind]['ratio']['median']:.2f}" for kind in ("forward", "training")]


def _nats(reach: dict[str, Any], name: str, contexts: list[int], language: Language) -> list[str]:
    if name not in reach["rows"]:
        return [""] * len(contexts)
    points = row_points(reach["rows"][name])
    return [f"{points[c].nats:.2f}" if c in points else language.stops for c in contexts]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
