"""Kernel tests run under Triton's interpreter where there is no GPU, and on the GPU where there is one.

On a machine with a GPU every test here is a device test, so `make test-device` runs the same promises compiled.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic mode asks for it where twins multiply
ON_DEVICE = torch.cuda.is_available()
if not ON_DEVICE and os.environ.get("TRITON_INTERPRET") != "1":
    if "triton" in sys.modules:  # its own library functions are already compiled ones
        raise pytest.UsageError("triton was imported before tests/kernels could switch its interpreter on")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        # The benchmark's smoke test runs the interpreter, which newer numpy on a GPU machine may break.
        if ON_DEVICE and item.path.is_relative_to(Path(__file__).parent) and item.path.stem != "test_benchmark":
            item.add_marker(pytest.mark.device)


@pytest.fixture
def device():
    return torch.device("cuda" if ON_DEVICE else "cpu")


@pytest.fixture(autouse=True)
def poisoned_memory():
    """torch.empty and its like give NaN and the largest integers, so an output that was not written shows."""
    torch.use_deterministic_algorithms(True)
    with np.errstate(all="ignore"):  # a device overflows to infinity without a word, and so may the interpreter
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def randn(device):
    """Reproducible normal values, the same on every device."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, dtype=torch.float32, scale=1.0):
        return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(device)

    return draw


@pytest.fixture
def agree():
    """Asserts that a kernel says what its twin says, both having computed in float32 and rounded once.

    float32: within `rtol` and `atol`.  bfloat16: within one ulp everywhere, and equal but for the few values that lie
    on the edge between two roundings; truncation instead of rounding would move every second value.
    """

    def check(actual, wanted, rtol=2e-6, atol=2e-6, unequal=0.02):
        assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
        if actual.dtype == torch.bfloat16:
            assert (actual != wanted).sum() <= max(1, unequal * actual.numel())
            rtol = 2.0**-7
        torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol)

    return check
