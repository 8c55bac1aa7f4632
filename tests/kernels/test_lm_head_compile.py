"""lm_head compiles for sm_90 as launched at real heads: no spills, it fits, and it multiplies as w12_gemm does."""

import pytest

from benchmarks.hopper import SHARED_LIMIT
from tests.kernels.gate import lines_of
from tests.kernels.test_w12_compile import ALU, ISSUED

PASS, AGAIN, PRODUCT = "lm_head_bounds_kernel", "lm_head_rescore_kernel", "w12_gemm_kernel"


@pytest.fixture(scope="module", params=[("1", "64"), pytest.param((), marks=pytest.mark.full)], ids=["some", "all"])
def compiled(request, tmp_path_factory):
    """The lines of lm_head_compile_gate.py, from a process of its own with an empty kernel cache."""
    lines = lines_of("lm_head_compile_gate.py", tmp_path_factory.mktemp("cache"), *request.param)
    return {(line["case"], line["kernel"]): line for line in lines}


def of(compiled, kernel):
    """A kernel's lines by case."""
    return {case: line for (case, name), line in compiled.items() if name == kernel}


def test_nothing_spills_and_everything_fits(compiled):
    """No kernel keeps registers in local memory, and shared memory is below what sm_90 grants."""
    assert [line for line in compiled.values() if line["stack"] or line["local"] or line.get("spilled")] == []
    assert all(line["shared"] < SHARED_LIMIT for line in compiled.values())


def test_the_plane_is_decoded_for_next_to_nothing(compiled):
    """Of the issue slots that 90 % of the bandwidth leaves it, the pass takes at most 0.55 up to 32 rows, and 0.7 at
    64; of the integer pipe a quarter."""
    lines = {case: line for case, line in of(compiled, PASS).items() if case != "128"}
    shares = {case: line["issued"] / ISSUED[8] for case, line in lines.items()}

    assert len(lines) > 1
    assert {case: share for case, share in shares.items() if share > (0.7 if "64" in case else 0.55)} == {}
    assert {case: line["alu"] for case, line in lines.items() if line["alu"] > ALU[8] / 4} == {}


def test_planes_come_while_others_are_multiplied(compiled):
    """Tiles of the pass, and rows that are gathered, come asynchronously, 16 bytes a lane."""
    for kernel in (PASS, AGAIN):
        assert all(line["LDGSTS"] >= 4 for line in of(compiled, kernel).values())


def test_what_is_multiplied_again_is_multiplied_alike(compiled):
    """Rows that are gathered meet the instruction, and the columns in it, that they meet in the product itself."""
    again, products = of(compiled, AGAIN), of(compiled, PRODUCT)

    assert again.keys() == products.keys()
    for case, line in again.items():
        assert line["layouts"] == products[case]["layouts"] != []
        assert any(each.startswith("kWidth") for each in line["layouts"])
