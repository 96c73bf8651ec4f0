# `make demo` and `make test` work in a fresh clone: each makes .venv as needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint benchmark clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,plots,fast]"
	@touch $@

demo: .venv/installed
	$(BIN)/snncompress demo --out demo --force

test: .venv/installed lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: .venv/installed
	$(BIN)/python -m benchmarks.tables all --quick

clean:
	rm -rf .venv build dist demo
