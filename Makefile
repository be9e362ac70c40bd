# lockfast. Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEEDS  ?= 3000
STORE  ?= memory
FIRST  ?= 1

.PHONY: help demo test check simulate bench format clean

help:
	@echo "make demo      the main job on the embedded store, in your terminal (no server)"
	@echo "make test      everything: style, types, all tests on all stores, coverage, simulation"
	@echo "make check     style and types alone"
	@echo "make simulate  SEEDS=$(SEEDS) FIRST=$(FIRST) STORE=memory|redis: in virtual time, with faults"
	@echo "make bench     the numbers, as ratios measured side by side"

$(VENV)/ready: pyproject.toml constraints.txt
	@# Debian's Python comes without what makes virtual environments.
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; } || \
	    { echo "install python3-venv first (as root: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    asyncmy coverage editables filelock greenlet hatchling hiredis hypothesis kazoo lupa mypy \
	    opentelemetry-sdk pottery prometheus-client "psycopg[binary]" PyMySQL pyte pytest \
	    pytest-timeout pytest-xdist python-redis-lock redis redlock-py ruff \
	    SQLAlchemy
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/ready
	$(BIN)/lockfast demo

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The servers are installed while style and types are checked.
test: $(VENV)/ready
	@lab/lab/servers/ensure & servers=$$!; $(MAKE) --no-print-directory check && wait $$servers
	$(BIN)/python tests/run_all.py

simulate: $(VENV)/ready
	$(BIN)/python -m lab.simulate --store $(STORE) --seeds $(SEEDS) --first $(FIRST)

bench: $(VENV)/ready
	$(BIN)/python bench/run.py

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
