# `make demo` and `make test` work on a machine that has git, make, Python 3.11 and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Twice quiet: errors, but not a warning for each package that pip would have liked otherwise.
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq install --constraint constraints.txt

.PHONY: help demo quick test test-all test-long test-processors chaos soak audit check format clean
.DEFAULT_GOAL := help

help:  ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(VENV)/.installed  ## the whole path on the text every Python installation carries
	@$(BIN)/electra demo

quick: $(VENV)/.installed-dev  ## the tests of a second or less, of every room: about two minutes
	@$(BIN)/python -m pytest -n 2 -m "not slow and not long"

test: $(VENV)/.installed-dev  ## the tests but for a few long ones: about twenty minutes
	@$(BIN)/python -m pytest -n 2 -m "not long"

test-long: $(VENV)/.installed-dev  ## those few, each of which says why it is long
	@$(BIN)/python -m pytest -n 2 -m long

test-processors: $(VENV)/.installed-dev  ## the numerical tests as other processors would compute
	@$(BIN)/python .ci/processors.py

chaos: $(VENV)/.installed-dev  ## the whole campaign of kills, faults and flipped bits, with a report in chaos/
	@$(BIN)/python tests/chaos/campaign.py --out chaos $(if $(SECONDS_LEFT),--seconds $(SECONDS_LEFT))

soak: $(VENV)/.installed-dev  ## a server at twice its capacity for half an hour, with a report in soak/
	@$(BIN)/python tests/chaos/soak.py --out soak

audit: $(VENV)/.installed-audit  ## a bill of materials in audit/, and what is known to be vulnerable
	@$(BIN)/python .ci/audit.py

test-all: test test-long test-processors chaos  ## what CI runs

check: $(VENV)/.installed-dev  ## format, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/.installed-dev  ## put the code in its one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: dist
dist: $(VENV)/.installed-dev  ## a wheel and an sdist in dist/, tried in a fresh environment
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@ls dist/*
	@echo "installing the wheel into a fresh environment (about two minutes) ..."
	@set -e; fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT; \
	  $(PYTHON) -m venv "$$fresh/venv"; \
	  "$$fresh/venv/bin/python" -m pip --disable-pip-version-check --no-input -qq install \
	    --constraint constraints.txt "$$(ls dist/*.whl)[report,tasks,serve]"; \
	  "$$fresh/venv/bin/python" tests/smoke.py "$$fresh/empty"

clean:  ## remove what these commands made
	@rm -rf $(VENV) demo chaos soak audit .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamps make a second call quick: pip runs again only if a requirement changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "electra needs Python 3.11 or newer")'
	@echo "installing electra into $(VENV) (about two minutes) ..."
	@test -x $(BIN)/python -a -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[report,tasks,serve,tensorboard]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need (about two minutes) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@

# An environment of its own: auditors bring packages that would be audited too.
$(VENV)/.installed-audit: $(VENV)/.installed-dev
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip --disable-pip-version-check --no-input -qq install 'cyclonedx-bom>=7,<8' 'pip-audit>=2.9,<3'
	@touch $@
