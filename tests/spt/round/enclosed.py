"""Shared by the tests of agents' sandboxes: a deployment of the toy, and programs that are run as agents."""

import os
import sys
from pathlib import Path

from spt.errors import SptError
from spt.git.store import Store
from spt.round.bundle import incoming_reference, take_in
from spt.round.clone import cloned
from spt.round.enclosure import Caps, Enclosure, find_bubblewrap
from spt.round.session import Session
from tests.spt.toys import git

MIB = 1 << 20
CAPS = Caps(memory_bytes=512 * MIB, disk_bytes=32 * MIB, file_bytes=24 * MIB, processes=64, wall_s=20)
HEAD = """
import contextlib, ctypes, json, os, signal, socket, subprocess, sys, time
def attempt(act):
    try:
        return act() or True
    except (OSError, MemoryError):
        return None
def tell(value):
    print(json.dumps(value), flush=True)
def sh(text):
    subprocess.run(["sh", "-c", text], check=True)
"""


def works():
    """Whether this machine encloses agents at all."""
    try:
        return bool(find_bubblewrap())
    except SptError:
        return False


def caps(**changes):
    return Caps(**{**vars(CAPS), **changes})


class Result:
    """What became of a program: the outcome, what it told, and the commit of its work (None: none was taken in)."""

    def __init__(self, outcome, work, refusal):
        self.outcome, self.work, self.refusal = outcome, work, refusal

    @property
    def reason(self):
        return self.outcome.reason


def enclose(repository, code, *words, direction="x-1", handler=None, period_s=5.0, base=None, **changes):
    """Runs Python `code` as an agent on the repository's HEAD, and takes in what it did."""
    fields = {name: changes.pop(name) for name in list(changes) if name in vars(CAPS)}
    base = base or git(repository, "rev-parse", "HEAD")
    command = [sys.executable, "-I", "-S", "-c", HEAD + code, *words]
    box = Enclosure(caps=caps(**fields), hidden=(repository,), **changes)
    answer = handler or (lambda tool, arguments: {"refused": "there are no tools"})
    with cloned(repository, "r-1", direction, base) as clone:
        with Session(clone, command, "a task\n", answer, box, with_work=["offer"], period_s=period_s) as session:
            outcome = session.run()
        data, work, refusal = clone.saved(), None, None
        if data is not None:
            try:
                work = take_in(Store.find(repository), data, base, clone.origin / "objects", "r-1", direction)
            except SptError as error:
                refusal = error.message
            clone.forget()
    if outcome.reason is not None:
        assert "\n" not in outcome.reason
    return Result(outcome, work, refusal)


def rescued(repository, direction="x-1"):
    """{reference: commit} of what was kept of a direction."""
    said = git(repository, "for-each-ref", "--format=%(refname) %(objectname)", f"refs/spt/rescue/r-1/{direction}")
    return dict(line.split() for line in said.splitlines())


def is_incoming(repository, direction="x-1"):
    return Store.find(repository).reference(incoming_reference("r-1", direction)) is not None


def groups(maker=None):
    """Control groups of a process's agents that are there now, our own where no process is named."""
    return set(Path("/sys/fs/cgroup").rglob(f"spt-agent-{maker or os.getpid()}-*"))
