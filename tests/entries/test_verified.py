"""The entries that ship, as a user meets them: all of them verify in a fresh deployment repository."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def spt(where, *words):
    command, environment = [sys.executable, "-m", "spt", *words], os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


def test_every_shipped_entry_verifies_in_a_fresh_repository(tmp_path):
    """`spt entry verify --all` ends with 0: each entry is recomposed, and its source is here and exact."""
    made = spt(tmp_path, "init", "fresh")
    assert made.returncode == 0, made.stderr
    done = spt(tmp_path / "fresh", "entry", "verify", "--all")
    assert done.returncode == 0, done.stdout + done.stderr
