"""benchmarks/kernels.py: runs, holds every op against its twin, goes on where it stopped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def benchmark(out, *arguments, cwd=ROOT):
    command = [sys.executable, "-m", "benchmarks.kernels", "--out", out, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_smoke_measures_every_op_once(tmp_path):
    """Under the interpreter each op is timed; a second run adds only what the first left out."""
    out = tmp_path / "rows.jsonl"
    first = benchmark(out, "--smoke", "--only", "rms_norm", "--only", "accept")
    assert first.returncode == 0, first.stderr
    before = out.read_text()
    second = benchmark(out, "--smoke")
    assert second.returncode == 0, second.stderr
    assert out.read_text().startswith(before)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({row["key"] for row in rows}) == len(rows)
    assert all(row["status"] == "timed" and row["us"] > 0 and row["card"]["gpu"] is None for row in rows)
    ops = {path.stem for path in (ROOT / "kernels").glob("*.py")} - {"__init__", "portable"}
    assert {row["op"] for row in rows} == ops | {"cublas", "layer"}


def test_time_is_a_limit(tmp_path):
    """With no time nothing is measured, and the number left out is said."""
    done = benchmark(tmp_path / "rows.jsonl", "--smoke", "--max-seconds", "0", "--only", "rms_norm")
    assert done.returncode == 0 and "2 measurements left" in done.stderr
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_wrong_op_fails_and_is_tried_again(tmp_path):
    """A kernel that says something else than its twin has no time, makes the exit code 1, and is not held as done."""
    for name in ("benchmarks", "harness", "kernels", "spt"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = tmp_path / "kernels" / "silu_mul.py"
    kernel.write_text(kernel.read_text() + "\n\ndef silu_mul(gate_up):\n    return silu_mul_reference(gate_up) * 1.1\n")
    out = tmp_path / "rows.jsonl"
    for _ in range(2):
        done = benchmark(out, "--smoke", "--only", "silu_mul", "--only", "accept", cwd=tmp_path)
        assert done.returncode == 1
        assert "2 ops said something else than their twins" in done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]

    assert [row["status"] for row in rows if row["op"] == "accept"] == ["timed"] * 2
    assert [row["status"] for row in rows if row["op"] == "silu_mul"] == ["failed"] * 4
    assert not any("us" in row for row in rows if row["op"] == "silu_mul")
    kernel.write_bytes((ROOT / "kernels" / "silu_mul.py").read_bytes())
    assert benchmark(out, "--smoke", "--only", "silu_mul", "--only", "accept", cwd=tmp_path).returncode == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["status"] for row in rows[6:]] == ["timed"] * 4  # other kernels: accept is measured anew as well
