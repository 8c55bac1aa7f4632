"""benchmarks/kernels.py: runs, measures every op, goes on where it stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def benchmark(out, *arguments):
    command = [sys.executable, "-m", "benchmarks.kernels", "--out", out, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


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
