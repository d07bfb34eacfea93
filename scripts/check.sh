#!/usr/bin/env bash
# What people and CI both run.   scripts/check.sh [all | static | STEP ...]
#
# static: format lint types layers docs        all: static, then wheel, tests, mutants
set -euo pipefail
cd "$(dirname "$0")/.."

bin=.venv/bin
mutants_in_ci=12 # a seeded sample; `make mutants` runs them all
figures_in_ci=6  # drawn anew; what the others show is compared too, `make test-slow` draws them all

format()  { $bin/ruff format --check .; }
lint()    { $bin/ruff check .; }
types()   { $bin/pyright; }
layers()  { $bin/python -m pytest tests/test_imports.py; }
docs() {
  $bin/python scripts/check_docs.py
  $bin/python scripts/readme_tables.py --check
  $bin/python scripts/performance_page.py --check
  $bin/python scripts/check_figures.py --sample $figures_in_ci --seed 0
}
tests()   { $bin/python -m pytest -m "not slow" --durations=5 2>&1 | tee "$log"; }
mutants() { $bin/python scripts/mutants.py --sample $mutants_in_ci --seed 0; }

# The wheel must work without the source tree: an environment of its own, the packages it needs
# borrowed from ours.
wheel() {
  $bin/python -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir "$scratch/dist"
  $bin/python -m venv --without-pip "$scratch/venv"
  local python="$scratch/venv/bin/python" site
  $bin/python -m pip --python "$python" install --quiet --no-deps "$scratch"/dist/posenc-*.whl
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  realpath .venv/lib/python*/site-packages >"$site/borrowed.pth"
  (
    cd "$scratch"
    "$python" -c 'import posenc, sys; sys.exit(not posenc.__file__.startswith(sys.prefix))'
    if command -v c++ >/dev/null; then
      "$python" -c 'import sys; from posenc.kernels.native import missing; sys.exit(missing())'
    fi
    "$python" -m posenc list >from-module.txt
    "$scratch/venv/bin/posenc" list
    cmp from-module.txt <("$scratch/venv/bin/posenc" list)
  )
}

case "${1:-all}" in
  all) steps=(format lint types layers docs wheel tests mutants) ;;
  static) steps=(format lint types layers docs) ;;
  *) steps=("$@") ;;
esac

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log="$scratch/pytest.txt"
for step in "${steps[@]}"; do
  declare -F "$step" >/dev/null || { echo "check.sh: no step '$step'" >&2; exit 2; }
  echo "== $step"
  SECONDS=0
  "$step"
  echo "== $step: ok, ${SECONDS} s"
done
if [[ -f $log ]]; then tail -n 1 "$log"; fi
