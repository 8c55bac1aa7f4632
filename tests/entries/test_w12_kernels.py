"""What w12-linear does where kernels run: a whole matrix decoded, and products as the engine asks for them."""

import json

import pytest

from tests.entries.script import run_script
from tests.entries.w12_decode_kernel import CASES

DECODE, PRODUCTS = "w12_decode_kernel.py", "w12_products.py"


def test_interpreted(composed):
    """Under the interpreter every case comes back bit for bit, gated matrices in their own order of rows."""
    assert int(run_script(DECODE, composed, "compare", "cpu", TRITON_INTERPRET="1")) == len(CASES)


def test_compiles_for_the_h200(composed):
    """It compiles for sm_90, and reads and writes 16 bytes a lane."""
    made = json.loads(run_script(DECODE, composed, "compile", "cpu").splitlines()[-1])

    assert made["cubin"] > 0
    assert made["wide"] == ["ld.global.v4", "st.global.v4"]


@pytest.mark.device
def test_on_a_device(composed):
    """On a GPU every case comes back bit for bit."""
    assert int(run_script(DECODE, composed, "compare", "cuda")) == len(CASES)


def test_products_interpreted(composed):
    """Under the interpreter every form of a product is stock's within rounding, and a row is the same in any batch."""
    assert int(run_script(PRODUCTS, composed, "cpu", TRITON_INTERPRET="1")) == 3 * 2 * 8


@pytest.mark.device
def test_products_on_a_device(composed):
    """The same on a GPU."""
    assert int(run_script(PRODUCTS, composed, "cuda")) == 3 * 2 * 8
