# `make demo` and `make test` set up all that they need, and say what they install.
# Every target may be run again: what is done already takes no time.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
# Files of tests that run at a time.
WORKERS ?= 2

.PHONY: help setup engine images demo test security fuzz gvisor runsc outside bench lint types imports ci seccomp lock clean

help: ## show the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(STAMP) ## the virtual environment, from the lock file

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV)
	@touch $@

engine: setup ## a Docker engine, where none answers
	@scripts/engine.sh $(VENV)

images: engine ## the base image and the runtime volume
	@scripts/images.sh $(VENV)

demo: images ## run the main job on a sample repository
	@$(BIN)/python examples/demo.py

test: images ## all tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

security: images ## the security statements, one by one, as a table
	@$(BIN)/python -m tests.security

fuzz: setup ## what a hostile agent may send, a million times
	@$(BIN)/python -m pytest -q -m fuzz --hypothesis-profile=long --timeout=0 tests

gvisor: engine ## gVisor as a runtime of the engine, where it can be had
	@scripts/gvisor.sh $(VENV)

runsc: images ## the tests of boxes over gVisor, where the engine has it
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --runtime runsc -k "not local" \
	    tests/sandbox/test_box.py tests/sandbox/test_attacks.py tests/test_contract.py tests/test_casebook.py \
	    tests/sandbox/test_served.py tests/foreign/test_client.py tests/language/test_recorded.py

outside: images ## pip, npm and apt through the broker, to this machine's own registries
	@$(BIN)/python -m executor images build heavy
	@$(BIN)/python examples/registries.py

bench: images ## the benchmarks
	@$(BIN)/python -m benchmarks

lint: setup ## ruff: faults and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## mypy, strict
	@$(BIN)/mypy

imports: setup ## import-linter: the architecture
	@$(BIN)/lint-imports

ci: lint types imports test ## what the CI runs

seccomp: setup ## the profiles of system calls, out of seccomp/groups.toml
	@$(BIN)/python seccomp/generate.py --write

lock: setup ## write requirements.lock anew
	@$(BIN)/python -m pip install --quiet pip-tools
	@$(BIN)/pip-compile --quiet --extra dev --generate-hashes --no-header --no-annotate \
	    --strip-extras --no-emit-options --no-emit-index-url --no-emit-find-links \
	    --no-emit-trusted-host --allow-unsafe --upgrade --output-file $(VENV)/lock pyproject.toml
	@{ echo '# Versions and hashes of everything that is installed; `make lock` writes it anew.'; \
	    cat $(VENV)/lock; } > requirements.lock

clean: ## remove what was made in this directory (not what is on the engine)
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
