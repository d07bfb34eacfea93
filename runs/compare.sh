#!/usr/bin/env bash
# The figure and the table of the README pages: the main job, as `make compare` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

make compare
cp posenc-compare/record.json runs/compare.json
mkdir -p docs/figures
cp posenc-compare/figure.png docs/figures/compare.png
.venv/bin/python scripts/readme_tables.py
