# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
OLDEST := build/oldest
# Of every library that an old version could spoil: numbers, files, recipes, pages, keys, models.
TELLING := losses readers recipes measures report chain files primary docs

.PHONY: demo test corners api bench clean

demo: $(VENV)/run.stamp
	$(BIN)/fedlens demo images

test: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses auto --dist worksteal

# With the oldest versions of all libraries but torch that pyproject.toml allows.
corners: $(OLDEST)/stamp
	$(OLDEST)/bin/pytest --numprocesses auto --dist loadfile $(TELLING:%=tests/test_%.py)

bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/population.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/contrast.py
	$(BIN)/python benchmarks/language.py
	$(BIN)/python benchmarks/looks.py
	$(BIN)/python benchmarks/critics.py

# The public API on one page, docs/api.md, from the docstrings.
api: $(VENV)/dev.stamp
	$(BIN)/python tools/api.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and pinned, so that a CPU build on offer is taken: those on PyPI bring gigabytes of CUDA.
$(VENV)/run.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

$(OLDEST)/stamp: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip --disable-pip-version-check --quiet install --constraint constraints-oldest.txt torch
	$(OLDEST)/bin/pip --disable-pip-version-check --quiet install --constraint constraints-oldest.txt \
		--editable '.[postgres,readers]' hypothesis pytest pytest-xdist
	touch $@
