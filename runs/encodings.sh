#!/usr/bin/env bash
# The figures of docs/encodings: one for everything that has a page or a section, from the library.
set -euo pipefail
cd "$(dirname "$0")/.."

names=$(.venv/bin/posenc list --json | .venv/bin/python -c '
import json, sys
listed = json.load(sys.stdin)
for kind in ("encodings", "scalings", "related"):
    print(*(entry["name"] for entry in listed[kind]), sep="\n")')
for name in $names; do
  .venv/bin/posenc show "$name" --figure "docs/figures/encodings/$name.png" >/dev/null
done
