"""Every kernel compiles for sm_90 as launched at real shapes: no spills, shared memory fits, right instructions."""

import re
from pathlib import Path

import pytest

from benchmarks.hopper import SHARED_LIMIT
from tests.kernels.gate import lines_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The lines of compile_gate.py, from a process of its own with an empty kernel cache."""
    return lines_of("compile_gate.py", tmp_path_factory.mktemp("cache"))


def test_every_kernel_is_compiled(compiled):
    """No kernel of the room is left out of the gate."""
    source = "".join(path.read_text() for path in (HERE.parents[1] / "kernels").glob("*.py"))
    assert {line["kernel"] for line in compiled} == set(re.findall(r"def (\w+_kernel)\(", source))


def test_nothing_spills(compiled):
    """No kernel keeps registers in local memory."""
    assert [line for line in compiled if line["stack"] or line["local"]] == []


def test_shared_memory_fits(compiled):
    """Each program's shared memory is below what sm_90 grants."""
    assert all(line["shared"] < SHARED_LIMIT for line in compiled)


def test_weights_are_read_once_and_wide(compiled):
    """gemv reads weights 16 bytes at a time: through asynchronous copies where tiles are staged, else evict-first."""
    lines = {line["case"]: line for line in compiled if line["kernel"] == "gemv_kernel"}
    staged = {case for case, line in lines.items() if line["cp.async.c"] > 0}
    for case in lines.keys() - staged:
        assert set(lines[case]["evict_first"]) == {"ld.global.L1::evict_first.L2::cache_hint.v4.b32"}

    assert {"gemv out", "gemv qkv", "gemv gate_up", "gemv down"} <= staged


def test_attention_uses_tensor_cores(compiled):
    """BF16 attention multiplies by mma.sync for one row and by wgmma for 64, float32 by neither."""
    lines = {line["case"]: line for line in compiled if line["kernel"] == "tree_attention_kernel"}
    assert lines["attention one row"]["mma.sync"] > 0
    assert lines["attention 64 rows"]["wgmma.mma"] > 0
    assert lines["attention float32"]["mma.sync"] == lines["attention float32"]["wgmma.mma"] == 0
