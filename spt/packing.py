"""The command of W12: packing needs torch, so it runs in a child that sees a system's tree and nothing else of ours."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from spt.campaign import scratch
from spt.deployment import package_file
from spt.errors import Missing
from spt.job import export_system

__all__ = ["ENTRY", "model_at", "run_packing"]

ENTRY = "w12-linear"
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMPDIR")


def model_at(python: str, word: str) -> Path:
    """The file or folder that a user means, from the root: a path, or `package:NAME/FILE` of that interpreter."""
    return package_file(python, "model", word) if word.startswith("package:") else Path(word).absolute()


def run_packing(system: str, python: str, command: Sequence[str]) -> int:
    """Runs `python -m kernels.w12` in SYSTEM's tree; its exit status, the reason for which it has said itself."""
    with scratch() as folder:
        root = folder / "system"
        export_system(system, root)
        if not (root / "kernels" / "w12.py").is_file():
            raise Missing(f"system '{system}' has no W12", f"name one that has the entry {ENTRY}")
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        words = [python, "-P", "-s", "-m", "kernels.w12", *command]
        try:
            done = subprocess.run(words, cwd=folder, env={**environment, "PYTHONPATH": str(root)}, check=False)
        except OSError as error:
            raise Missing(f"'{python}' cannot be started: {(error.strerror or str(error)).lower()}") from None
    return done.returncode if done.returncode >= 0 else 1
