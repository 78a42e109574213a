# `make help` lists the targets. Everything happens in .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types layers unit bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with everything that demo and tests need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[all,callbacks,dev]"
	@touch $(READY)

demo: $(READY) ## predict a small CNN, really train it on handwritten digits, compare both
	$(BIN)/memgauge measure zoo:torres-cnn --set data=digits --batch-size 512 --compare --layers 5

test: $(READY) lint types layers unit ## everything that CI runs

lint: $(READY) ## style and common mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## strict static types
	$(BIN)/mypy

layers: $(READY) ## imports point downwards only
	$(BIN)/lint-imports

unit: $(READY) ## every test
	$(BIN)/python -m pytest

bench: $(READY) ## accuracy and speed on this machine (long); see docs/benchmarks.md
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/allocator_speed.py
	$(BIN)/python benchmarks/accuracy_cpu.py steps
	$(BIN)/python benchmarks/accuracy_cpu.py models --count 20 --largest 3GiB
	$(BIN)/python benchmarks/accuracy_cpu.py large

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
