"""benchmarks/w12_gemm.py: runs, holds every product against its twin, searches, goes on where it stopped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(command, cwd=ROOT):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def benchmark(out, *arguments, cwd=ROOT):
    return run([sys.executable, "-m", "benchmarks.w12_gemm", "--smoke", "--out", out, *arguments], cwd)


def rows_of(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_smoke_measures_every_product_once(tmp_path):
    """Each product and each peer is timed at each shape; a second run finds nothing left to do."""
    out = tmp_path / "rows.jsonl"
    first = benchmark(out)
    assert first.returncode == 0, first.stderr
    before = out.read_text()
    second = benchmark(out)
    assert second.returncode == 0 and out.read_text() == before
    rows = rows_of(out)

    assert {row["op"] for row in rows} == {"cublas", "w12", "view", "unpacked", "bf16", "triton"}
    assert all(row["status"] == "timed" and row["us"] > 0 and row["card"]["gpu"] is None for row in rows)
    assert len(first.stdout.split("17 rows")) == 3
    sizes = {row["op"]: row["bytes"] for row in rows if row["shape"]["name"] == "tiny"}
    assert (sizes["cublas"], sizes["w12"], sizes["view"]) == (2 * 70 * 260, 70 * 384 * 3 // 2, 70 * 384)


@pytest.mark.full
def test_a_search_ends_in_configs_that_a_table_takes(tmp_path):
    """A search prints and writes a config, and the table is measured with it."""
    tuned, out = tmp_path / "tune.jsonl", tmp_path / "rows.jsonl"
    done = benchmark(tuned, "--tune", "--shape", "tiny", "--max-minutes", "0.15")
    assert done.returncode == 0, done.stderr
    best = [row for row in rows_of(tuned) if row["status"] == "best"]
    assert len(best) == 1 and "(70, 260, False): Config(warps=" in done.stdout
    assert best[0]["config"].keys() == {"warps", "programs"} and best[0]["us"].keys() == {"1", "16", "48", "64"}
    done = benchmark(out, "--configs", tuned, "--shape", "tiny", "--rows", "1")
    assert done.returncode == 0, done.stderr
    measured = [row["config"] for row in rows_of(out) if row["op"] == "w12"]
    assert measured == [best[0]["config"]]


def test_a_wrong_product_has_no_time(tmp_path):
    """A kernel that says something else than its twin is a failed row, and the exit code is 1."""
    for name in ("benchmarks", "harness", "kernels", "spt", "entries/w12-linear/tree"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = tmp_path / "entries/w12-linear/tree/kernels/w12_cuda.py"
    text = kernel.read_text()
    assert "y[t] *= r.scale;" in text
    kernel.write_text(text.replace("y[t] *= r.scale;", "y[t] *= 1.1f * r.scale;"))
    out = tmp_path / "rows.jsonl"
    done = benchmark(out, "--shape", "tiny", "--rows", "1", cwd=tmp_path)

    assert done.returncode == 1 and "3 products said something else than their twins" in done.stderr
    status = {row["op"]: row["status"] for row in rows_of(out)}
    right = dict.fromkeys(("cublas", "unpacked", "triton"), "timed")
    assert status == right | dict.fromkeys(("w12", "view", "bf16"), "failed")
