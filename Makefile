# `make` alone lists the targets. Each target makes the environment it needs.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROMTOOL := $(VENV)/tools/promtool
# Bytecode is written even if the environment disables it: otherwise each process compiles the tests again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

# The first Python of at least 3.11; name another with `make setup PYTHON=/path/to/python`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)
UV := $(shell command -v uv 2>/dev/null)

# Of `make chaos`.
SEED ?= 1
SECONDS ?= 60
CLUSTER ?= 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs screenshots constraints bench chaos soak up down clean

help: ## list the targets
	@echo "jetjobs: make TARGET"
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(STAMP) ## make .venv with everything for development

demo: $(STAMP) ## run the demo: a server, a worker and some jobs
	$(BIN)/python -m examples.demo

test: $(STAMP) $(PROMTOOL) ## run all tests; narrow with ARGS="tests/unit -k retry"
	@$(BIN)/python -m compileall -q jetjobs
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	$(PYTEST) -q -n 4 --dist worksteal -m "not alone and not patient"
	$(PYTEST) -q -n 4 --dist worksteal -m patient
	$(PYTEST) -q -m alone
endif

check: $(STAMP) ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright

docs: $(STAMP) ## make docs/reference/cli.md and openapi.json from the code
	$(BIN)/python -m jetjobs.cli.reference > docs/reference/cli.md
	$(BIN)/python -m jetjobs.http.openapi > docs/reference/openapi.json

screenshots: $(STAMP) ## draw the images in docs/images; some of them with ARGS="jobs-list doctor"
	$(BIN)/python -m tests.screenshots $(ARGS)

constraints: ## pin the development dependencies in constraints.txt; needs uv
	uv pip compile --quiet --universal --generate-hashes --upgrade --no-annotate --no-header --no-emit-index-url \
		--python-version 3.11 --extra test pyproject.toml --output-file constraints.txt

bench: $(STAMP) ## run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

chaos: $(STAMP) ## break everything for a while and check: SEED=2 SECONDS=300 CLUSTER=3
	$(BIN)/python -m tests.chaos --seed $(SEED) --seconds $(SECONDS) --cluster $(CLUSTER) $(ARGS)

soak: $(STAMP) ## schedules through kills, freezes and restarts, for six minutes
	JETJOBS_SOAK=1 $(BIN)/python -m pytest -q tests/e2e/test_schedulers.py $(ARGS)

up: ## start nats, a worker and Prometheus in containers
	docker compose up --build --detach

down: ## stop the containers; the data stays in its volume
	docker compose down

clean: ## remove the environment and caches; .jetjobs is left alone
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Runs again when the dependencies have changed. The stamp comes last, so a failed install is repeated. Two steps,
# because pip refuses an editable install while it checks hashes.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11, or does not run" >&2; exit 1; }
ifneq ($(UV),)
	@test -x $(BIN)/python || uv venv --python "$(PYTHON)" $(VENV)
	uv pip install --compile-bytecode --python $(BIN)/python --require-hashes -r constraints.txt
	uv pip install --quiet --python $(BIN)/python --no-deps -e .
else
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
endif
	@touch $(STAMP)

# Checks the metrics page in the tests. One that is installed is taken; else the one of Debian's package, without
# installing that: it would start a service. Where neither is to be had, the test says so.
$(PROMTOOL):
	@mkdir -p $(@D)
	@if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; \
	elif command -v apt-get >/dev/null && command -v dpkg >/dev/null; then \
		cd $(@D) && echo "fetching promtool" && \
		{ apt-get -qq download prometheus 2>/dev/null || \
			{ apt-get -qq update && apt-get -qq download prometheus; }; } && \
		dpkg -x prometheus_*.deb unpacked && mv unpacked/usr/bin/promtool promtool; \
		rm -rf unpacked prometheus_*.deb; \
	fi || true
