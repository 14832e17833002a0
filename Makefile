# `make demo`, `make test` and `make check` work on a fresh machine with Python 3.11+, pip and make:
# each creates the environment that it needs in $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000

.PHONY: demo check check_devices check-devices test test-more test-full test-lowest fuzz mutants bench lint types docs docs-serve gallery tables release clean

demo: $(VENV)/.installed
	$(BIN)/dynsim compare --task syn-small --eta-y 1 --eta-z 0.1 --steps 1000 --seeds 8 --out out/demo --overwrite

check: lint types test test-more

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

# The tests that take longer than two seconds each, with all their cases.
test-more: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "more and not full"

# Also what trains at full size, and each of many where a few stand for all.
test-full: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "full or not full"

# Bad input of all kinds, for long: prints how many were tried, accepted, refused, or ended
# otherwise; then flips of single bits in a store, and what was seen of them.
FUZZ_MINUTES ?= 30
FUZZ_SEED ?= 0
FUZZ_FLIPS ?= 1000
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.sweeps.fuzz $(FUZZ_MINUTES) $(FUZZ_SEED)
	$(BIN)/python -m tests.sweeps.runner.store.damage $(FUZZ_FLIPS)

# How many of COUNT single mistakes in the source the tests of `make check` notice: in MUTATE, drawn by SEED.
COUNT ?= 200
SEED ?= 0
MUTATE ?= dynsim odes sweeps/runner papers
mutants: $(VENV)/.installed-mutants
	$(BIN)/python .ci/mutants.py $(MUTATE) --count $(COUNT) --seed $(SEED)

# With the oldest versions that pyproject.toml allows, in an environment of their own.
test-lowest:
	mkdir -p .venv-lowest
	$(PYTHON) .ci/lowest.py > .venv-lowest/lowest.txt
	PIP_CONSTRAINT=$(CURDIR)/.venv-lowest/lowest.txt $(MAKE) test test-more VENV=.venv-lowest

# Compiles training and all theories for a TPU and a GPU that need not be there, in an environment of its own:
# JAX would look for the devices whose compilers it finds.
check_devices check-devices:
	$(MAKE) .venv-devices/.installed-check-gpu .venv-devices/.installed-check-tpu VENV=.venv-devices
	.venv-devices/bin/python -m tests.devices h100
	.venv-devices/bin/python -m tests.devices tpu-v5e

# PyTorch, to compare with, comes in the CPU build where the index in use offers one.
bench: $(VENV)/.installed-bench
	$(BIN)/python -m tests.benchmarks waits
	$(BIN)/python -m tests.benchmarks waits --profile
	$(BIN)/python -m tests.benchmarks fig6 --check
	$(BIN)/python -m tests.benchmarks mlp
	$(BIN)/python -m tests.benchmarks maps
	$(BIN)/python -m tests.benchmarks theories
	$(BIN)/python -m tests.benchmarks two_stage
	$(BIN)/python -m tests.benchmarks sharpness
	$(BIN)/python -m tests.benchmarks scaling
	$(BIN)/python -m tests.benchmarks kills
	$(BIN)/python -m tests.devices measure --small

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-types
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# The site, into out/docs/html, every notebook executed; any warning or broken link fails.
# All pages are written anew (-a), as links to the reference depend on it; notebooks are executed when
# they change, all of them in a fresh clone. One page is a phase diagram in the explorer. ONLINE=1 also links to the documentation of jax, diffrax, optax and xarray.
docs: $(VENV)/.installed-docs
	DYNSIM_DOCS_ONLINE=$(ONLINE) $(BIN)/python -m sphinx -q -W --keep-going -a -d out/docs/doctrees docs out/docs/html
	$(BIN)/dynsim phase --momentum 0.9 --resolution 32 --seeds 2 --no-noise --out out/docs/phase --overwrite
	$(BIN)/dynsim explore out/docs/phase --observables region entropy loss --out out/docs/html/results/phase.html --overwrite
	$(BIN)/python docs/tools/check_links.py out/docs/html

docs-serve: docs
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory out/docs/html

# Pictures and page of the gallery: what is not up to date, or FIGURES="6 theories". With
# FIGURES="--check 6" they are made again and compared with what is recorded, and nothing is written.
# Pages of the explorer are photographed with the browser of the tests.
gallery: $(VENV)/.installed-test
	$(BIN)/python docs/gallery/make.py $(FIGURES)

# Tables of the documentation that take minutes each, printed; of errata, its page is written.
TABLES ?= bursts errata rules seeds tails verdicts
tables: $(VENV)/.installed
	for table in $(TABLES); do $(BIN)/python docs/tools/measured/$$table.py || exit 1; done

# A release: source archive, wheel, and the wheel checked in an empty environment of each Python that is
# installed. VERSION=0.2.0 first writes the version and the date into the files that state them. Nothing
# is uploaded, and no tag is made.
VERSION =
release: $(VENV)/.installed-release
	$(BIN)/python .ci/release.py $(VERSION)

clean:
	rm -rf $(VENV) .venv-lowest .venv-devices out .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"dynsim needs Python 3.11 or newer, found {v.major}.{v.minor}; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# An extra's stamp also stands for the packages of the plain installation.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	touch $@ $(VENV)/.installed
