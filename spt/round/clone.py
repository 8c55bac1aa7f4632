"""An agent's private clone: the base commit and its files, and nothing else of the repository.

A clone is a folder below the git common directory, `spt/agents/<round>/<direction>/`: a bare repository with the one
commit, which a sandbox reads, and the last bundle that the agent's work came out in.  The working tree itself lies in
the sandbox (spt/round/enclosure.py): nothing that an agent can write is ever a file out here.

Clones are made and removed under one lock.  Who works in one holds a lock on it as well; a clone that nobody holds was
left by a process that was killed, and the next one takes its work in as rescue before it removes the folder.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spt.entry import check_name
from spt.errors import SptError, Unsupported
from spt.git.objects import GITLINK, TREE, Objects, Oid
from spt.git.program import git
from spt.git.store import Store
from spt.round.bundle import INCOMING, WORK, commits_between, keep_incoming, take_in

__all__ = ["Clone", "Swept", "cloned", "sweep"]

_LOCK_WAIT_S = 120.0
_POLL_S = 0.01
_BUNDLE, _OWNER, _BASE = "work.bundle", "owner", "base"
_KILLED = "its process was killed"


@dataclass(frozen=True)
class Clone:
    """A clone that this process holds."""

    repository: Path
    folder: Path
    round: str
    direction: str
    base: Oid
    start: Oid  # where the agent begins: the base, or work of its own on it

    @property
    def origin(self) -> Path:
        """The bare repository that holds the base; read-only for an agent."""
        return self.folder / "base.git"

    def save(self, data: bytes) -> None:
        """Keeps a bundle of the agent's, in place of the one before."""
        part = self.folder / f"{_BUNDLE}.part"
        part.write_bytes(data)
        part.replace(self.folder / _BUNDLE)

    def saved(self) -> bytes | None:
        """The bundle that was kept last, None where there was none."""
        path = self.folder / _BUNDLE
        return path.read_bytes() if path.is_file() else None

    def forget(self) -> None:
        """Removes the bundle, once it is taken in."""
        (self.folder / _BUNDLE).unlink(missing_ok=True)


@dataclass(frozen=True)
class Swept:
    """A clone that was left behind: the reference that keeps its work, or why there is none."""

    round: str
    direction: str
    rescue: str | None
    reason: str


@contextlib.contextmanager
def cloned(repository: Path, round_: str, direction: str, base: Oid, start: Oid | None = None) -> Iterator[Clone]:
    """A clone of a commit for the time of the block; what is still in its bundle then is kept as rescue.

    `start` is a commit that stands on the base, and where the agent's branch is to begin; the base itself by default.
    Unsupported where someone works on this direction already.  Clones that were left behind are swept first.
    """
    check_name(round_)
    check_name(direction)
    store = Store.find(repository)
    home = _home(store)
    with _locked(home) as lock:
        _sweep(store, home)
        folder = home / round_ / direction
        if folder.exists():
            raise Unsupported(f"direction '{direction}' of '{round_}' is being worked on", "wait for it, or stop it")
        owner = _make(store, folder, base, start or base, lock)
    try:
        yield Clone(repository, folder, round_, direction, base, start or base)
    finally:
        with _locked(home):
            _remove(store, folder)
            os.close(owner)


def sweep(store: Store) -> list[Swept]:
    """Removes the clones that killed processes left, each one's work kept as rescue; says what became of them."""
    home = _home(store)
    if not home.is_dir():
        return []
    with _locked(home):
        return _sweep(store, home)


def _home(store: Store) -> Path:
    return store.state / "agents"


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[int]:
    """Holds the one lock of all clones, which a killed process gives up by itself; yields its descriptor."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline_s = time.monotonic() + _LOCK_WAIT_S
    with (home / ".lock").open("w") as handle:
        while not _try_lock(handle.fileno()):
            if time.monotonic() > deadline_s:
                raise Unsupported("another process makes or removes clones here and does not end", "look at it")
            time.sleep(_POLL_S)
        yield handle.fileno()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make(store: Store, folder: Path, base: Oid, start: Oid, lock: int) -> int:
    """Makes a clone's folder whole, then gives it its name; returns the descriptor that holds it.

    Git's processes hold `lock` too: when we are killed, nobody clears away what they still write to.
    """
    part = folder.with_name(f".{folder.name}.part")
    part.mkdir(mode=0o700, parents=True)
    owner = os.open(part / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX)
        os.write(owner, f"{os.getpid()}\n".encode())
        (part / _BASE).write_text(base)
        _write_base(store, part / "base.git", base, start, lock)
        part.rename(folder)
    except BaseException:
        os.close(owner)
        shutil.rmtree(part, ignore_errors=True)
        raise
    return owner


def _write_base(store: Store, to: Path, base: Oid, start: Oid, lock: int) -> None:
    """A bare repository with the base, cut from its history, and what stands on it on the branch of an agent's work."""
    branch = WORK.removeprefix("refs/heads/")
    git("init", "-q", "--bare", "--template=", f"--initial-branch={branch}", str(to), inherited=[lock])
    needed: set[Oid] = set()
    for commit in commits_between(store.objects, start, base):
        needed |= _needed(store.objects, commit)
    wanted = "".join(f"{oid}\n" for oid in sorted(needed))
    pack = git("pack-objects", "-q", "--stdout", git_dir=store.common, stdin=wanted.encode())
    (to / "shallow").write_text(f"{base}\n")
    git("index-pack", "--stdin", git_dir=to, stdin=pack, inherited=[lock])
    git("update-ref", WORK, start, git_dir=to, inherited=[lock])


def _needed(objects: Objects, base: Oid) -> set[Oid]:
    commit = objects.commit(base)
    needed, waiting = {commit.oid}, [commit.tree]
    while waiting:
        tree = waiting.pop()
        needed.add(tree)
        for state in objects.entries(tree).values():
            if state.mode == TREE:
                waiting.append(state.oid)
            elif state.mode != GITLINK:
                needed.add(state.oid)
    return needed


def _sweep(store: Store, home: Path) -> list[Swept]:
    swept = []
    for folder in sorted(home.glob("*/*")):
        if folder.name.startswith("."):  # half made or half removed, by a process that was killed
            shutil.rmtree(folder, ignore_errors=True)
        elif _is_left(folder):
            swept.append(_remove(store, folder))
    for folder in home.glob("*/"):
        with contextlib.suppress(OSError):
            folder.rmdir()  # a round without clones
    for name in store.references(INCOMING):
        round_, _, direction = name.removeprefix(INCOMING).partition("/")
        if not (home / round_ / direction).exists() and (rescue := keep_incoming(store, round_, direction)):
            swept.append(Swept(round_, direction, rescue, _KILLED))
    return swept


def _is_left(folder: Path) -> bool:
    """Whether no living process holds this clone."""
    try:
        descriptor = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _remove(store: Store, folder: Path) -> Swept:
    """Removes a clone; what it holds that was not taken in is rescued first."""
    swept = _rescued(store, folder)
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # unless the round has other clones
    return swept


def _rescued(store: Store, folder: Path) -> Swept:
    round_, direction = folder.parent.name, folder.name
    bundle = folder / _BUNDLE
    reason = _KILLED
    if bundle.is_file():
        base = (folder / _BASE).read_text()
        try:
            take_in(store, bundle.read_bytes(), base, folder / "base.git" / "objects", round_, direction)
        except SptError as error:
            reason = error.message
    rescue = keep_incoming(store, round_, direction)
    return Swept(round_, direction, rescue, reason)
