# Each command makes what it needs: the first one creates .venv. All that is written lies in ignored folders.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The first Python from 3.10 up; `make PYTHON=/path/to/python ...` names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo "$$p"; break; }; done)

.PHONY: help demo test check lint types walls docs bench clean

help:
	@echo "make demo    the tracking example: a simulated camera network, trained and scored; a report in out/demo"
	@echo "make test    all tests (make test ARGS='-k causal' passes arguments to pytest)"
	@echo "make check   ruff, mypy, import-linter, and the docs built strictly"
	@echo "make bench   every benchmark"
	@echo "make docs    the documentation, into site/"
	@echo "make clean   remove .venv and all that these commands wrote"

demo: $(VENV)/.made-demo
	$(BIN)/python -m examples.mtmc demo --out out/demo

test: $(VENV)/.made-scatter
	$(BIN)/python -m pytest $(ARGS)

check: lint types walls docs

lint: $(VENV)/.made-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: $(VENV)/.made-dev
	$(BIN)/mypy

walls: $(VENV)/.made-dev
	$(BIN)/lint-imports

docs: $(VENV)/.made-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "documentation: site/index.html"

bench: $(VENV)/.made-scatter
	@set -e; for file in benchmarks/[a-z]*.py; do \
		echo "== $$file"; $(BIN)/python -m "benchmarks.$$(basename "$$file" .py)"; done

clean:
	rm -rf $(VENV) out site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info

# --- the environment -------------------------------------------------------------------------------------------------

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "attnops needs Python 3.10 or newer; none is on the PATH (make PYTHON=/path/to/python)"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python -m venv failed (on Debian: apt install python3-venv)"; exit 1; }

# What the demo needs, and no more, so that a newcomer waits less.
$(VENV)/.made-demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -c constraints.txt -e '.[mtmc]'
	@touch $@

$(VENV)/.made-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.made-demo

# torch-scatter is compiled against the torch that is installed. A wheel that pip kept from another torch does not
# import: then it is compiled anew. Where there is no compiler, the tests run without it.
BUILD_SCATTER := $(PIP) install --no-build-isolation --no-deps --force-reinstall -c constraints.txt torch-scatter

$(VENV)/.made-scatter: $(VENV)/.made-dev
	@$(BIN)/python -c 'import torch_scatter' 2>/dev/null || { \
		echo "compiling torch-scatter: several minutes, once"; \
		$(BUILD_SCATTER) && { $(BIN)/python -c 'import torch_scatter' 2>/dev/null || $(BUILD_SCATTER) --no-cache-dir; }; } || \
		echo "torch-scatter could not be built here (it takes a C++ compiler and Python's headers): going on without it"
	@touch $@
