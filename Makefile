# `make demo` and `make test` need only Debian's python3 (3.11), gcc, g++, cmake and a package registry.
# They write to .venv and build only; stamp files in .venv tell what is up to date.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# The sources of the native modules; log messages of the C code are generated from the catalogue. Python code needs no rebuild.
NATIVE := $(shell find CMakeLists.txt csrc psmkit/cudaapi/apidef.py -type f 2>/dev/null) $(wildcard psmkit/catalogue/*.toml psmkit/plugins/abi.json)
C_CODE := $(shell find csrc tests -name '*.c' -o -name '*.h' -o -name '*.cc' 2>/dev/null)

# V=1 shows all that pip and the compilers print. Otherwise only errors are shown.
PIP_INSTALL = $(BIN)/python -m pip install $(if $(filter 1,$(V)),,--quiet --quiet) --disable-pip-version-check
LOGGED      = $(if $(filter 1,$(V)),,> $(1) 2>&1 || { cat $(1); exit 1; })

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test test-gpu test-nccl model score check format generated docs docs-serve bench matrix wheel wheel-check sanitize fuzz losses nightly clean

help:
	@echo 'make setup     build psmkit into .venv (V=1 shows the output of pip and the compilers)'
	@echo 'make quick     the tests to run after each change: under a minute on two free cores'
	@echo 'make check     ruff, mypy --strict, clang-format, and whether generated pages are current'
	@echo 'make test      set up and run all tests (PYTEST_ARGS: options for pytest)'
	@echo 'make format    let ruff and clang-format rewrite the code'
	@echo 'make generated rewrite the generated parts of docs/, and run the commands that pages show (PAGES=docs/plan.md: of one page)'
	@echo 'make docs      build the documentation site into build/site, and check its links (make docs-serve shows it)'
	@echo 'make demo      analyse a real 8-GPU log and one with a fault; run 4 ranks that work and 4 that hang'
	@echo 'make fuzz      every decoder with damaged input for FUZZ_SECONDS (60) under ASan and UBSan'
	@echo 'make losses    logs cut at every line, and ranks stopped at every site: no false hang, no false culprit'
	@echo 'make sanitize  C code under ASan and UBSan, and under TSan: its tests, and ranks of the lab with and without faults'
	@echo '               (SANITIZE="test lab thread thread-lab" selects parts; SANITIZE_TESTS the tests; LAB_SECONDS)'
	@echo 'make nightly   everything that is too long for .ci/run; the summary goes to benchmarks/nightly.md'
	@echo 'make score     judge the mutant bank, thousands of logs with a known truth, and write benchmarks/score.md'
	@echo 'make model     spin verifies the reclaim protocol of plans: the correct variant, and every broken one'
	@echo 'make matrix    2 to 16 ranks send each other data in every way; every byte is compared'
	@echo 'make bench     measure the analysis on 100 MB and 1 GB of generated logs (also in instructions), and on failing logs of 10,240 ranks'
	@echo 'make test-gpu  the tests of the emulated CUDA over a real one (CUDART=, CUDA=, NVML= name libraries)'
	@echo 'make test-nccl a stock NCCL binary, which it downloads (148 MB), over the emulated driver'
	@echo 'make wheel     build the wheel for CPython 3.11 and later, glibc 2.28 and later, into dist/ (fetches a compiler, 100 MB)'
	@echo 'make wheel-check  build it twice, and compare'

# What psmkit needs to be built and to run.
$(VENV)/.base: pyproject.toml scripts/requirements.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing what psmkit needs into $(VENV)'
	@$(BIN)/python scripts/requirements.py build > $(VENV)/requirements-base.txt
	@$(PIP_INSTALL) -r $(VENV)/requirements-base.txt
	@$(PIP_INSTALL) --no-build-isolation --no-deps \
		--config-settings=wheel.cmake=false --config-settings=wheel.py-api=py3 --config-settings=editable.mode=inplace -e .
	@touch $@

# The tools and the extras, for tests and checks.
$(VENV)/.tools: $(VENV)/.base
	@echo 'installing the packages of pyproject.toml into $(VENV)'
	@$(BIN)/python scripts/requirements.py build dev > $(VENV)/requirements.txt
	@$(PIP_INSTALL) -r $(VENV)/requirements.txt
	@touch $@

# The wheel is built by scikit-build-core; for work on the tree CMake puts the module beside the code that imports it.
$(VENV)/.built: $(VENV)/.base $(NATIVE)
	@mkdir -p build
	@echo 'building the scanner, the emulated CUDA and libpsm'
	@{ cmake -S . -B build/dev -DPSMKIT_INPLACE=ON -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python && \
		cmake --build build/dev --parallel 2 $(if $(filter 1,$(V)),--verbose); } $(call LOGGED,build/setup.log)
	@echo 'psmkit is built: call $(BIN)/psmkit, or add $(CURDIR)/$(BIN) to PATH'
	@touch $@

setup: $(VENV)/.tools $(VENV)/.built

# CUDA's headers, for the example that the demo compiles.
$(VENV)/.headers: $(VENV)/.base
	@$(BIN)/python scripts/requirements.py dev | grep -E '^nvidia-cuda-(runtime|crt)[=>]' > $(VENV)/requirements-headers.txt
	@$(PIP_INSTALL) --no-deps -r $(VENV)/requirements-headers.txt
	@touch $@

demo: $(VENV)/.built $(VENV)/.headers
	@$(BIN)/psmkit demo
	@echo
	@sh examples/seed_bug.sh $(BIN)

# What a change breaks most often, in two processes. Tests of one file stay in one process: they share what they compile.
QUICK := tests/logparse tests/analysis tests/cli tests/report tests/test_architecture.py \
	tests/lab/test_lab_run.py::test_bytes_arrive_and_evidence_is_kept
quick: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow' $(QUICK) $(PYTEST_ARGS)

# Tests of the model of plans need spin, one of the telemetry needs Prometheus: they are skipped where no package of it can be had.
# One process: many of these tests run several processes themselves, or look at all of /dev/shm.
test: setup
	@sh scripts/debian_tool.sh spin > /dev/null || true
	@sh scripts/debian_tool.sh prometheus > /dev/null || true
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)

# The tests of the emulated CUDA over a real one, on a machine with a GPU: a failure shows where the two differ (docs/gpu.md). The runtime is that of
# the tests' packages; CUDART=libcudart.so.12 selects another.
test-gpu: setup
	@test -e /proc/driver/nvidia/version || { echo 'make test-gpu: no NVIDIA driver is loaded here'; exit 1; }
	PSM_TEST_CUDART=$(or $(CUDART),$(CURDIR)/$(firstword $(wildcard $(VENV)/lib/python3*/site-packages/nvidia/cu13/lib/libcudart.so.13))) PSM_TEST_CUDA=$(or $(CUDA),libcuda.so.1) PSM_TEST_NVML=$(or $(NVML),libnvidia-ml.so.1) \
		$(BIN)/python -m pytest -q tests/hostcuda $(PYTEST_ARGS)

# The binary of NCCL 2.21.5 with its static CUDA 11.0 runtime. Too large for `make test`.
STOCK := $(VENV)/nccl-2.21.5
STOCK_WHEEL := nvidia-nccl-cu11==2.21.5 --hash=sha256:49d8350629c7888701d1fd200934942671cb5c728f49acc5a0b3a768820bed29
KERNELS := build/stock-kernels

$(STOCK)/.fetched: $(VENV)/.tools
	@echo 'fetching nvidia-nccl-cu11 2.21.5 into $(STOCK)'
	@mkdir -p $(STOCK)
	@echo '$(STOCK_WHEEL)' > $(STOCK)/requirements.txt
	@$(PIP_INSTALL) --no-deps --only-binary :all: --upgrade --target $(STOCK) \
		-r $(STOCK)/requirements.txt
	@touch $@

$(KERNELS)/.built: $(STOCK)/.fetched $(wildcard csrc/nccl/interpreter/* csrc/nccl/interpreter/wheel/* csrc/base/*)
	@mkdir -p $(KERNELS)
	@echo 'building the interpreter of its kernels'
	@{ cmake -S csrc/nccl/interpreter -B $(KERNELS) -DNCCL_BINARY=$(CURDIR)/$(STOCK)/nvidia/nccl/lib/libnccl.so.2 && \
		cmake --build $(KERNELS) --parallel 2; } $(call LOGGED,build/stock-kernels.log)
	@touch $@

# Older ones, of which ranks begin and end: make test-nccl OLDER='2.18.3 2.19.3 2.20.5'. They have the same runtime.
OLDER :=
OLDER_HASH_2.18.3 := 411646f31a4a6a221e4eb875df43f94aec41bbe8dd163187fb0f2a65df375cee
OLDER_HASH_2.19.3 := 7c58afbeddf7f7c6b7dd7d84a7f4e85462610ee0c656287388b96d89dcf046d5
OLDER_HASH_2.20.5 := 3619e25dfb0c8f4c554561c3459ee7dfe1250eed05e9aa4d147a75c45cc6ae0d

$(VENV)/nccl-older-%/.fetched: $(VENV)/.tools
	@echo 'fetching nvidia-nccl-cu11 $* into $(@D)'
	@mkdir -p $(@D)
	@echo 'nvidia-nccl-cu11==$* --hash=sha256:$(OLDER_HASH_$*)' > $(@D)/requirements.txt
	@$(PIP_INSTALL) --no-deps --only-binary :all: --upgrade --target $(@D) -r $(@D)/requirements.txt
	@touch $@

empty :=
space := $(empty) $(empty)

test-nccl: setup $(KERNELS)/.built $(OLDER:%=$(VENV)/nccl-older-%/.fetched)
	PSM_TEST_NCCL_OLDER=$(subst $(space),:,$(strip $(OLDER:%=$(CURDIR)/$(VENV)/nccl-older-%/nvidia/nccl))) \
	PSM_TEST_NCCL=$(CURDIR)/$(STOCK)/nvidia/nccl PSM_TEST_NCCL_KERNELS=$(CURDIR)/$(KERNELS)/libpsm_nccl_kernels.so \
		$(BIN)/python -m pytest -q tests/lab/test_nccl_stock.py tests/plugins/test_real_nccl.py tests/tune/test_real_nccl.py $(PYTEST_ARGS)

model: setup
	@sh scripts/debian_tool.sh spin > /dev/null
	$(BIN)/psmkit plan model $(MODEL_ARGS)

score: setup
	$(BIN)/python -m tests.bank $(SCORE_ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@echo 'clang-format --dry-run of $(words $(C_CODE)) files'
	@$(BIN)/clang-format --dry-run -Werror $(C_CODE)
	$(BIN)/python scripts/docs.py --check

generated: setup
	$(BIN)/python scripts/docs.py
	$(BIN)/python scripts/sessions.py $(PAGES)

# What the documentation site needs, and no other tool.
$(VENV)/.docs: $(VENV)/.base
	@echo 'installing the tools of the documentation site into $(VENV)'
	@$(BIN)/python scripts/requirements.py build docs > $(VENV)/requirements-docs.txt
	@$(PIP_INSTALL) -r $(VENV)/requirements-docs.txt
	@touch $@

# The variable silences an advertisement for the successor of mkdocs-material.
docs docs-serve: $(VENV)/.docs $(VENV)/.built
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(if $(filter docs,$@),build --strict,serve)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(C_CODE),$(BIN)/clang-format -i $(C_CODE))

bench: setup
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)
	$(BIN)/python benchmarks/instructions.py
	$(BIN)/python benchmarks/failing.py $(FAILING_ARGS)
	$(BIN)/python benchmarks/hostcuda.py

matrix: setup
	$(BIN)/python benchmarks/lab.py matrix $(MATRIX_ARGS)

$(VENV)/.release: $(VENV)/.tools
	@echo 'installing the tools of a release into $(VENV)'
	@$(BIN)/python scripts/requirements.py build release > $(VENV)/requirements-release.txt
	@$(PIP_INSTALL) -r $(VENV)/requirements-release.txt
	@touch $@

wheel: $(VENV)/.release
	$(BIN)/python scripts/wheel.py

wheel-check: $(VENV)/.release
	$(BIN)/python scripts/wheel.py --again

SANITIZE ?= test lab thread thread-lab
sanitize: $(VENV)/.tools
	@set -e; for what in $(SANITIZE); do echo "== $$what"; sh scripts/sanitize.sh $(BIN) $$what; done

fuzz: $(VENV)/.tools
	sh scripts/sanitize.sh $(BIN) fuzz

losses: setup
	PSMKIT_LOSSES=every $(BIN)/python -m pytest -q tests/test_losses.py $(PYTEST_ARGS)

nightly: setup
	$(BIN)/python scripts/nightly.py $(NIGHTLY_ARGS)

clean:
	rm -rf build dist $(VENV)/.built $(VENV)/.tools $(VENV)/.base $(VENV)/.release
