# Each command makes what it needs: the first one creates .venv. All that is written lies in ignored folders.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# The first Python from 3.10 up; `make PYTHON=/path/to/python ...` names another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo "$$p"; break; }; done)

.PHONY: help demo test check lint types walls docs bench sanitize interpret clean

help:
	@echo "make demo    the tracking example: a simulated camera network, trained and scored; a report in out/demo"
	@echo "make test    all tests (make test ARGS='-k causal' passes arguments to pytest)"
	@echo "make check   ruff, mypy, import-linter, and the docs built strictly"
	@echo "make bench   every benchmark"
	@echo "make sanitize  the kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make interpret  the tests of the GPU's kernels on Triton's interpreter"
	@echo "make docs    the documentation, into site/"
	@echo "make clean   remove .venv and all that these commands wrote"

demo: $(VENV)/.made-demo
	$(BIN)/python -m examples.mtmc demo --out out/demo

test: $(VENV)/.made-scatter $(VENV)/.made-kernels
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

# DGL stands in an environment of its own, which sees the packages of the other one.
PEERS := .venv-bench

bench: $(VENV)/.made-scatter $(VENV)/.made-kernels $(PEERS)/.made
	@set -e; for file in benchmarks/[a-z]*.py; do \
		python=$(BIN)/python; case $$file in */graphs.py) [ ! -s $(PEERS)/.made ] || python=$(PEERS)/bin/python; esac; \
		echo "== $$file"; DGLBACKEND=pytorch $$python -m "benchmarks.$$(basename "$$file" .py)"; done

# The tests that run the kernels on a build of its own: those of numbers at every vector level of this machine.
SANITIZED := out/sanitized
OF_NUMBERS := $(addprefix tests/laws/test_,graphs.py sequences.py forbidden.py derivatives.py)
OF_THE_REST := tests/test_sorting.py tests/backends tests/laws --ignore=tests/backends/test_triton.py $(addprefix --ignore=,$(OF_NUMBERS))

sanitize: $(VENV)/.made-dev
	ATTNOPS_SANITIZE=address,undefined ATTNOPS_REQUIRE_KERNELS=1 $(BIN)/python setup.py -q build_ext --build-lib $(SANITIZED)
	@set -e; \
	export ATTNOPS_LIBRARY="$(CURDIR)/$(SANITIZED)/attnops/kernels/libattnops.so" ATTNOPS_TEST_BACKEND=native; \
	export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 HYPOTHESIS_PROFILE=few; \
	preload="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so.6)"; \
	for level in $$(LD_PRELOAD="$$preload" $(BIN)/python -c 'from attnops.kernels.library import levels; print(*levels())'); do \
		echo "== $$level"; \
		LD_PRELOAD="$$preload" ATTNOPS_TEST_LEVEL=$$level $(BIN)/python -m pytest -q --capture=sys $(OF_NUMBERS) $(ARGS); \
	done; \
	LD_PRELOAD="$$preload" $(BIN)/python -m pytest -q --capture=sys $(OF_THE_REST) $(ARGS)

# Triton's kernels on its interpreter, with few examples: what numbers they give, and that they meet the laws.
interpret: $(VENV)/.made-kernels
	TRITON_INTERPRET=1 ATTNOPS_TEST_BACKEND=triton HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest -q \
		tests/backends/test_triton.py $(addprefix tests/laws/test_,error_bound.py forbidden.py derivatives.py) $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) out site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info $(LIBRARY)

$(PEERS)/.made: | $(VENV)/.made-dev
	@rm -rf $(PEERS) && $(BIN)/python -m venv $(PEERS)
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/peers.pth"
	@if $(PEERS)/bin/python -m pip --disable-pip-version-check install --no-deps dgl==1.1.3; then echo dgl > $@; \
	else echo "DGL 1.1.3 has no wheel for this Python: going on without it"; : > $@; fi

# --- the environment -------------------------------------------------------------------------------------------------

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "attnops needs Python 3.10 or newer; none is on the PATH (make PYTHON=/path/to/python)"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python -m venv failed (on Debian: apt install python3-venv)"; exit 1; }

LIBRARY := attnops/kernels/libattnops.so
KERNELS := setup.py $(wildcard attnops/kernels/csrc/*)

# What the demo needs, and no more, so that a newcomer waits less.
$(VENV)/.made-demo: pyproject.toml constraints.txt $(KERNELS) | $(BIN)/pip
	$(PIP) install -c constraints.txt -e '.[mtmc]'
	@touch $@

$(VENV)/.made-dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.made-demo

# An installation has compiled the kernels; here again where their sources are newer.
$(VENV)/.made-kernels: $(KERNELS) | $(VENV)/.made-dev
	@if ! command -v "$${CXX:-c++}" >/dev/null; then echo "no C++ compiler: going on without the compiled kernels"; \
	elif [ ! -e $(LIBRARY) ] || [ -n "$$(find $(KERNELS) -newer $(LIBRARY))" ]; then \
		echo "compiling the kernels"; ATTNOPS_REQUIRE_KERNELS=1 $(BIN)/python setup.py -q build_ext --inplace; fi
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
