"""The GPU kernel of best-first-tree: the same trees as its twin and as the heap."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.entries.best_first_kernel import CASES

SCRIPT = Path(__file__).with_name("best_first_kernel.py")


def run(composed, *arguments, **environment):
    command = [sys.executable, "-P", str(SCRIPT), *arguments]
    outside = {"PATH": os.environ["PATH"], "HOME": str(composed.parent), "PYTHONPATH": str(composed)}
    return subprocess.check_output(command, env={**outside, **environment}, cwd=composed.parent)


def test_interpreted(composed):
    """Under the interpreter every case is the twin's tree, ties included."""
    assert int(run(composed, "compare", "cpu", TRITON_INTERPRET="1")) == len(CASES)


def test_compiles_for_the_h200(composed):
    """It compiles for sm_90 and keeps all candidates in registers."""
    made = json.loads(run(composed, "compile", "cpu").splitlines()[-1])

    assert made["cubin"] > 0
    assert made["shared"] == 0


@pytest.mark.device
def test_on_a_device(composed):
    """On a GPU every case is the twin's tree."""
    assert int(run(composed, "compare", "cuda")) == len(CASES)
