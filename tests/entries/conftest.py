"""Fixtures of the entries' tests: all entries composed into one exported system, and tiny models to run it on."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stock.tiny import drafter_config, target_config, write_drafter, write_target

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def composed(tmp_path_factory) -> Path:
    """The export of all entries together on today's stock."""
    names = sorted(path.parent.name for path in (ROOT / "entries").glob("*/entry.yaml"))
    folder = tmp_path_factory.mktemp("composed") / "system"
    command = [sys.executable, "-m", "spt", "export", "+".join(names), str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> tuple[Path, Path]:
    """A tiny target and a drafter for it, whose guesses are right now and then: the vocabulary is small."""
    folder = tmp_path_factory.mktemp("models")
    config = target_config("qwen3", vocab_size=12)
    return write_target(folder / "target", config), write_drafter(folder / "drafter", drafter_config(config))
