# Sfumato. `make help` lists what there is; `make run` needs nothing done before it.
#   PYTHON=python3.12   the Python to build .venv with (3.11 or newer)
#   HOST= PORT= ARGS=   passed on to `sfumato serve` by `make run` (ARGS also by `make versions`)
#   JOBS=2              processes that `make test` deals the tests to
#   APT=no              never install system packages; `make test` then says what it skips

PYTHON ?= python3
HOST ?=
PORT ?=
ARGS ?=
APT ?= yes
JOBS ?= 2

BIN := .venv/bin
RUN_STAMP := .venv/.setup-stamp-run
TEST_STAMP := .venv/.setup-stamp-test

.DEFAULT_GOAL := help
.PHONY: help setup run test check lint types bench versions migrate system

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(RUN_STAMP) ## build .venv with everything that the product needs

$(RUN_STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" APT="$(APT)" sh scripts/setup.sh venv .
	@touch $@

$(TEST_STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" APT="$(APT)" sh scripts/setup.sh venv '.[dev]'
	@touch $(RUN_STAMP) $@

system:
	@APT="$(APT)" sh scripts/setup.sh system

run: $(RUN_STAMP) ## set up if needed, bring the database up to date, serve, print the address
	@exec $(BIN)/sfumato serve $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(ARGS)

migrate: $(RUN_STAMP) ## bring the database's tables up to date (`make run` does it too)
	@$(BIN)/alembic upgrade head

test: $(TEST_STAMP) system ## set up if needed, then the whole test suite
	@$(BIN)/python -m pytest tests -n $(JOBS)

check: lint types test ## what a change must pass: lint, types, test

lint: $(TEST_STAMP) ## ruff, djlint and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/djlint --quiet --lint templates
	@$(BIN)/lint-imports

types: $(TEST_STAMP) ## mypy, strict, on app and engine
	@$(BIN)/mypy

bench: $(TEST_STAMP) ## measure the figures in README.md on this machine
	@$(BIN)/python -m engine.bench
	@$(BIN)/python -m engine.sae.bench
	@$(BIN)/python scripts/bench_pages.py
	@$(BIN)/python scripts/bench_library.py

versions: $(TEST_STAMP) ## compare answers and rankings between two minor versions of transformers
	@$(BIN)/python scripts/versions.py $(ARGS)
