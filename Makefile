# make demo         train on the English texts that come with Python, and show the result
# make test         run every test
# make test-gpu     run the tests of the GPU engine and of the neural models on a GPU; fails without one
# make test-bounds  run the tests with Numba's bounds checks
# make faults       kill commands and fail their writes, FAULTS of each kind for each command, from the seed SEED
# make soak         load on the server for MINUTES; fails if an answer is wrong, or memory grows by more than 1 %
# make fuzz         open MODELS changed models and ARPA changed ARPA files, from the seed SEED, with bounds checks and without
# make bench        measure speed, memory and size on CORPUS (a folder of text), and KenLM's (in KENLM or on PATH)
# make check        format, lint, types and tests: what a change has to pass
# make test-minimum run the core tests with the oldest versions of dependencies that pyproject.toml allows
# make docs         write the command reference, the import graph and the pictures of the documentation
# make site         build the documentation site in build/site; open build/site/index.html, no server is needed
# make locked       install the test environment from requirements/test.txt: fixed versions, verified hashes
# make lock         write requirements/test.txt anew, with the newest versions
# make dist         build the source archive and the wheel in dist, and the wheel's bill of materials
# make audit        look up known vulnerabilities of the locked packages
# Each creates its own environment in .venv the first time.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)-tools/bin
# without this setting, `import snm` in the folder above the checkout imports the checkout instead of the package
EDITABLE := --config-settings editable_mode=compat --editable

.PHONY: demo test test-gpu test-bounds test-minimum faults bench lint types format check docs site locked lock dist sbom audit clean soak fuzz

demo: $(VENV)/installed
	$(BIN)/snm demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n auto --dist worksteal

test-gpu: $(VENV)/installed-dev
	SNM_TEST_GPU=1 $(BIN)/python -m pytest -k "cuda or (gpu and neural) or TestChoice" tests/test_gpu.py tests/test_neural.py

# Numba checks the indices of arrays, and the intrinsics of snm/kernels/simd.py those of a model's arrays that they read.
# Compiled code depends on the setting, so it has a cache of its own.
BOUNDS_TESTS := adjustment arpa backoff classes counts exchange features format gate golden kernels_numeric \
	metafeatures mixing model parity scoring storage text
test-bounds: $(VENV)/installed-dev
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/bounds-checked $(BIN)/python -m pytest $(BOUNDS_TESTS:%=tests/test_%.py)

# What these tests need is installed in its oldest versions too, which use what newer packages deprecate. Compiled code
# depends on the version of Numba.
MINIMUM_EXTRAS := test,hub,parquet,sentencepiece,serve,tokenizers,url
MINIMUM_TESTS := backoff cli exchange features filtering golden hub model scoring server storage text tokenizers wheel
test-minimum: $(VENV)-tools/installed
	$(PYTHON) -m venv --clear build/minimum
	$(TOOLS)/uv pip install --quiet --python build/minimum/bin/python --resolution lowest-direct -e '.[$(MINIMUM_EXTRAS)]'
	NUMBA_CACHE_DIR=$(CURDIR)/build/minimum-kernels build/minimum/bin/python -m pytest -W ignore::DeprecationWarning \
		$(MINIMUM_TESTS:%=tests/test_%.py)

FAULTS ?= 100
SEED ?= 1
faults: $(VENV)/installed-dev
	mkdir -p build
	$(BIN)/python -m tests.faults --count $(FAULTS) --seed $(SEED) --output build/faults.json

MINUTES ?= 10
soak: $(VENV)/installed-dev
	mkdir -p build
	$(BIN)/python benchmarks/serving.py --soak $(MINUTES) --output build/soak.json

# With bounds checks an index outside of an array is an error even where it does no harm by chance; without them kernels
# are compiled as users have them.
MODELS ?= 100000
ARPA ?= 20000
fuzz: $(VENV)/installed-dev
	mkdir -p build
	rm -rf build/fuzz-seeds
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/bounds-checked $(BIN)/python -m tests.fuzz --seeds build/fuzz-seeds \
		--models $(MODELS) --arpa $(ARPA) --seed $(SEED) --keep build/fuzz --output build/fuzz-checked.json
	$(BIN)/python -m tests.fuzz --seeds build/fuzz-seeds --models $$(($(MODELS) / 5)) --arpa $$(($(ARPA) / 5)) \
		--first $(MODELS) --seed $(SEED) --keep build/fuzz --output build/fuzz.json

bench: $(VENV)/installed-dev
	$(BIN)/pip install --quiet kenlm
	$(BIN)/python benchmarks/all.py $(CORPUS) $(if $(KENLM),--kenlm $(KENLM))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy knows which calls each system has
types: $(VENV)/installed-dev
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin snm
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 snm

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: lint types test

docs: $(VENV)/installed
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/import_graph.py
	$(BIN)/python docs/make_pictures.py

site: $(VENV)/installed
	$(BIN)/pip install --quiet $(EDITABLE) '.[site]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The lock has what is installed below, but not PyTorch and Triton, whose builds differ, and what pip has to compile.
# `make locked test` keeps its versions: pip finds them installed.
LOCK := requirements/test.txt
locked:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r $(LOCK)

lock: $(VENV)-tools/installed
	printf '%s\n' $(foreach package,$(RAY) $(FILTERS) $(TOKENIZERS) $(HUB) $(SERVER) $(HARNESS) $(SITE),'$(package)') > build/test.in
	$(TOOLS)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --no-annotate --custom-compile-command 'make lock' --extra dev -o $(LOCK) pyproject.toml build/test.in

audit: $(VENV)-tools/installed
	$(TOOLS)/pip-audit --strict --disable-pip --require-hashes -r $(LOCK)

dist: $(VENV)-tools/installed
	rm -rf dist
	$(TOOLS)/python -m build --outdir dist
	$(MAKE) sbom

# What the wheel brings into an empty environment, in CycloneDX. Its tool reads no version that is dynamic
sbom: $(VENV)-tools/installed
	$(PYTHON) -m venv --clear --without-pip build/wheel
	$(TOOLS)/uv pip install --quiet --python build/wheel/bin/python dist/*.whl
	version=$$(build/wheel/bin/python -c 'import snm; print(snm.__version__)') && \
	sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > build/pyproject.toml && \
	$(TOOLS)/cyclonedx-py environment --pyproject build/pyproject.toml --mc-type library --output-reproducible \
		--output-format JSON --output-file dist/snm-$$version.cdx.json build/wheel/bin/python

$(VENV)-tools/installed:
	$(PYTHON) -m venv $(VENV)-tools
	$(TOOLS)/pip install --quiet build cyclonedx-bom pip-audit uv
	mkdir -p build
	touch $@

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(EDITABLE) .
	touch $@

# PyTorch is pinned to a release, so that pip accepts a build for the CPU. Without it the tests of the neural models and
# of the GPU engine are skipped, without Triton those of the GPU kernels
TORCH ?= torch==2.13.0
TRITON ?= triton
# Without these the tests of the Ray engine and of URLs are skipped
RAY ?= ray fsspec s3fs moto[server]
# Without these the tests of filters of Parquet files, and in datatrove and datasets, are skipped
FILTERS ?= pyarrow datatrove[io,processing] datasets

# Without these the tokenizers of other packages are not tested
TOKENIZERS ?= sentencepiece tokenizers
# Without these, snm.kenlm and the adapter of flashlight are not compared with the real packages
DECODERS ?= kenlm flashlight-text
# pyctcdecode needs NumPy 1, so it has an environment of its own; without it, its tests are skipped
PYCTCDECODE ?= pyctcdecode kenlm transformers 'numpy<2'

# Without it the tests of the Hub are skipped
HUB ?= huggingface_hub
# Without these the tests of the server are skipped; without Chromium, which playwright drives, those of its page
SERVER ?= fastapi uvicorn prometheus_client openai schemathesis playwright axe-playwright-python
CHROMIUM ?= chromium
# Without it the server is not tested in lm-evaluation-harness
HARNESS ?= lm_eval[api]
# Without these the documentation site is not built by a test
SITE ?= mkdocs-material mkdocstrings[python]

$(VENV)/installed-dev: $(VENV)/installed $(VENV)-pyctcdecode/installed
	$(BIN)/pip install --quiet $(EDITABLE) '.[dev]'
	$(BIN)/pip install --quiet '$(TORCH)' || echo "cannot install $(TORCH): neural models and the GPU engine are not tested"
	$(BIN)/pip install --quiet '$(TRITON)' || echo "cannot install $(TRITON): the GPU kernels are not tested"
	$(BIN)/pip install --quiet $(foreach package,$(RAY),'$(package)') || echo "cannot install $(RAY): the Ray engine and URLs are not tested"
	$(BIN)/pip install --quiet $(DECODERS) || echo "cannot install $(DECODERS): snm.kenlm and the decoders are not tested"
	$(BIN)/pip install --quiet $(foreach package,$(FILTERS),'$(package)') || echo "cannot install $(FILTERS): filters of Parquet, datatrove and datasets are not tested"
	$(BIN)/pip install --quiet $(TOKENIZERS) || echo "cannot install $(TOKENIZERS): their tokenizers are not tested"
	$(BIN)/pip install --quiet $(HUB) || echo "cannot install $(HUB): the Hub is not tested"
	$(BIN)/pip install --quiet $(foreach package,$(SERVER),'$(package)') || echo "cannot install $(SERVER): the server is not tested"
	$(BIN)/pip install --quiet $(foreach package,$(SITE),'$(package)') || echo "cannot install $(SITE): the documentation site is not tested"
	$(BIN)/pip install --quiet '$(HARNESS)' || echo "cannot install $(HARNESS): the server is not tested in it"
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends $(CHROMIUM) >/dev/null; } \
	|| echo "cannot install $(CHROMIUM): the server's page is not tested"
	touch $@

$(VENV)-pyctcdecode/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-pyctcdecode
	$(VENV)-pyctcdecode/bin/pip install --quiet $(PYCTCDECODE) $(EDITABLE) '.[test]' \
	|| { echo "cannot install $(PYCTCDECODE): the adapter of pyctcdecode is not tested"; rm -f $(VENV)-pyctcdecode/bin/python; }
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-pyctcdecode $(VENV)-tools build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
