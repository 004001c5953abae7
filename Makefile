# Everything here works on a fresh machine with python3.11, make and git: set-up builds .venv by itself, once, and
# again when the requirements change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
# pip's own settings on a machine must not reach around the pins.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help studio test check bench proof setup clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

studio: $(READY) ## set up and see it work: an image becomes tokens
	$(BIN)/vitrail demo

test: check ## check, then all tests (warnings are errors, docs execute)
	$(BIN)/pytest -n 2 --dist worksteal

check: $(READY) ## lint, formatting, types, import direction
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY) ## measure against the peers and write docs/benchmarks.md (quiet machine, minutes)
	$(BIN)/python benchmarks/report.py

proof: $(READY) ## the planner against the tracker on 260 random cases; fails on a byte (minutes)
	$(BIN)/python tests/proof/run.py --count 260

setup: $(READY) ## build .venv

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[dev]'
	touch $(READY)

clean: ## remove what set-up and tests made
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
