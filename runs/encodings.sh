#!/usr/bin/env bash
# The figures of docs/encodings: one for each encoding and each scaling method, from the library.
set -euo pipefail
cd "$(dirname "$0")/.."

names=$(.venv/bin/posenc list --json | .venv/bin/python -c '
import json, sys
for entries in json.load(sys.stdin).values():
    print(*(entry["name"] for entry in entries), sep="\n")')
for name in $names; do
  .venv/bin/posenc show "$name" --figure "docs/figures/encodings/$name.png" >/dev/null
done
