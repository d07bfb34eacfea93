"""Put the tables of a benchmark record into docs/performance.md, between its markers.

    python scripts/performance_page.py            # write
    python scripts/performance_page.py --check    # fail where the page says something else

The record is runs/bench.json, which runs/bench.sh keeps.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from posenc.report.speed import page

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "runs/bench.json", ROOT / "docs/performance.md"
MARKED = re.compile(r"(?<=<!-- bench:begin -->\n).*?(?=<!-- bench:end -->)", re.DOTALL)


def origin(record: dict[str, Any]) -> str:
    """What the figures depend on, in a sentence."""
    here = record["machine"]
    return (
        f"Measured with `{' '.join(record['command'])}` on {here['threads']} threads of "
        f"{here['processor']}, torch {here['torch']}, commit {here['commit']}, {here['date']}: "
        "[the record](../runs/bench.json)."
    )


def main(arguments: list[str]) -> int:
    record = json.loads(RECORD.read_text("utf-8"))
    old = PAGE.read_text("utf-8")
    new = MARKED.sub(lambda _: f"{origin(record)}\n\n{page(record)}\n", old)
    if "--check" in arguments:
        if new != old:
            print(f"{PAGE.name} does not say what {RECORD.name} holds", file=sys.stderr)
        return int(new != old)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
