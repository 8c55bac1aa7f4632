"""The GPU kernel of best-first-tree: the same trees as its twin and as the heap."""

import json

import pytest

from tests.entries.best_first_kernel import CASES
from tests.entries.script import run_script

SCRIPT = "best_first_kernel.py"


def test_interpreted(composed):
    """Under the interpreter every case is the twin's tree, ties included."""
    assert int(run_script(SCRIPT, composed, "compare", "cpu", TRITON_INTERPRET="1")) == len(CASES)


def test_compiles_for_the_h200(composed):
    """It compiles for sm_90 and keeps all candidates in registers."""
    made = json.loads(run_script(SCRIPT, composed, "compile", "cpu").splitlines()[-1])

    assert made["cubin"] > 0
    assert made["shared"] == 0


@pytest.mark.device
def test_on_a_device(composed):
    """On a GPU every case is the twin's tree."""
    assert int(run_script(SCRIPT, composed, "compare", "cuda")) == len(CASES)
