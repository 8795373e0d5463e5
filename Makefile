PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
DOCUMENTED := $(VENV)/documented
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
EXTRAS := cluster,demo,export,figures,hub,photos,serve

OLDEST_TESTS := $(addprefix tests/,classifier/test_classifier.py files/test_state_file.py runs/test_run.py cli/test_main.py)

.PHONY: demo test test-all check bench figures docs linkcheck wheel test-oldest venv clean

demo: $(INSTALLED)
	$(BIN)/gradmix demo

test: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile

test-all: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile -m "" --hypothesis-profile explore

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

figures: $(INSTALLED)
	$(BIN)/python -m docs.figures

docs: $(DOCUMENTED)
	$(BIN)/sphinx-build -W --keep-going --quiet docs docs/_build/html
	$(BIN)/pytest -q -m "" tests/docs/test_site.py
	@echo "the site is in docs/_build/html/index.html"

linkcheck: $(DOCUMENTED)
	$(BIN)/sphinx-build -b linkcheck --quiet docs docs/_build/linkcheck

wheel: $(INSTALLED)
	rm -rf dist .wheel
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv .wheel
	.wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .wheel && bin/python ../tests/smoke.py

test-oldest:
	$(PYTHON) -m venv .oldest
	.oldest/bin/python -m pip install --quiet --disable-pip-version-check -c oldest.txt -e . pytest hypothesis
	.oldest/bin/pytest -q -W default $(OLDEST_TESTS)

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip
	$(PIP) -e ".[$(EXTRAS)]" --group dev
	touch $@

$(DOCUMENTED): $(INSTALLED)
	$(PIP) --group docs
	touch $@

clean:
	rm -rf $(VENV) .wheel .oldest dist docs/_build
