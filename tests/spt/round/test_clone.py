"""spt/round/clone.py: private clones, made and removed beside one another, and what is left when one is killed."""

import multiprocessing
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spt.errors import Unsupported, Usage
from spt.git.store import Store
from spt.round.bundle import take_in
from spt.round.clone import cloned, sweep
from tests.spt.round.enclosed import rescued
from tests.spt.toys import commit_files, git

ROOT = Path(__file__).parents[3]
MANY = 30


def work_in(clone, folder, text="x = 2\n"):
    """Commits a change as an agent would; returns the bundle of it."""
    git(folder.parent, "clone", "-q", "--no-hardlinks", f"file://{clone.origin}", folder)
    commit_files(folder, {"stock/engine.py": text}, f"change {clone.direction}")
    git(folder, "bundle", "create", "-q", folder / "b", "refs/heads/work", f"^{clone.base}")
    return (folder / "b").read_bytes()


def agents(repository):
    return repository / ".git" / "spt" / "agents"


def left(repository):
    """Every file that clones have in the repository now."""
    return [path for path in agents(repository).rglob("*") if path.name != ".lock"]


def test_a_clone_and_its_end(deployment):
    """A clone is a folder of its own, closed to others, and gone at the end with the folder of its round."""
    head = git(deployment, "rev-parse", "HEAD")
    with cloned(deployment, "r-1", "x-1", head) as clone:
        assert git(clone.origin, "rev-parse", "work") == head
        assert git(clone.origin, "ls-tree", "-r", "work") == git(deployment, "ls-tree", "-r", head)
        assert (clone.folder.stat().st_mode & 0o077, agents(deployment).stat().st_mode & 0o077) == (0, 0)
        inodes = {path.stat().st_ino for path in (deployment / ".git" / "objects").rglob("*") if path.is_file()}
        assert not inodes & {path.stat().st_ino for path in clone.folder.rglob("*") if path.is_file()}

    assert left(deployment) == []


def test_one_at_a_time(deployment):
    """A direction that is being worked on has one clone; another direction has its own."""
    head = git(deployment, "rev-parse", "HEAD")
    with cloned(deployment, "r-1", "x-1", head), cloned(deployment, "r-1", "x-2", head):
        with (
            pytest.raises(Unsupported, match="'x-1' of 'r-1' is being worked on"),
            cloned(deployment, "r-1", "x-1", head),
        ):
            pass
        assert sweep(Store.find(deployment)) == []


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "X"])
def test_names(deployment, name):
    """A round or direction that is no name makes no folder."""
    for pair in ((name, "x-1"), ("r-1", name)):
        with pytest.raises(Usage), cloned(deployment, *pair, git(deployment, "rev-parse", "HEAD")):
            pass

    assert left(deployment) == []


def test_what_was_not_taken_in_is_rescued(deployment, tmp_path):
    """Work that is in a clone when it ends, by an error too, is kept, and the reference says whose it is."""
    head = git(deployment, "rev-parse", "HEAD")
    with pytest.raises(KeyboardInterrupt), cloned(deployment, "r-1", "x-1", head) as clone:
        clone.save(work_in(clone, tmp_path / "w"))
        raise KeyboardInterrupt
    (name,) = rescued(deployment)

    assert git(deployment, "log", "-1", "--format=%s", name) == "change x-1"
    assert left(deployment) == []


def one(repository, folder, number):
    """A whole life of a clone; returns the commit."""
    direction = f"x-{number}"
    head = git(repository, "rev-parse", "HEAD")
    with cloned(repository, "r-1", direction, head) as clone:
        clone.save(work_in(clone, folder / direction, f"x = {number}\n"))
        store = Store.find(repository)
        return take_in(store, clone.saved(), head, clone.origin / "objects", "r-1", direction).commit


def one_of(arguments):
    return one(*arguments)


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_thirty_at_once(deployment, tmp_path, pool):
    """Thirty clones that are made, worked in and removed at the same time lose no work and leave nothing behind."""
    jobs = [(deployment, tmp_path, number) for number in range(MANY)]
    if pool == "threads":
        with ThreadPoolExecutor(MANY) as threads:
            commits = list(threads.map(one_of, jobs))
    else:
        with multiprocessing.get_context("spawn").Pool(6) as processes:
            commits = processes.map(one_of, jobs, chunksize=1)

    assert len(set(commits)) == MANY
    for number, commit in enumerate(commits):
        assert list(rescued(deployment, f"x-{number}").values()) == [commit]
        assert git(deployment, "show", f"{commit}:stock/engine.py") == f"x = {number}"
    assert left(deployment) == []
    assert git(deployment, "status", "--porcelain") == ""
    assert git(deployment, "worktree", "list").count("\n") == 0
    assert git(deployment, "for-each-ref", "refs/spt/incoming") == ""
    assert not list((deployment / ".git" / "objects" / "pack").glob("*.keep"))


KILLED = """
import os, sys, time
from pathlib import Path
from spt.git.store import Store
from spt.round.bundle import take_in
from spt.round.clone import cloned
repository, bundle, stage = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), sys.argv[3]
head = sys.argv[4]
with cloned(repository, "r-1", "x-1", head) as clone:
    if stage != "empty":
        clone.save(bundle)
    if stage == "taken":
        take_in(Store.find(repository), bundle, head, clone.origin / "objects", "r-1", "x-1")
        clone.forget()
    if stage == "torn":
        (clone.folder / "work.bundle").write_bytes(bundle[:-30])
    print("there", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("stage", "reason", "kept"),
    [
        ("empty", "its process was killed", 0),
        ("saved", "its process was killed", 1),
        ("taken", "its process was killed", 1),
        ("torn", "its bundle cannot be read", 0),
    ],
)
def test_killed(deployment, tmp_path, stage, reason, kept):
    """After kill -9 the next start names the clone, keeps its work, and leaves nothing of it."""
    head = git(deployment, "rev-parse", "HEAD")
    with cloned(deployment, "r-1", "x-1", head) as clone:
        (tmp_path / "bundle").write_bytes(work_in(clone, tmp_path / "w"))
    command = [sys.executable, "-c", KILLED, deployment, tmp_path / "bundle", stage, head]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"there\n"
    assert sweep(Store.find(deployment)) == []  # it lives
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    swept = sweep(Store.find(deployment))

    assert [(one.round, one.direction) for one in swept] == [("r-1", "x-1")]
    assert swept[0].reason.startswith(reason)
    assert (swept[0].rescue is not None, len(rescued(deployment))) == (bool(kept), kept)
    assert left(deployment) == []
    assert sweep(Store.find(deployment)) == []
    with cloned(deployment, "r-1", "x-1", head):
        pass


def test_killed_at_any_moment(deployment, tmp_path):
    """Wherever a process is killed while it makes clones and removes them, the next start finds order."""
    head = git(deployment, "rev-parse", "HEAD")
    script = """
import sys
from pathlib import Path
from spt.round.clone import cloned
while True:
    with cloned(Path(sys.argv[1]), "r-1", "x-1", sys.argv[2]) as clone:
        print("there", flush=True)
        clone.save(b"garbage")
"""
    for delay_s in (0.0, 0.003, 0.006, 0.009, 0.012, 0.015, 0.018, 0.021):
        child = subprocess.Popen([sys.executable, "-c", script, deployment, head], cwd=ROOT, stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"there\n"
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        sweep(Store.find(deployment))

        assert left(deployment) == []
    with cloned(deployment, "r-1", "x-1", head) as clone:
        assert clone.origin.is_dir()
    assert git(deployment, "fsck", "--no-dangling") == ""
