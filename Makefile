PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test test-all check bench venv clean

demo: $(INSTALLED)
	$(BIN)/gradmix demo

test: $(INSTALLED)
	$(BIN)/pytest -n 2

test-all: $(INSTALLED)
	$(BIN)/pytest -n 2 -m ""

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
