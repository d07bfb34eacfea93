"""Run what the documentation shows: Python blocks, docstring examples, links and anchors.

    python scripts/check_docs.py              # everything
    python scripts/check_docs.py README.md    # some Markdown files only

A Markdown file's ```python blocks run in order in one namespace. A statement that is followed by a
comment `# SomeError: message` must raise exactly that; the message may go on over further comment
lines. `<!-- no-run -->` before a block skips it. Docstring examples run with the public names and
the sample tensors of `samples` at hand; where an example states its output, doctest compares it.
"""

import ast
import contextlib
import doctest
import importlib
import io
import itertools
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch
from docs_samples import samples, write_checkpoint
from markdown_it import MarkdownIt
from markdown_it.token import Token

from posenc.registry import ENCODINGS, RELATED, SCALINGS, Shape
from posenc.report.pages import page

ROOT = Path(__file__).resolve().parents[1]
MEASURED = re.compile(r"<!-- compare:begin -->.*<!-- compare:end -->", re.DOTALL)
TABLE_NAME = re.compile(r"^\| `([a-z][a-z0-9+-]*)` \|", re.MULTILINE)
PAGES = ROOT / "docs" / "encodings"
SECTIONS = {
    ".md": ("Formula", "Picture", "Choose it", "Traps", "Code", "Cost"),
    ".zh-CN.md": ("公式", "图示", "何时选", "陷阱", "代码", "代价"),
}
NO_RUN = "<!-- no-run -->"
RAISES = re.compile(r"#\s*(\w+(?:Error|Exception)): ?(.*)")


def main(names: list[str]) -> int:
    """Exit code: 0 if all is well, 1 with one line for each fault."""
    files = [Path(name).resolve() for name in names] or markdown_files()
    faults = [fault for file in files for fault in (*check_links(file), *check_blocks(file))]
    num_examples = 0
    if not names:
        num_examples, failed = check_docstrings()
        faults += failed
        faults += [*check_registry(), *check_pages()]
    for fault in faults:
        print(fault, file=sys.stderr)
    num_blocks = sum(len(list(python_blocks(file))) for file in files)
    print(
        f"docs: {len(files)} pages, {num_blocks} Python blocks, "
        f"{num_examples} docstring examples: {len(faults) or 'no'} faults"
    )
    return 1 if faults else 0


def markdown_files() -> list[Path]:
    """Every Markdown page of the project."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("runs/**/*.md")])


# Markdown ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced Python block and the line of the file that its code begins on."""

    code: str
    line: int


def parse(file: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(file.read_text(encoding="utf-8"))


def python_blocks(file: Path) -> Iterator[Block]:
    """The blocks to run, in order."""
    previous: Token | None = None
    for token in parse(file):
        is_python = token.type == "fence" and token.info.strip().split(" ")[0] == "python"
        skipped = previous is not None and previous.content.strip() == NO_RUN
        if is_python and not skipped:
            assert token.map is not None
            yield Block(token.content, token.map[0] + 2)
        previous = token


def check_blocks(file: Path) -> list[str]:
    """Run the blocks of one file in one namespace and an empty folder."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    faults = []
    with in_empty_folder():
        for block in python_blocks(file):
            fault = run_block(block, namespace, file)
            if fault:
                faults.append(fault)
                break  # what follows leans on what failed
    return faults


def run_block(block: Block, namespace: dict[str, Any], file: Path) -> str | None:
    """Run statement by statement; the first fault, or None."""
    try:
        tree = ast.parse("\n" * (block.line - 1) + block.code, filename=str(file))
    except SyntaxError as error:
        return f"{relative(file)}:{error.lineno}: {error.msg}"
    lines = block.code.splitlines()
    for index, statement in enumerate(tree.body):
        stop = tree.body[index + 1].lineno if index + 1 < len(tree.body) else None
        assert statement.end_lineno is not None
        after = lines[statement.end_lineno + 1 - block.line : stop and stop - block.line]
        where = f"{relative(file)}:{statement.lineno}"
        fault = run_statement(statement, namespace, str(file), expected_error(after))
        if fault:
            return f"{where}: {fault}"
    return None


def expected_error(lines: list[str]) -> str | None:
    """`Name: message` from the comment lines under a statement, None where they promise no error."""
    comments = [line.strip() for line in lines if line.strip().startswith("#")]
    for index, comment in enumerate(comments):
        match = RAISES.match(comment)
        if match:
            rest = [line.lstrip("# ") for line in comments[index + 1 :]]
            return normalised(f"{match[1]}: {' '.join([match[2], *rest])}")
    return None


def run_statement(
    statement: ast.stmt, namespace: dict[str, Any], filename: str, expected: str | None
) -> str | None:
    code = compile(ast.Module([statement], []), filename, "exec")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, namespace)
    except Exception as error:
        got = normalised(f"{type(error).__name__}: {error}")
        if expected is None:
            return traceback.format_exception_only(error)[-1].strip()
        if got == expected:
            return None
        return f"raises\n    {got}\n  where the page says\n    {expected}"
    return None if expected is None else f"raises nothing where the page says\n    {expected}"


def check_links(file: Path) -> list[str]:
    """Relative links and images must lead to files, fragments to headings."""
    faults = []
    for target in link_targets(parse(file)):
        url = urlsplit(target)
        if url.scheme or url.netloc:
            continue
        path = (file.parent / unquote(url.path)).resolve() if url.path else file
        if not path.is_relative_to(ROOT):
            faults.append(f"{relative(file)}: {target} leads out of the project")
        elif not path.exists():
            faults.append(f"{relative(file)}: {target} does not exist")
        elif url.fragment and path.suffix == ".md" and unquote(url.fragment) not in anchors(path):
            faults.append(f"{relative(file)}: {target}: no such heading")
    return faults


def link_targets(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        for name in ("href", "src"):
            if name in token.attrs:
                yield str(token.attrs[name])
        yield from link_targets(token.children or [])
        if token.type in ("html_block", "html_inline"):
            yield from re.findall(r'(?:href|src|srcset)="([^"]+)"', token.content)


def anchors(file: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    tokens = parse(file)
    found: set[str] = set()
    for opening, inline in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            text = "".join(child.content for child in inline.children or [])
            base = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            repeats = (f"{base}-{n}" if n else base for n in range(len(tokens)))
            found.add(next(anchor for anchor in repeats if anchor not in found))
    return found


def check_registry() -> list[str]:
    """Pages that list the encodings must list all of them, and the tables nothing else."""
    faults = []
    for file in ("README.md", "README.zh-CN.md", "docs/encodings.md", "docs/encodings.zh-CN.md"):
        text = MEASURED.sub("", (ROOT / file).read_text(encoding="utf-8"))
        missing = [name for name in ENCODINGS if f"`{name}`" not in text]
        known = {*ENCODINGS, *RELATED}
        unknown = [name for name in TABLE_NAME.findall(text) if name not in known]
        faults += [f"{file}: the encoding `{name}` is missing" for name in missing]
        faults += [f"{file}: the registry has no `{name}`" for name in unknown]
    return faults


def check_pages() -> list[str]:
    """Every encoding has a page in both languages, with its figure; scaling methods share one.

    So has what the registry does not walk, by the same rule.
    """
    related = [name for name, entry in RELATED.items() if not entry.is_scaling]
    methods = [*SCALINGS, *(name for name, entry in RELATED.items() if entry.is_scaling)]
    faults = []
    for ending, sections in SECTIONS.items():
        expected = {f"{name}{ending}" for name in (*ENCODINGS, *related, "scaling")}
        found = {file.name for file in PAGES.glob("*.md") if file.name.endswith(ending)}
        if ending == ".md":
            found = {name for name in found if not name.endswith(".zh-CN.md")}
        faults += [f"docs/encodings/{name} is missing" for name in sorted(expected - found)]
        faults += [f"docs/encodings/{name} is of nothing" for name in sorted(found - expected)]
        for name in (*ENCODINGS, *related):
            faults += check_page(name, PAGES / f"{name}{ending}", sections)
        for name in methods:
            faults += check_method(name, PAGES / f"scaling{ending}")
    for name in (*ENCODINGS, *related, "scaling"):
        faults += check_twins(PAGES / f"{name}.md", PAGES / f"{name}.zh-CN.md")
    return faults


def check_page(name: str, file: Path, sections: tuple[str, ...]) -> list[str]:
    """Sections, formula, figure, text; in English what `posenc show` prints.

    And the number of parameters where the registry builds it.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    wanted = [f"## {title}\n" for title in sections]
    wanted += [f"](../figures/encodings/{name}.png)", "```math\n"]
    if name in ENCODINGS:
        parts = ENCODINGS[name].build(Shape()).modules().values()
        wanted.append(f" {sum(p.numel() for part in parts for p in part.parameters()):,} ")
    if not file.name.endswith(".zh-CN.md"):
        wanted += [page(name).summary, *page(name).traps]
    return [f"{relative(file)}: {part.strip()!r} is missing" for part in wanted if part not in text]


def check_method(name: str, file: Path) -> list[str]:
    """A section with a figure for each method; in English its traps."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    wanted = [f"## `{name}`\n", f"](../figures/encodings/{name}.png)"]
    wanted += () if file.name.endswith(".zh-CN.md") else page(name).traps
    return [f"{relative(file)}: {part.strip()!r} is missing" for part in wanted if part not in text]


def check_twins(english: Path, chinese: Path) -> list[str]:
    """Two languages, one set of formulas and one program: comments alone differ."""
    if not (english.exists() and chinese.exists()):
        return []
    one, other = (
        [
            (token.info, ast.dump(ast.parse(token.content)))
            if token.info == "python"
            else (token.info, token.content)
            for token in parse(file)
            if token.type == "fence"
        ]
        for file in (english, chinese)
    )
    if one == other:
        return []
    return [f"{relative(english)} and {chinese.name} show other formulas or other code"]


# Docstrings -------------------------------------------------------------------------------------


class Checker(doctest.OutputChecker):
    """Output counts only where the example states it."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def check_docstrings() -> tuple[int, list[str]]:
    """Run the examples of every module; how many there are, and the faults."""
    runner = doctest.DocTestRunner(Checker(), verbose=False, optionflags=doctest.ELLIPSIS)
    faults = []
    with in_empty_folder():
        write_checkpoint(Path())
        for test in docstring_examples():
            test.globs = samples(test.name) | test.globs
            report = io.StringIO()
            if runner.run(test, out=report.write).failed:
                where = f"{relative(Path(test.filename or '?'))}:{(test.lineno or 0) + 1}"
                faults.append(f"{where}: {test.name}\n{report.getvalue()}")
    return runner.tries, faults


def docstring_examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    source = ROOT / "src"
    for path in sorted(source.glob("posenc/**/*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = importlib.import_module(name)
        tests = finder.find(module, name)
        yield from (test for test in tests if test.examples)


# Helpers ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_empty_folder() -> Iterator[None]:
    """Examples that write files write them into a folder that goes away."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def relative(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def normalised(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
