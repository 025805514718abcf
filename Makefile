# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test lint bench clean

demo: $(VENV)/run.stamp
	$(BIN)/fedlens demo images

test: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --dist loadfile

bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/population.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/contrast.py
	$(BIN)/python benchmarks/language.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and pinned: any other way pulls gigabytes of CUDA.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@
