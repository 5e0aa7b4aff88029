# `make demo` and `make test` work on a machine that has git, make, Python 3.11 and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet install --constraint constraints.txt

.PHONY: help demo test quick check format clean
.DEFAULT_GOAL := help

help:  ## list these commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.installed  ## the whole path on the text every Python installation carries
	$(BIN)/electra demo

test: $(VENV)/.installed-dev  ## all tests
	$(BIN)/pytest -n 2

quick: $(VENV)/.installed-dev  ## the tests that take seconds
	$(BIN)/pytest -n 2 -m "not slow"

check: $(VENV)/.installed-dev  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## put the code in its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what these commands made
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamps make a second call quick: pip runs again only if a requirement changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "electra needs Python 3.11 or newer")'
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[report,tasks,serve]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@
