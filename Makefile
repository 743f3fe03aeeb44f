# Everything runs in virtual environments made here; nothing else needs to be installed.
PYTHON ?= python3
TEST := .venv/test
RUN := .venv/run
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: test test-all lint types benchmark clean

test: lint types
	$(TEST)/bin/python -m pytest -n auto

test-all: lint types
	$(TEST)/bin/python -m pytest -n auto -m ''

lint: $(TEST)/.installed
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .

types: $(TEST)/.installed
	$(TEST)/bin/mypy

benchmark: $(RUN)/.installed
	$(RUN)/bin/python benchmarks/engine.py

# Tests need timm and torchvision; a plain installation does not, and is kept apart from them.
$(TEST)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python $(PIP) --editable '.[dev]'
	touch $@

$(RUN)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RUN)
	$(RUN)/bin/python $(PIP) --editable .
	touch $@

clean:
	rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache
