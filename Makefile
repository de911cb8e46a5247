# `make train` trains and evaluates on the built-in market; `make test` runs lint, types and the tests.
# The text behind ## is what `make help` says of a target.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH_VENV := .venv-bench
DOCS_VENV := .venv-docs
RELEASE_VENV := .venv-release
ZOO_VENV := .venv-zoo
CLUSTER_VENV := .venv-cluster
SITE := site
DIST := dist
# They start hundreds of processes, each of which would compile the package if none might keep what it compiled.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# Files are handed out in the order in which conftest.py has them, the slowest first. Tests wait for processes now
# and then: three at a time keep two cores busy.
SEVERAL := -n 3 --dist loadfile --no-loadscope-reorder
INSTALL := -m pip install --disable-pip-version-check --quiet --editable
# Debian packages that system tests use. Only root installs them (containers, CI); without one, its tests are skipped.
SYSTEM_PACKAGES := zsh chromium postgresql slurm-wlm munge
# Python packages that tests of clusters use, in an environment of their own on top of $(VENV).
CLUSTER_PACKAGES := ray kubernetes-validate

.PHONY: help install train test-fast test test-system system-packages lint types mutations determinism soak learn bench bench-tuning docs release

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

%/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, but $(PYTHON) is " + sys.version.split()[0] + "; choose one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }

# One stamp per set of packages: a second call finds it newer than pyproject.toml and installs nothing.
# The compiler and the page are extras: where they cannot be had, the rest runs without them, if slower.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) '.[fast,dashboard]' || $(BIN)/python $(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) '.[dev]'
	@touch $@ $(VENV)/.installed

# What a first training would compile in one process, by several. Where it cannot, trainings run all the same.
$(VENV)/.compiled: $(VENV)/.installed
	-$(BIN)/ml-pipeline compile perceptron trading
	@touch $@

# Apart from $(VENV): tianshou needs pandas 2, and vectorbt, which the tests use, pandas 3.
$(BENCH_VENV)/.installed: pyproject.toml | $(BENCH_VENV)/bin/python
	$(BENCH_VENV)/bin/python $(INSTALL) '.[bench]'
	@touch $@

$(ZOO_VENV)/.installed: pyproject.toml | $(ZOO_VENV)/bin/python
	$(ZOO_VENV)/bin/python $(INSTALL) '.[zoo]'
	@touch $@

# A path file names the packages of $(VENV), so that torch is not installed twice. Without an index, tests are skipped.
$(CLUSTER_VENV)/.installed: $(VENV)/.installed-dev | $(CLUSTER_VENV)/bin/python
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$($(CLUSTER_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/development.pth"
	$(CLUSTER_VENV)/bin/python -m pip install --disable-pip-version-check --quiet $(CLUSTER_PACKAGES) || \
	  echo "Not installed: $(CLUSTER_PACKAGES). The tests that need what is missing are skipped."
	@touch $@

install: $(VENV)/.compiled ## install into .venv and compile, for `source .venv/bin/activate` and then `ml-pipeline ...`

train: $(VENV)/.compiled ## install into .venv, compile, train on the built-in market, evaluate out of sample
	$(BIN)/python -m ml_pipeline.train_ppo --n-envs 8 --iterations 100

test-fast: $(VENV)/.installed-dev ## the quick tests alone, for daily work (one to two minutes)
	$(PYTEST) -m "not slow and not long and not system" $(SEVERAL)

test: $(VENV)/.installed-dev lint types ## install into .venv, then lint, types and every test but those of test-system (ten to fifteen minutes on 2 cores)
	$(PYTEST) -m "not system and not long" $(SEVERAL)
	@echo "Not run: tests of pages in a browser, those that install packages, and long ones; run them with: make test-system"

test-system: $(VENV)/.installed-dev $(CLUSTER_VENV)/.installed system-packages ## long tests, properties on many examples, and tests that install packages or need other programs
	$(PYTEST) -m "(long or hypothesis) and not system" --hypothesis-profile thorough -n 3 --dist worksteal
	$(PYTEST) -m system -rs $(SEVERAL)
	$(CLUSTER_VENV)/bin/python -m pytest -m system -rs tests/runs/ranks/test_ray_launcher.py \
	  tests/test_cluster_files.py::test_kubernetes_takes_each_document

system-packages:
	@if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && ! dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { apt-get -qq update && apt-get -qq install --no-install-recommends $(SYSTEM_PACKAGES); } >/dev/null || \
	    echo "Not installed: $(SYSTEM_PACKAGES). The tests that need what is missing are skipped."; \
	fi

lint: $(VENV)/.installed-dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## mypy
	$(BIN)/mypy

mutations: $(VENV)/.installed-dev ## put known mistakes into a copy, one by one, and see the tests fail (minutes)
	$(BIN)/python -m tests.mutations

determinism: $(VENV)/.installed-dev ## train with every choice of workers, interrupted or not, and compare hashes (minutes)
	$(BIN)/python -m tests.determinism

soak: $(VENV)/.installed-dev ## reset, open, close and kill by the thousand, and account for every step (minutes)
	$(BIN)/python -m tests.soak

learn: $(VENV)/.installed-dev ## learning curves beside Stable-Baselines3 (hours; started again, it continues)
	$(BIN)/python $(INSTALL) '.[learn]'
	$(BIN)/python -m benchmarks.learning

bench: $(BENCH_VENV)/.installed ## install the peers into .venv-bench, then steps per second beside them, the short tables
	$(BENCH_VENV)/bin/python benchmarks/vec_env.py --short

bench-tuning: $(ZOO_VENV)/.installed ## install rl-baselines3-zoo into .venv-zoo, then trials per hour beside it
	$(ZOO_VENV)/bin/python benchmarks/tuning.py

# The pages read the sources and import nothing of them: the packages of one extra build them, without torch.
$(DOCS_VENV)/.installed: pyproject.toml | $(DOCS_VENV)/bin/python
	$(DOCS_VENV)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $@.txt
	$(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --requirement $@.txt
	@touch $@

docs: $(DOCS_VENV)/.installed ## build the pages of docs/ and the API into site/; warnings are errors
	$(DOCS_VENV)/bin/python -m mkdocs build --strict --site-dir $(abspath $(SITE))

$(RELEASE_VENV)/.installed: pyproject.toml | $(RELEASE_VENV)/bin/python
	$(RELEASE_VENV)/bin/python -m pip install --disable-pip-version-check --quiet "build>=1.2" "twine>=6.1"
	@touch $@

release: $(RELEASE_VENV)/.installed ## build the wheel and the source distribution into dist/, check them, and use them in empty environments
	rm -rf $(DIST)
	$(RELEASE_VENV)/bin/python -m build --outdir $(DIST)
	$(RELEASE_VENV)/bin/python -m twine check --strict $(DIST)/*
	$(RELEASE_VENV)/bin/python -m tests.release $(DIST)
