#!/usr/bin/env bash
# The rows of docs/claims.md: more seeds, hybrids, learned scales, gaps, 50 steps of fine-tuning.
set -euo pipefail
cd "$(dirname "$0")/.."

make compare-full ARGS="--out posenc-compare-full ${*}"
cp posenc-compare-full/record.json runs/compare-full.json
mkdir -p docs/figures
cp posenc-compare-full/figure.png docs/figures/compare-full.png
