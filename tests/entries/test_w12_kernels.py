"""What w12-linear does where kernels run: a whole matrix decoded, and products as the engine asks for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entries.w12_decode_kernel import CASES

HERE = Path(__file__).parent


def run(composed, *arguments, script="w12_decode_kernel.py", **environment):
    command = [sys.executable, "-P", str(HERE / script), *arguments]
    outside = {"PATH": os.environ["PATH"], "HOME": str(composed.parent), "PYTHONPATH": str(composed)}
    return subprocess.check_output(command, env={**outside, **environment}, cwd=composed.parent)


def test_interpreted(composed):
    """Under the interpreter every case comes back bit for bit, gated matrices in their own order of rows."""
    assert int(run(composed, "compare", "cpu", TRITON_INTERPRET="1")) == len(CASES)


def test_compiles_for_the_h200(composed):
    """It compiles for sm_90, and reads and writes 16 bytes a lane."""
    made = json.loads(run(composed, "compile", "cpu").splitlines()[-1])

    assert made["cubin"] > 0
    assert made["wide"] == ["ld.global.v4", "st.global.v4"]


@pytest.mark.device
def test_on_a_device(composed):
    """On a GPU every case comes back bit for bit."""
    assert int(run(composed, "compare", "cuda")) == len(CASES)


def test_products_interpreted(composed):
    """Under the interpreter every form of a product is stock's within rounding, and a row is the same in any batch."""
    assert int(run(composed, "cpu", script="w12_products.py", TRITON_INTERPRET="1")) == 3 * 2 * 8


@pytest.mark.device
def test_products_on_a_device(composed):
    """The same on a GPU."""
    assert int(run(composed, "cuda", script="w12_products.py")) == 3 * 2 * 8
