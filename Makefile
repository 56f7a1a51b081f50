# What there is to do: `make help`. The environment is a virtualenv in .venv, made and kept current by each target.
#   VENV=dir      another place for it          PYTHON=python3.12   the Python to make it with
#   IMAGES=dir    your own images (make demo)   PYTEST_ARGS=...     more arguments for pytest
#   QUICK_ARGS="BASE --limit SECONDS"   what make quick compares with, and the most time that it takes (60)
#   RUNNERS=n     tests run at once (twice the number of cores)
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu   torch without CUDA: a much smaller download

VENV ?= .venv
PYTHON ?=
IMAGES ?=
PYTEST_ARGS ?=
QUICK_ARGS ?=
RUNNERS ?= $(shell echo $$((2 * $$(nproc))))
FUZZ_SECONDS ?= 60
TORCH_INDEX ?=
WHEEL_PYTHONS ?=
export VENV PYTHON IMAGES TORCH_INDEX

BIN := $(VENV)/bin

.PHONY: help demo test test-slow test-all lint quick fuzz bench-smoke docs wheel env clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: ## shard images, load them, compare with torch's DataLoader (IMAGES=dir for your own)
	@scripts/env.sh run
	@scripts/demo.sh

# Without a GPU, also where there is one, so that they test the same everywhere; bench/gpu.sh runs those that need it.
# More runners than cores, as many tests wait; each runs whole files. Bytecode is kept, as each runner reads all of it.
# Torch computes in one thread of each: those of several runners would spin on the same cores.
# A test that is stuck where Python can't end it: SIGABRT, at which pytest writes the stacks of all threads.
PYTEST = CUDA_VISIBLE_DEVICES= PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 \
	timeout --foreground --signal=ABRT --kill-after=60 4200 $(BIN)/python -m pytest \
	--numprocesses=$(RUNNERS) --dist=loadfile --no-loadscope-reorder

test: ## run the tests, but for those of more than five seconds
	@scripts/env.sh test
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: ## run the tests of more than five seconds
	@scripts/env.sh test
	$(PYTEST) -m slow $(PYTEST_ARGS)

test-all: ## run all tests, with every case of large products
	@scripts/env.sh test
	$(PYTEST) --whole $(PYTEST_ARGS)

lint: ## check style, format and types
	@scripts/env.sh test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

quick: ## check a change within a minute: lint and the nearest tests
	@scripts/env.sh test
	@$(BIN)/python scripts/quick.py $(QUICK_ARGS)

fuzz: ## fuzz the native kernels under sanitizers for FUZZ_SECONDS (60); needs clang
	@scripts/env.sh test
	PATH="$(abspath $(BIN)):$$PATH" PYTHON=$(abspath $(BIN))/python kernels/fuzz/run.sh $(FUZZ_SECONDS)

bench-smoke: ## run every benchmark at its least size and check the shape of its result, in some minutes
	@scripts/env.sh test
	$(BIN)/python -m bench.smoke

docs: ## build the site of the documents into build/site
	@scripts/env.sh test
	$(BIN)/python scripts/build_site.py

wheel: ## build a wheel and the source archive into dist/; needs nvcc 13 (FEEDER_CUDA=off: without its backend)
	@scripts/wheel.sh $(WHEEL_PYTHONS)

env: ## make or update the environment with all that tests and development need
	@scripts/env.sh test

clean: ## remove the environment and everything built or generated
	[ ! -e $(VENV)/.feeder/ours ] || rm -rf $(VENV)
	rm -rf build dist demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
