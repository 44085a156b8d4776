# Stockpot: `make help` lists the targets. Everything is installed into .venv, nothing outside.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

LLAMA_LOCK := engine/llama-cpp-python.lock
LOCKED := requirements.lock $(LLAMA_LOCK) engine/build_llama_wheel.sh
# Content, options and processor name the finished set-up, so that neither the times of files (a fresh
# checkout) nor a native llama.cpp build of another machine mislead it.
SET_UP_ID := $(shell { cat $(LOCKED); echo $(STOCKPOT_LLAMA_PORTABLE) $(CMAKE_ARGS); \
    grep -m1 -E '^(flags|Features)' /proc/cpuinfo; } | sha256sum | cut -c1-16)
SET_UP := $(VENV)/set-up-$(SET_UP_ID)
say := @echo "[stockpot]"

.PHONY: help demo test check pytest test-crash lock proto proto-check proto-baseline set-up bench-peers clean

help: ## List the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
	@echo "  STOCKPOT_LLAMA_PORTABLE=1 make ...   build llama.cpp for any AVX2 machine instead of this one"
	@echo "  make PYTHON=python3.12 ...           take this Python for .venv"

demo: $(SET_UP) ## Run the main job: two coding agents, warm beside cold (DEMO='--quick' is shorter)
	@$(BIN)/python -m stockpot demo $(DEMO)

test: check pytest ## Set up, check and run all tests

check: proto-check ## Format, lint, types, imports between packages, wire API
	$(say) "format and lint (ruff)"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	echo "[stockpot] types (mypy --strict)"
	$(BIN)/mypy
	echo "[stockpot] imports between packages (import-linter)"
	$(BIN)/lint-imports

pytest: $(SET_UP) ## Run the tests only (ARGS='-k name')
	$(say) "tests"
	$(BIN)/python -m pytest $(ARGS)

test-crash: $(SET_UP) ## Kill a node under load some hundred times (KILLS=300 SEED=1), fail each disk call in each way
	$(say) "crash tests"
	export STOCKPOT_KILLS=$(or $(KILLS),300) STOCKPOT_SEED=$(or $(SEED),1) STOCKPOT_ALL_FAULTS=1
	$(BIN)/python -m pytest -s tests/faults/test_store_kills.py tests/faults/test_store_each_call.py

proto: $(SET_UP) ## Generate kvstore/wire and engine/wire from proto/
	@proto/generate.sh $(BIN)/python

proto-check: $(SET_UP) ## Generated code equals proto/; the API is well-formed and unbroken since the baseline
	$(say) "wire API (buf, generated code)"
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/baseline.binpb
	fresh=$$(mktemp -d); trap 'rm -rf "$$fresh"' EXIT
	proto/generate.sh $(BIN)/python "$$fresh"
	for package in kvstore engine; do
	    diff -r -x __pycache__ "$$fresh/$$package/wire" $$package/wire || { echo "run: make proto" >&2; exit 1; }
	done

proto-baseline: $(SET_UP) ## At a release: what `proto-check` compares with from now on
	@$(BIN)/buf build --exclude-source-info --output proto/baseline.binpb

lock: ## Pin all dependencies anew, with hashes, from pyproject.toml
	$(say) "resolving with uv, in an environment of its own"
	tool=$$(mktemp -d); trap 'rm -rf "$$tool"' EXIT
	$(PYTHON) -m venv "$$tool"
	"$$tool/bin/pip" install --quiet uv==0.13.9
	compile=("$$tool/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --custom-compile-command "make lock")
	# llama-cpp-python is built by engine/build_llama_wheel.sh; what it depends on is locked with the rest.
	"$${compile[@]}" pyproject.toml --extra build --extra demo --extra dev --extra events \
	    --no-emit-package llama-cpp-python --output-file requirements.lock
	# The peers that benchmarks compare with: large, and wanted by few.
	"$${compile[@]}" pyproject.toml --extra bench-peers --constraint requirements.lock \
	    --no-emit-package llama-cpp-python --output-file bench-peers.lock
	grep -oE 'llama-cpp-python==[0-9.]+' pyproject.toml | "$${compile[@]}" - --no-deps --output-file $(LLAMA_LOCK)

set-up: $(SET_UP) ## Make .venv and install everything, once

$(BIN)/python:
	@.ci/system-packages $(PYTHON)
	echo "[stockpot] making $(VENV)"
	$(PYTHON) -m venv $(VENV)

$(SET_UP): | $(BIN)/python
	$(say) "1/3 installing the pinned packages"
	$(BIN)/python -m pip install --require-hashes --no-deps -r requirements.lock
	echo "[stockpot] 2/3 llama.cpp"
	wheel=$$(engine/build_llama_wheel.sh $(BIN)/python $(LLAMA_LOCK) .cache/wheels)
	$(BIN)/python -m pip install --no-deps --force-reinstall "$$wheel"
	$(BIN)/python -c 'import llama_cpp'
	echo "[stockpot] 3/3 Stockpot itself"
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	rm -f $(VENV)/set-up-*
	touch $@

bench-peers: $(SET_UP) ## Install the stores that `stockpot bench store` compares with (Redis, Mooncake Store)
	@.ci/apt-install redis-server
	$(BIN)/python -m pip install --require-hashes --no-deps -r bench-peers.lock

clean: ## Remove .venv and caches; keeps built wheels (.cache/wheels)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-report.html
