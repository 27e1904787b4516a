PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test lint demo clean

serve: $(VENV)/.server
	$(BIN)/python -m fnx_jax.serve $(ARGS)

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist=loadfile $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

demo: $(VENV)/.train
	$(BIN)/python -m experiments.train_demo --work=.cache/train
	$(BIN)/python -m experiments.demo_figures --work=.cache/train --out=checkpoints/demo $(ARGS)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.server: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[server]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[server,dev]'
	touch $@

$(VENV)/.train: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[server,train]'
	touch $@

clean:
	rm -rf $(VENV) .cache
