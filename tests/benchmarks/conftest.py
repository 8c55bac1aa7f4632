"""Fixtures of the benchmarks' tests: a tiny target with its drafter, a system with entries, requests of ids."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

ROOT = Path(__file__).parents[2]
SETTINGS = ("ar", "chain", "tree:6:0:3", "confident:0.02:6:0:3", "transformers", "transformers-assisted")


def run(module, *arguments, cwd=ROOT):
    """A benchmark as its user starts it, on one thread."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder with `target`, `drafter` and `requests.jsonl` of three requests."""
    folder = tmp_path_factory.mktemp("tiny")
    config = target_config("llama", vocab_size=17)
    write_target(folder / "target", config)
    write_drafter(folder / "drafter", drafter_config(config))
    draw = random.Random(1)
    rows = [{"id": f"one{chr(0x2028)}/{n}", "ids": [draw.randrange(3, 17) for _ in range(5 + n)]} for n in range(3)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "requests.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def composed(tmp_path_factory):
    """The system with every entry, exported by `spt`."""
    folder = tmp_path_factory.mktemp("composed") / "system"
    command = [sys.executable, "-m", "spt", "export", "best-first-tree+confident-budget", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def speed(tiny, system, out, *arguments, settings=SETTINGS[:3]):
    """benchmarks.speed on the tiny models, on a CPU in float32."""
    return run(
        "speed",
        *("--device", "cpu", "--dtype", "float32", "--context", "128", "--tokens", "12", "--check-tokens", "6"),
        *("--target", tiny / "target", "--drafter", tiny / "drafter", "--system", system, "--out", out),
        *("--requests", tiny / "requests.jsonl", "--settings", *settings, *arguments),
    )


@pytest.fixture(scope="session")
def whole(tiny, composed, tmp_path_factory):
    """A run of every kind of setting: what it printed, and its rows."""
    out = tmp_path_factory.mktemp("whole") / "rows.jsonl"
    done = speed(tiny, composed, out, "--peer-every", "2", settings=SETTINGS)
    assert done.returncode == 0, done.stderr
    return done, out
