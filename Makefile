# Every target sets itself up: Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

.PHONY: help demo test test-ui fuzz fuzz-long check bench package format clean

help:
	@echo "make demo    predict a step of Llama 3 70B on 512 H100s, show the answer"
	@echo "make test    run the tests"
	@echo "make test-ui run the tests of pages in Chromium"
	@echo "make fuzz    try mutated inputs, slow patterns and the random laws for some minutes"
	@echo "make fuzz-long  the same inputs for eight hours; Ctrl-C ends it, another run goes on"
	@echo "make check   format, lint, types, import contract, structure"
	@echo "make package build wheel and sdist, install and try them, test least and newest versions"
	@echo "make bench   speed against its bounds, traces and predictions against real runs"

demo: $(VENV)/core
	@$(BIN)/foretrace predict llama3-70b --gpus 512 --cluster h100-dgx --tp 4 --pp 4 --gbs 1024

test: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --ignore tests/ui

test-ui: $(VENV)/dev node_modules
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/ui

fuzz: $(VENV)/dev
	$(BIN)/python -m fuzz run --seconds 180
	$(BIN)/python tools/redos.py
	FORETRACE_FUZZ=1 $(BIN)/python -m pytest -n 2 tests/property

fuzz-long: $(VENV)/dev
	$(BIN)/python -m fuzz run --seconds 28800

check: $(VENV)/dev node_modules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/structure.py
	@if [ -d node_modules/typescript ]; then node_modules/.bin/tsc -p tsconfig.json; fi

bench: $(VENV)/dev
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/network.py
	$(BIN)/python benchmarks/traces.py
	$(BIN)/python benchmarks/profiled.py
	$(BIN)/python benchmarks/kineto_load.py
	$(BIN)/python benchmarks/hta.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/plan_order.py
	$(BIN)/python benchmarks/planner.py
	$(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/gantt.py
	$(BIN)/python benchmarks/serve.py

package: $(VENV)/bin/python
	$(BIN)/python tools/package.py --matrix

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf build $(VENV) node_modules

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/core: pyproject.toml | $(VENV)/bin/python
	@$(PIP) install --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/dev: $(VENV)/core pyproject.toml
	@$(PIP) install --editable ".[fast,silicon,dev]"
	@touch $@

# TypeScript checks the scripts of pages, axe-core their accessibility; nothing of them is shipped.
node_modules: package.json package-lock.json
	@if command -v npm >/dev/null; then npm ci --silent && touch $@; \
	else echo "npm is not installed: the scripts of pages are not checked"; mkdir -p $@; fi
