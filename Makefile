# make demo    train on the English that Python carries, and show what came out
# make test    run every test
# make test-gpu  the tests of the GPU engine and of the neural models on a GPU; fails where there is none
# make bench   measure speed, memory and size on CORPUS (a folder of text), with KenLM's programs in KENLM or on the PATH
# make check   format, lint, types and tests: what a change has to pass
# Each creates its own environment in .venv the first time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# without the setting, `import snm` finds the checkout instead of the package from the folder above it
EDITABLE := --config-settings editable_mode=compat --editable

.PHONY: demo test test-gpu bench lint types format check docs clean

demo: $(VENV)/installed
	$(BIN)/snm demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

test-gpu: $(VENV)/installed-dev
	SNM_TEST_GPU=1 $(BIN)/python -m pytest -k "cuda or gpu" tests/test_engines.py tests/test_neural.py

bench: $(VENV)/installed-dev
	$(BIN)/pip install --quiet kenlm
	$(BIN)/python benchmarks/all.py $(CORPUS) $(if $(KENLM),--kenlm $(KENLM))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint types test

docs: $(VENV)/installed
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/import_graph.py

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(EDITABLE) .
	touch $@

# PyTorch is named by its release, so that a build for the CPU that is at hand is taken; without it the tests of
# the neural models and of the GPU engine are skipped, without Triton those of its kernels
TORCH ?= torch==2.13.0
TRITON ?= triton

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet $(EDITABLE) '.[dev]'
	$(BIN)/pip install --quiet '$(TORCH)' || echo "no $(TORCH) here: neural models and the GPU engine are not tested"
	$(BIN)/pip install --quiet '$(TRITON)' || echo "no $(TRITON) for this machine: the GPU's kernels are not tested"
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
