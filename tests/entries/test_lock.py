"""The generated files of `entries/` are those that the entries and the stock of now give."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_entries_are_refreshed(tmp_path):
    """Whoever changes stock, kernels or an entry runs `make entries`: nothing is left for it to do."""
    for name in ("stock", "kernels", "entries"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "spt", tmp_path / "spt", ignore=shutil.ignore_patterns("__pycache__", "data"))
    done = subprocess.run(
        [sys.executable, "-m", "spt", "entry", "refresh", "--all", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert set(json.loads(done.stdout).values()) == {"unchanged"}
