"""spt/git/incoming.py: scratch folders, and what a killed process leaves of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from spt.git import incoming
from spt.git.incoming import scratch_folder

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from pathlib import Path
from spt.git import incoming
incoming._TMPFS = Path(sys.argv[1])
with incoming.scratch_folder() as folder:
    (folder / "pack").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(60)
"""


def age(folder, seconds):
    then = folder.stat().st_mtime - seconds
    os.utime(folder, (then, then))


def test_what_a_killed_process_left(tmp_path, monkeypatch):
    """A scratch folder whose process was killed is removed by the next that needs one; a living one's stays."""
    monkeypatch.setattr(incoming, "_TMPFS", tmp_path)
    command = [sys.executable, "-c", HOLDER, tmp_path]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    left = Path(child.stdout.readline().strip())
    age(left, 1000)
    with scratch_folder() as other:
        assert left.is_dir()
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with scratch_folder():
            assert other.is_dir()

        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_young_one_stays(tmp_path, monkeypatch):
    """A folder that was made this moment may be one that is about to be locked."""
    monkeypatch.setattr(incoming, "_TMPFS", tmp_path)
    young = tmp_path / "spt-scratch-young"
    young.mkdir()
    with scratch_folder():
        pass
    assert young.is_dir()
    age(young, 1000)
    with scratch_folder():
        pass

    assert not young.exists()
