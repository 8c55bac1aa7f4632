"""benchmarks/lm_head.py: runs, holds every token against the full product's, searches, goes on where it stopped."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def benchmark(out, *arguments, cwd=ROOT):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.lm_head", "--smoke", "--out", out, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def rows_of(out):
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_smoke_measures_every_head_once(tmp_path):
    """Each head and each peer is timed on each kind of hidden states; a second run finds nothing left to do."""
    out = tmp_path / "rows.jsonl"
    first = benchmark(out, "--rows", "3")
    assert first.returncode == 0, first.stderr
    before = out.read_text()
    second = benchmark(out, "--rows", "3")
    assert second.returncode == 0 and out.read_text() == before
    rows = rows_of(out)

    peers = ["cublas", "cublas_token", "w12_token", "triton_token", "view"]
    assert [row["op"] for row in rows] == [*peers, *["certified"] * 5]
    assert all(row["status"] == "timed" and row["us"] > 0 and row["card"]["gpu"] is None for row in rows)
    assert [row["bytes"] for row in rows] == [2 * 150 * 260] * 2 + [150 * 384 * 3 // 2] * 2 + [150 * 384] * 6
    text, sampled, near, flat, equal = (row for row in rows if row["op"] == "certified")
    states = [row["shape"]["states"] for row in (text, sampled, near, flat, equal)]
    assert states == ["text", "text", "near", "flat", "equal"]
    assert sampled["config"]["sampled"] and not text["config"]["sampled"]
    assert all(0 < row["candidates"] < 150 for row in (text, sampled, near, flat)) and equal["candidates"] == 150
    assert (text["full"], equal["full"]) == (0, 1)
    assert first.stdout.splitlines()[-1].startswith("tiny           3 rows  cublas ")


@pytest.mark.full
def test_a_search_ends_in_a_config(tmp_path):
    """A search times what its time allows, and prints the best config of each bucket."""
    out = tmp_path / "tune.jsonl"
    done = benchmark(out, "--tune", "--rows", "1", "--max-minutes", "0.1")
    assert done.returncode == 0, done.stderr
    assert "(150, 260): {16: Config(path=" in done.stdout
    assert {row["op"] for row in rows_of(out)} == {"try"}


def test_a_wrong_token_has_no_time(tmp_path):
    """A head that says something else than the full product is a failed row, and the exit code is 1."""
    trees = [f"entries/{name}/tree" for name in ("w12-linear", "certified-lm-head")]
    for name in ("benchmarks", "harness", "kernels", "spt", *trees):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = tmp_path / "entries/certified-lm-head/tree/kernels/lm_head.py"
    text = kernel.read_text()
    assert "key_id(key).to(tl.int64)" in text
    kernel.write_text(text.replace("key_id(key).to(tl.int64)", "key_id(key).to(tl.int64) ^ 1"))
    out = tmp_path / "rows.jsonl"
    done = benchmark(out, "--rows", "1", cwd=tmp_path)

    assert done.returncode == 1 and "5 heads said something else than their twins" in done.stderr
    status = {(row["op"], row["status"]) for row in rows_of(out)}
    assert {op for op, status in status if status == "failed"} == {"certified"}
