"""A controller that is killed while an agent works: nothing of the sandbox stays, and the agent's work is kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spt.git.store import Store
from spt.round import session
from spt.round.clone import sweep
from spt.round.group import Group
from tests.processes import marked, vanish
from tests.spt.round.enclosed import enclose, groups, rescued
from tests.spt.toys import git

ROOT = Path(__file__).parents[3]
CONTROLLER = """
import sys
from pathlib import Path
from tests.spt.round.enclosed import enclose
enclose(Path(sys.argv[1]), sys.argv[2], sys.argv[3], period_s=0.2, wall_s=60)
"""
AGENT = r"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sh("echo 'x = 2' > stock/engine.py; git commit -qam faster; tool offer; echo 'x = 3' > stock/engine.py")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)", sys.argv[1]], start_new_session=True)
time.sleep(60)
"""


@pytest.fixture
def mark(tmp_path):
    return f"mark-{tmp_path.name}-{os.getpid()}"


def start(deployment, mark):
    """A controller whose agent has offered its work; the mark is in the command lines of the sandbox too."""
    command = [sys.executable, "-c", CONTROLLER, deployment, AGENT, mark]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def until(condition, patience_s=20.0):
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_kill_while_an_agent_works(deployment, mark):
    """After kill -9 no process of the sandbox is left, and the next start keeps the work and removes the rest."""
    child = start(deployment, mark)
    bundle = deployment / ".git" / "spt" / "agents" / "r-1" / "x-1" / "work.bundle"
    until(lambda: bundle.is_file() and len(marked(mark)) > 2)
    time.sleep(0.5)  # what it left uncommitted goes out as well
    child.send_signal(signal.SIGKILL)
    child.wait()

    assert vanish(mark)
    (swept,) = sweep(Store.find(deployment))
    assert (swept.round, swept.direction) == ("r-1", "x-1")
    assert git(deployment, "show", f"{swept.rescue}:stock/engine.py") == "x = 3"
    assert git(deployment, "log", "-1", "--format=%s", f"{swept.rescue}^") == "faster"
    assert list((deployment / ".git" / "spt" / "agents").glob("*")) == [
        deployment / ".git" / "spt" / "agents" / ".lock"
    ]
    enclose(deployment, "pass")
    assert groups(child.pid) | groups() == set()


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_kill_at_the_start(deployment, mark, delay_s):
    """Wherever in the start of a sandbox its controller is killed, nothing of it stays."""
    child = start(deployment, mark)
    until((deployment / ".git" / "spt" / "agents" / "r-1" / "x-1").exists)
    time.sleep(delay_s)
    child.send_signal(signal.SIGKILL)
    child.wait()

    assert vanish(mark)
    sweep(Store.find(deployment))
    assert list((deployment / ".git" / "spt" / "agents").glob("*")) == [
        deployment / ".git" / "spt" / "agents" / ".lock"
    ]
    assert len(rescued(deployment)) <= 1


# --- where no cgroup can be written ---


@pytest.fixture
def no_cgroups(monkeypatch):
    monkeypatch.setattr(session.Group, "make", lambda memory_bytes, pids: Group())


def test_memory_without_a_cgroup(deployment, no_cgroups):
    """Each process has its own limit then, and the record says so."""
    code = "blocks = []\nwhile True: blocks.append(bytearray(8 << 20))"
    result = enclose(deployment, code, memory_bytes=128 << 20)

    assert "MemoryError" in result.outcome.tail
    assert "128 MiB by rlimit of each process" in result.outcome.held


def test_forks_without_a_cgroup(deployment, no_cgroups, mark):
    """Root's processes are counted then, and too many end the sandbox; another user's are capped."""
    code = r"""
sh("echo 'x = 2' > stock/engine.py; git commit -qam faster; tool offer")
while True:
    attempt(os.fork)
    time.sleep(0.001)
"""
    result = enclose(deployment, code, mark, wall_s=5, processes=200)

    if os.getuid() == 0:
        assert result.reason == "it started more than 200 processes"
        assert "since root has no rlimit" in result.outcome.held
    else:
        assert "did not end within 5 s" in result.reason
    assert vanish(mark)
    assert result.work.note == "faster"
