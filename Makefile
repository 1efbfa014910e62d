# everloop: `make demo` runs the loop on real weights, `make test` the tests. Both set up what they need.

SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
UV_VERSION := 0.13.9

# Every process starts from compiled bytecode: without it each vLLM, MLflow and trainer compiles its libraries anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test faults lint types unit wheel harnesses docs lock clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

setup: $(VENV)/.ready  ## the environment in .venv, exactly as locked

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "everloop needs Python 3.11, this is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")'
	@test -x $(UV) || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION); }
	@echo "installing the locked packages (7.4 GB, a minute or more)"
	@VIRTUAL_ENV=$(VENV) $(UV) pip sync -q --compile-bytecode requirements.lock
	@VIRTUAL_ENV=$(VENV) $(UV) pip install -q --no-deps -e .
	@touch $@

demo: setup  ## three cycles of the loop on SmolLM2-135M, about 14 minutes on two cores; DEMO=once ends by itself
	@$(BIN)/everloop demo

# Schemathesis's tests of all operations have one name: spread by file, one of them would run.
ONE_NAME := tests/integration/test_gateway_schema.py

test: setup  ## what CI runs
	@$(MAKE) --no-print-directory -j3 -Otarget lint types wheel harnesses
	@$(BIN)/python -m pytest -n 2 tests/unit tests/test_architecture.py $(ONE_NAME)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore $(ONE_NAME) tests/interop tests/integration
	@$(BIN)/python -m pytest tests/e2e

faults: setup  ## 200 kill -9, full disks, jumping clocks and damaged segments under load, some 20 minutes; faults.json
	@$(BIN)/python -m tests.faults --json faults.json

unit: setup  ## the tests that need no process
	@$(BIN)/python -m pytest -n 2 tests/unit tests/test_architecture.py

lint: setup  ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup  ## mypy
	@$(BIN)/mypy

wheel: setup  ## the wheel, installed with [gateway] alone in an empty environment and started there
	@$(BIN)/python tests/check_wheel.py

harnesses: setup  ## what the interop tests run, from its registries
	@$(BIN)/python -m tests.interop.install

docs: setup  ## the generated pages: configuration reference, schemas, state diagrams
	@$(BIN)/python -m docs.generate

lock: setup  ## requirements.lock anew, from pyproject.toml
	@$(UV) pip compile -q pyproject.toml --extra dev --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --no-header --generate-hashes -o requirements.lock

clean:  ## everything that was made here
	rm -rf $(VENV) .cache dist deploy/kafka/libs deploy/spark/libs demo-home
