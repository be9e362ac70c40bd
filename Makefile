# lockfast. Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SEEDS  ?= 3000
STORE  ?= memory
FIRST  ?= 1
# No server, nothing that takes longer than a few seconds.
QUICK  := tests/core tests/api/events tests/api/test_aio_body.py tests/api/test_keys.py \
          tests/api/test_interrupts.py \
          tests/api/test_kit.py tests/api/test_museum.py tests/api/test_one_loop.py tests/api/test_types.py tests/stores/memory tests/stores/sqlite \
          tests/meta/test_architecture.py tests/meta/test_generated.py tests/meta/test_vocabulary.py

.PHONY: help demo test quick check simulate bench build format clean

help:
	@echo "make demo      show the main job on the embedded store, in your terminal (no server)"
	@echo "make quick     run style, types and the tests of core, API, memory and SQLite: 1 minute"
	@echo "make test      run everything: style, types, all tests on all stores, coverage, simulation"
	@echo "make check     check style and types"
	@echo "make format    fix style, and generate the sync API from the async API"
	@echo "make simulate  SEEDS=$(SEEDS) FIRST=$(FIRST) STORE=memory|redis|replicas|redlock: simulate faults"
	@echo "make bench     print the benchmarks, as ratios measured in one run"
	@echo "make build     build and check the wheel and the sdist"

$(VENV)/ready: pyproject.toml constraints.txt
	@# Debian's Python comes without the venv module.
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } || \
	    { echo "install python3-venv first (as root: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1.
	$(PIP) pip
	$(PIP) --group dev
	$(PIP) --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/ready
	$(BIN)/lockfast demo

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/mypy

quick: $(VENV)/ready
	@$(MAKE) --no-print-directory check & checks=$$!; \
	    $(BIN)/python -m pytest -n 3 --dist loadfile $(QUICK) && wait $$checks

# The servers are installed while style and types are checked.
test: $(VENV)/ready
	@lab/servers/ensure & servers=$$!; $(MAKE) --no-print-directory check && wait $$servers
	$(BIN)/python tests/run_all.py

simulate: $(VENV)/ready
	$(BIN)/python -m lab.simulate --store $(STORE) --seeds $(SEEDS) --first $(FIRST)

bench: $(VENV)/ready
	$(BIN)/python bench/run.py

build: $(VENV)/ready
	$(PIP) --group release
	$(BIN)/python tools/build.py

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/generate_sync.py

clean:
	rm -rf $(VENV) build dist .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
