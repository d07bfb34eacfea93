#!/usr/bin/env bash
# The tables and the picture of docs/performance.md, as `make bench` measures them.
set -euo pipefail
cd "$(dirname "$0")/.."

make bench ARGS="--seconds 0.5 --against transformers,transformers-compiled,rotary-embedding-torch,x-transformers,torchtune,flex"
cp posenc-bench/bench.json runs/bench.json
mkdir -p docs/figures
cp posenc-bench/bench.png docs/figures/bench.png
.venv/bin/python scripts/performance_page.py
