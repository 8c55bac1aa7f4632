"""Every kernel compiles for sm_90 as launched at real shapes: no spills, shared memory fits, right instructions."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHARED_LIMIT = 227 * 1024  # what a block of an H100 or H200 may have


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The lines of compile_gate.py, from a process of its own with an empty kernel cache."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    done = subprocess.run(
        [sys.executable, HERE / "compile_gate.py"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


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
