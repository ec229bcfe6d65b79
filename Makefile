# A fresh machine needs only python3 (3.11 or newer) and make: every target makes .venv first.
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

TESTS := $(wildcard tests/contract tests/ranks tests/ray tests/house)
CHAOS_TESTS := $(wildcard tests/chaos tests/net)

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z.-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14
	@echo 'ARGS="..." goes to the command: make sweep ARGS="my.toml", make test ARGS="-k ring"'

.PHONY: sweep
sweep: .venv ## Find the recipe: ARGS="SPEC --runs DIR ..."; without a SPEC, the quickstart on this machine
	@$(BIN)/cptune sweep $(ARGS)

.PHONY: test
test: .venv ## Unit, contract, rank, Ray and house tests, with branch coverage
ifeq ($(strip $(ARGS)),)
	@$(BIN)/pytest tests/unit -n 2 --cov --cov-report=
	@$(BIN)/pytest $(TESTS) --cov --cov-append --cov-report=term:skip-covered
else
	@$(BIN)/pytest tests/unit $(TESTS) --cov --cov-report=term:skip-covered $(ARGS)
endif

.PHONY: test-chaos
test-chaos: .venv ## Tests that kill processes and slow networks on purpose
ifeq ($(CHAOS_TESTS),)
	@echo 'no chaos tests yet'
else
	@$(BIN)/pytest $(CHAOS_TESTS) $(ARGS)
endif

.PHONY: test-gpu
test-gpu: .venv ## Tests for one CUDA device; skipped with the reason elsewhere
	@$(BIN)/pytest tests/gpu -W default $(ARGS)

.PHONY: check
check: .venv ## Lint, format, types, import layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyrefly check
	@$(BIN)/lint-imports --no-logo

.PHONY: fmt
fmt: .venv ## Format and fix what ruff can fix
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

.PHONY: bench
bench: .venv .venv/peer/.installed ## Benchmarks: ratios within one run
	@$(BIN)/python -m bench $(ARGS)

# An analytic estimator to compare with: beside the environment and without what it depends on,
# since it wants a transformers and a huggingface-hub of 2023 that its formulas do not use.
.venv/peer/.installed: constraints.txt
	@rm -rf .venv/peer
	@$(BIN)/python -m pip install -qq -c constraints.txt --no-deps --target .venv/peer \
		llm-analysis fire termcolor || echo 'llm-analysis does not install here' >&2
	@mkdir -p .venv/peer && touch $@

.PHONY: .venv
.venv: .venv/.installed ## Install the tested versions (constraints.txt) and cptune itself, editable
	@:

# pip cannot repair an install that was cut short, so .installing marks one that has begun: found
# at the next start, the environment is made anew. It becomes the stamp only when all went well.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'cptune needs Python 3.11 or newer as $(PYTHON): set one with make PYTHON=python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo '$(PYTHON) has no venv module: on Debian or Ubuntu, apt install python3-venv' >&2; exit 1; }
	@if [ -e .venv/.installing ]; then rm -rf .venv; fi
	@mkdir -p .venv && rm -f $@ && touch .venv/.installing
	@echo 'installing cptune into .venv: a minute or two'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq -c constraints.txt 'pip>=25.3'
	@$(BIN)/python -m pip install -qq -c constraints.txt --build-constraint constraints.txt --group dev -e .
	@mv .venv/.installing $@
