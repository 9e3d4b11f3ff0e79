# make run    install, run the quickstart comparison, probe its models, write its report
# make test   install, run the standard tests (make test-long: the rest)
# make help   the other targets

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.archzoo-installed
PEERS := $(VENV)/.archzoo-peers
DOCS := $(VENV)/.archzoo-docs
ENGINES := $(VENV)/.archzoo-engines
# One thread a worker: two workers with two threads each on two cores are many times slower.
export OMP_NUM_THREADS ?= 1
# A test process a core, at most four; tests of a group (xdist_group) share what they set up, in one process.
SPREAD ?= -n auto --maxprocesses 4 --dist loadgroup
export PYTHONUNBUFFERED := 1

.PHONY: run test test-fast test-long fuzz test-matrix test-wheel lint check-numbers docs wheel format gpu clean help

run: $(STAMP)
	$(PY) run.py --multirun +experiment=quickstart
	$(PY) run.py job=probe runs=results/quickstart
	$(PY) run.py job=report runs=results/quickstart

test: $(PEERS)
	$(PY) -m pytest tests $(SPREAD) -m "not long"

test-fast: $(PEERS)
	$(PY) -m pytest tests $(SPREAD) -m "not slow and not long and not gpu and not browser"

test-long: $(ENGINES)
	$(PY) -m pytest tests $(SPREAD) -m long --durations 25

fuzz: $(STAMP)
	$(PY) tests/fuzz/test_fuzz.py

test-matrix:
	$(PYTHON) tests/matrix.py

test-wheel: $(PEERS)
	$(PY) -m pytest tests/test_wheel.py
	$(PY) distribution/wheel_tests.py $(SPREAD) -m "not slow and not long and not gpu and not browser"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

check-numbers: $(STAMP)
	$(PY) -m analysis.evidence.number_checks README.md docs/*.md docs/blocks/*.md results/README.md results/published/*/README.md

docs: $(DOCS)
	$(PY) -m sphinx -W --keep-going -q -b html docs .docs
	@echo 'docs: .docs/index.html'

wheel: $(STAMP)
	$(PY) -m pip wheel --disable-pip-version-check -q --no-deps -w dist .
	@echo "wheel: dist/; in any environment: pip install dist/archzoo-*.whl, then archzoo --help"

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

gpu:
	@if [ -x $(PY) ]; then $(PY) run.py job=gpu; else $(PYTHON) run.py job=gpu; fi

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 15) else f"Archzoo needs Python 3.11 to 3.14, and $(PYTHON) is {v[0]}.{v[1]}; use make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	@touch $@

$(PEERS): $(STAMP)
	@$(PY) -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev,peers,eval]' \
		|| echo 'transformers, fla-core and lm-eval cannot be installed here: the tests that need them are skipped'
	@touch $@

$(ENGINES): $(PEERS)
	@$(PY) -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[slurm,ray]' \
		|| echo 'submitit and ray cannot be installed here: the tests of sweep.engine=slurm and ray are skipped'
	@touch $@

$(DOCS): $(STAMP)
	$(PY) -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .cache .matrix .docs docs/reference dist

help:
	@echo 'make run          compare the quickstart architectures on real text, then write the report'
	@echo 'make test         the standard tests;  make test-fast  the quick ones, three minutes'
	@echo 'make test-long    the rest: long parametrisations, whole studies, repeated kills'
	@echo 'make fuzz         bad input, damaged files, kills, full disks and Ctrl-C, thousands; FUZZ_SEED=N draws others'
	@echo 'make lint         ruff, formatting, import contracts;  make format  fix what can be fixed'
	@echo 'make check-numbers  compare the numbers in README, docs and published studies with the tables that they name'
	@echo 'make docs         build the documentation site, with a reference of blocks, operations, figures and keys'
	@echo 'make wheel        build the wheel, one package archzoo with the command archzoo, into dist/'
	@echo 'make test-matrix  the fast tests on pairs of Python and torch, oldest to newest, that can be installed here'
	@echo 'make test-wheel   the quick tests against the wheel, and training in an environment without this checkout, four minutes'
	@echo 'make gpu          tests, tuning, measurements and training on a GPU, in resumable stages'
	@echo 'make clean        remove the environment and caches (results stay)'
