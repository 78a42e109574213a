# `make help` lists the targets. Everything happens in .venv; outside this folder only PostgreSQL's server is
# installed, by apt where it may, for the tests of studies that several machines share.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Without the server its tests are skipped, and say so; in CI they fail.
define POSTGRES
ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || command -v pg_ctl >/dev/null || { \
  as=""; [ "$$(id -u)" = 0 ] || as="sudo -n"; \
  command -v apt-get >/dev/null && { $$as apt-get install -y -qq postgresql >/dev/null 2>&1 || \
    { $$as apt-get update -qq >/dev/null 2>&1 && $$as apt-get install -y -qq postgresql >/dev/null 2>&1; }; } || \
  echo "PostgreSQL's server could not be installed: its tests will be skipped (Debian: apt-get install postgresql)"; }
endef

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types layers unit bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with everything that demo and tests need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[all,callbacks,dev]"
	@$(POSTGRES)
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
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup

bench: $(READY) ## accuracy and speed on this machine (long); see docs/benchmarks.md
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/allocator_speed.py
	$(BIN)/python benchmarks/accuracy_cpu.py steps
	$(BIN)/python benchmarks/accuracy_cpu.py models --count 20 --largest 3GiB
	$(BIN)/python benchmarks/accuracy_cpu.py large

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
