"""w12_gemm compiles for sm_90 as launched at real shapes: no spills, it fits, and decoding costs what it may."""

import pytest

from benchmarks.hopper import SHARED_LIMIT
from tests.kernels.gate import lines_of

# At 90 % of 4.8 TB/s each of 132 processors at 1.98 GHz gets 11.0 weights of 12 bits a clock, or 16.5 of 8: that leaves
# so many instructions a weight of the 128 that are issued a clock, and of the 64 that the integer pipe takes.
ISSUED, ALU = {12: 11.6, 8: 7.8}, {12: 5.8, 8: 3.9}


SOME = ("gate_up 16", "gate_up 64", "head 1", "head view 16", "head view 64", "mma", "mma view", "wgmma descriptors")


@pytest.fixture(scope="module", params=[SOME, pytest.param((), marks=pytest.mark.full)], ids=["some", "all"])
def compiled(request, tmp_path_factory):
    """The lines of w12_compile_gate.py, from a process of its own with an empty kernel cache."""
    lines = lines_of("w12_compile_gate.py", tmp_path_factory.mktemp("cache"), *request.param)
    return {(line["case"], line["kernel"]): line for line in lines}


@pytest.fixture(scope="module")
def products(compiled):
    """The lines of the product itself, by case."""
    return {case: line for (case, kernel), line in compiled.items() if kernel == "w12_gemm_kernel"}


def test_nothing_spills_and_everything_fits(compiled):
    """No kernel keeps registers in local memory, and shared memory is below what sm_90 grants."""
    assert [line for line in compiled.values() if line["stack"] or line["local"] or line.get("spilled")] == []
    assert all(line["shared"] < SHARED_LIMIT for line in compiled.values())


@pytest.mark.parametrize("bits", [12, 8])
def test_decoding_leaves_time_for_memory(products, bits):
    """Up to 64 rows the loop over units takes at most six tenths of the issue slots that 90 % of bandwidth leaves.

    The view, whose bytes come half as fast again, takes at most eight tenths of both.
    """
    share = {12: 0.6, 8: 0.8}[bits]
    lines = {case: line for case, line in products.items() if ("view" in case) == (bits == 8) and "128" not in case}

    assert len(lines) > 2
    assert {case: line["issued"] for case, line in lines.items() if line["issued"] > share * ISSUED[bits]} == {}
    assert {case: line["alu"] for case, line in lines.items() if line["alu"] > share * ALU[bits]} == {}


def test_paths_are_what_they_are_called(products):
    """`mma` multiplies by mma.sync and `wgmma` by wgmma, at every number of rows: their sums differ in order."""
    for case, line in products.items():
        assert ("HMMA" in line) != ("HGMMA" in line), case
        if case.startswith(("mma", "wgmma")):
            assert ("HMMA" in line) == case.startswith("mma"), case


def test_units_come_while_others_are_multiplied(products):
    """Planes come asynchronously: 16 bytes a lane, or through the tensor memory accelerator."""
    for case, line in products.items():
        assert line.get("UTMALDG" if "descriptors" in case else "LDGSTS", 0) >= 4, case
