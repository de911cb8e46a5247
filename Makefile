# `make train` trains and evaluates on the built-in market; `make test` runs lint, types and every test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test lint types mutations determinism soak learn help

help:
	@echo "make train   install into $(VENV), train on the built-in market, evaluate out of sample"
	@echo "make test    install into $(VENV), then lint, types and every test"
	@echo "make mutations   put known mistakes into a copy, one by one, and see the tests fail (minutes)"
	@echo "make determinism  train with every crew of workers, interrupted or not, and compare hashes (minutes)"
	@echo "make learn   learning curves beside Stable-Baselines3 (hours; stopped, it goes on where it was)"
	@echo "make soak    reset, open, close and kill by the thousand, train meanwhile, and account for every step (minutes)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + "; choose one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# A stamp a set of packages: a second call finds it newer than what it was made from and installs nothing.
# The compiler is an extra: where it cannot be had, all runs without it, if slower.
$(VENV)/.installed: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[fast]' || \
	  $(BIN)/python -m pip install --disable-pip-version-check --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.installed

train: $(VENV)/.installed
	$(BIN)/python -m ml_pipeline.train_ppo --n-envs 8

test: $(VENV)/.installed-dev lint types
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

mutations: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutations

determinism: $(VENV)/.installed-dev
	$(BIN)/python -m tests.determinism

soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.soak

learn: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[learn]'
	$(BIN)/python -m benchmarks.learning
