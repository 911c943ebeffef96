# A fresh machine needs Python 3.11 or newer, pip and make. Everything else goes into .venv, from hash-pinned wheels.

PYTHON ?= python3
# Arguments for pytest, for instance: make test ARGS="tests/core -k expired"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
READY := $(VENV)/.ready
SOURCES := src tests $(wildcard bench examples)

.PHONY: help demo test prove lint format bench lock clean venv

help:
	@echo "make demo    the protected shop API and its duplicate path, over real sockets"
	@echo "make test    every test, on real servers"
	@echo "make prove   the kill tests with full numbers"
	@echo "make lint    ruff, mypy, pyright"
	@echo "make format  let ruff rewrite what it can"
	@echo "make bench   the benchmarks"
	@echo "make lock    renew the pins in requirements/"
	@echo "make clean   remove .venv and everything generated"

demo: $(READY)
	$(BIN)/samekey demo --once

# Each worker has a database of its own, so tests of different workers share no lock and no row.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

prove: $(READY)
	$(BIN)/python -m pytest tests/process --rounds 200 -s $(ARGS)

lint: $(READY)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(READY)
	$(BIN)/python -m bench $(ARGS)

# Index addresses stay out: whoever installs has a registry of their own.
LOCK := pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock: $(READY)
	$(UV) $(LOCK) requirements/uv.in -o requirements/uv.txt
	$(UV) $(LOCK) requirements/dev.in -o requirements/dev.txt

venv: $(READY)

# Built anew when a pin or the package's own metadata changes.
$(READY): requirements/uv.txt requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	    "samekey needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.12" \
	    % sys.version_info[:2])'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
