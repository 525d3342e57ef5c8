# Everything a user or a maintainer runs. Each target makes the environment first if it is missing.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help env quickstart test test-slow check format bench audit tiny-models wheel

help:
	@echo "make quickstart   benchmark nine decoders on the embedded models; table and figure"
	@echo "make test         the tests (without the slow ones);  make test-slow  those as well"
	@echo "make check        ruff, types, layering"
	@echo "make audit        prove losslessness: rules by enumeration, decoders end to end"
	@echo "make bench        engine speed against transformers' generate"
	@echo "make tiny-models  train the embedded model family again"

# torch first and alone: the version is pinned, and the build that the machine's index offers
# (CPU or CUDA) is kept by the second command.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

env: $(STAMP)

quickstart: $(STAMP)
	$(BIN)/python -m spec_bench experiment=quickstart
	$(BIN)/python -m spec_bench.report results/quickstart/results.csv

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 -m "not slow and not gpu"

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 -m "not gpu"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layering.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python scripts/bench.py

audit: $(STAMP)
	$(BIN)/python -m spec_bench.audit

tiny-models: $(STAMP)
	$(BIN)/python scripts/train_family.py

wheel: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
