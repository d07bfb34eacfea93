# Everything runs from a virtual environment inside the clone; `make compare` and `make test` make it.
# PYTHON=python3.12 make test   picks the interpreter.   ARGS="--text my.txt" make compare   passes on.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install compare compare-full bench test test-slow check mutants wheel clean

help:  ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | column -t -s "$$(printf '\t')" 2>/dev/null || true

install: $(VENV)/.dev  ## the virtual environment, for development

compare: $(VENV)/.user  ## measure 13 of the 25 encodings on this machine, in minutes
	$(VENV)/bin/posenc compare $(ARGS)

compare-full: $(VENV)/.user  ## the same of all encodings, for about an hour, with more seeds and rows
	$(VENV)/bin/posenc compare --budget full $(ARGS)

bench: $(VENV)/.dev  ## time and memory beside peers and the limit, in about fifteen minutes
	$(VENV)/bin/posenc bench $(ARGS)

test: $(VENV)/.dev  ## all that CI runs: checks, tests, a sample of mutants, the wheel
	scripts/check.sh all

check: $(VENV)/.dev  ## format, lint, types, import layers, links and snippets
	scripts/check.sh static

test-slow: $(VENV)/.dev  ## the whole test suite, slow tests included
	$(PY) -m pytest -m "slow or not slow" $(ARGS)

mutants: $(VENV)/.dev  ## every mutant of the source: each must turn the tests red
	$(PY) scripts/mutants.py $(ARGS)

wheel: $(VENV)/.dev  ## build the wheel and try it in an environment of its own
	scripts/check.sh wheel

clean:  ## remove the virtual environment and what was built
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis

# The stamps: installed again only when the requirements change.
$(VENV)/.pip: constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; \
	  sys.version_info >= (3, 10) or sys.exit(f"posenc needs Python 3.10 or newer; $(PYTHON) is {v}")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt pip
	touch $@

$(VENV)/.user: $(VENV)/.pip pyproject.toml hatch_build.py $(wildcard src/posenc/kernels/*.cpp src/posenc/kernels/*.h)
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.user
	$(PIP) install --constraint constraints.txt --group dev
	touch $@
