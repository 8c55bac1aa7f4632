"""A control group of its own for one arm, in whatever hierarchies this machine lets us write (version 2, 1, or both).

A group is made below our own group, or beside it, so that limits set on us hold for it too.  Its folder is locked
while we live: a group that nobody locks was left by a judge that was killed, and is emptied and removed.
"""

import contextlib
import fcntl
import itertools
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from harness.errors import Hung

__all__ = ["Group", "Hierarchies", "hierarchies"]

PREFIX = "spt-arm-"
EMPTY_S = 5.0  # how long killed processes may take to go
_POLL_S = 0.002
_CONTROLLERS = ("memory", "pids", "freezer")  # of version 1; version 2 always freezes
_numbers = itertools.count()


@dataclass(frozen=True)
class Hierarchies:
    """Folders of the groups that we are in ourselves: of version 2, and of version 1 by controller."""

    v2: Path | None
    v1: dict[str, Path]


def hierarchies() -> Hierarchies:
    """What is mounted here, read from /proc."""
    ours = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        ours[controllers] = path
    v2: Path | None = None
    v1: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, source = line.partition(" - ")
        root, point = mounted.split()[3:5]
        kind, _, options = source.split()[:3]
        if kind == "cgroup2":
            v2 = _folder(point, root, ours.get(""))
        elif kind == "cgroup":
            for controllers, path in ours.items():
                names = controllers.split(",")
                if set(names) <= set(options.split(",")) and (folder := _folder(point, root, path)):
                    v1 |= {name: folder for name in names if name in _CONTROLLERS}
    return Hierarchies(v2, v1)


def _folder(point: str, root: str, path: str | None) -> Path | None:
    """Where the group `path` lies when the hierarchy's group `root` is mounted at `point`."""
    if path is None or ".." in path.split("/"):
        return None
    inside = os.path.relpath(path, root)
    folder = Path(point) / ("" if inside.startswith("..") else inside)
    return folder if folder.is_dir() else None


@dataclass
class Group:
    """The folders of one arm's group; `close` leaves neither a process nor a folder."""

    v2: Path | None = None
    v1: dict[str, Path] = field(default_factory=dict)
    memory: bool = False  # whether its memory is capped
    pids: bool = False  # whether the number of its processes and threads is capped
    _locks: list[int] = field(default_factory=list)

    @classmethod
    def make(cls, memory_bytes: int, pids: int, found: Hierarchies | None = None) -> Self | None:
        """A new empty group with these caps where they can be had; None where no hierarchy is writable."""
        found = hierarchies() if found is None else found
        group = cls()
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"
        v2 = None if found.v2 is None else _parent(found.v2)
        v1 = {controller: ours for controller, ours in found.v1.items() if _writable(ours)}
        _sweep(hierarchies())
        try:
            if v2 is not None:
                group.v2 = group._add(v2 / name)
            for controller, ours in v1.items():
                group.v1[controller] = group._add(ours / name)
            group._cap(memory_bytes, pids)
        except BaseException:
            group.close()
            raise
        return group if group.folders else None

    @property
    def folders(self) -> list[Path]:
        return list(dict.fromkeys([*filter(None, [self.v2]), *self.v1.values()]))

    @property
    def entrances(self) -> list[str]:
        """The files to which a process writes its id to be in the group with all its future children."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def members(self) -> set[int]:
        """The processes in the group."""
        ids = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                ids |= {int(word) for word in (folder / "cgroup.procs").read_text().split()}
        return ids

    def cpu_s(self) -> float | None:
        """CPU time that the group has used, or None where version 2 is not there to tell."""
        if self.v2 is None:
            return None
        return _fields(self.v2 / "cpu.stat")["usage_usec"] / 1e6

    def oom_kills(self) -> int:
        """How many of its processes the kernel ended because the memory cap was reached."""
        if self.v2 is not None and (self.v2 / "memory.events").exists():
            return _fields(self.v2 / "memory.events")["oom_kill"]
        return _fields(self.v1["memory"] / "memory.oom_control").get("oom_kill", 0) if "memory" in self.v1 else 0

    def freeze(self, frozen: bool) -> None:
        """Asks the kernel to stop all processes of the group, or to let them go on."""
        if self.v2 is not None:
            (self.v2 / "cgroup.freeze").write_text(str(int(frozen)))
        elif "freezer" in self.v1:
            (self.v1["freezer"] / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        """Whether all of them have stopped, as the kernel says."""
        if self.v2 is not None:
            return _fields(self.v2 / "cgroup.events")["frozen"] == 1
        return "freezer" in self.v1 and (self.v1["freezer"] / "freezer.state").read_text().strip() == "FROZEN"

    def kill(self) -> None:
        """Ends every process in the group, frozen or not; returns when none is left."""
        deadline = time.monotonic() + EMPTY_S
        while members := self._alive():
            if self.v2 is not None and (self.v2 / "cgroup.kill").exists():
                (self.v2 / "cgroup.kill").write_text("1")
            else:
                self._kill_each(members)
            if time.monotonic() > deadline:
                raise Hung(f"{len(members)} killed processes of the engine do not end")
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Kills what is left and removes the folders."""
        self.kill()
        for folder in self.folders:
            _remove(folder)
        self.release()

    def release(self) -> None:
        """Forgets the folders, so that another judge may take them for left behind."""
        for lock in self._locks:
            os.close(lock)
        self.v2, self.v1, self._locks = None, {}, []

    def _kill_each(self, members: set[int]) -> None:
        self.freeze(True)  # so that none forks meanwhile
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.freeze(False)  # version 1 does not end what is frozen

    def _alive(self) -> set[int]:
        """Members that are no zombies: a zombie's parent may be ourselves, who reap it later."""
        return {pid for pid in self.members() if _state(pid) not in "ZX"}

    def _add(self, folder: Path) -> Path:
        while True:
            folder.mkdir(exist_ok=True)
            if (lock := _lock(folder)) is not None:  # else another judge took it for left behind, and removes it
                self._locks.append(lock)
                return folder
            time.sleep(_POLL_S)

    def _cap(self, memory_bytes: int, pids: int) -> None:
        if self.v2 is not None:
            self.memory = _set(self.v2 / "memory.max", memory_bytes)
            _set(self.v2 / "memory.swap.max", 0)
            self.pids = _set(self.v2 / "pids.max", pids)
        if not self.memory and "memory" in self.v1:
            self.memory = _set(self.v1["memory"] / "memory.limit_in_bytes", memory_bytes)
        if not self.pids and "pids" in self.v1:
            self.pids = _set(self.v1["pids"] / "pids.max", pids)


def _parent(ours: Path) -> Path | None:
    """The group of version 2 in which a new one gets the most: below our own, or beside it where that gives caps.

    A group that has processes cannot hand controllers on, unless it is the root.
    """
    usable = [folder for folder in (ours, ours.parent) if (folder / "cgroup.procs").exists() and _writable(folder)]
    for folder in usable:
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text("+memory +pids")
        if {"memory", "pids"} <= set((folder / "cgroup.subtree_control").read_text().split()):
            return folder
    return usable[0] if usable else None


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _sweep(found: Hierarchies) -> None:
    """Empties and removes the groups of judges that are gone."""
    versions = [] if found.v2 is None else [found.v2, found.v2.parent]
    for name in {folder.name for parent in [*versions, *found.v1.values()] for folder in parent.glob(PREFIX + "*")}:
        left = Group(
            next(filter(None, (_there(parent, name) for parent in versions)), None),
            {controller: there for controller, parent in found.v1.items() if (there := _there(parent, name))},
        )
        locks = [_lock(folder) for folder in left.folders]
        left._locks = [lock for lock in locks if lock is not None]
        if None in locks:  # its judge lives
            left.release()
        else:
            left.close()


def _there(parent: Path, name: str) -> Path | None:
    return parent / name if (parent / name).is_dir() else None


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None when another has it or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):  # noqa: PTH116 - as a pair
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + EMPTY_S
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError:  # its last zombie is not reaped yet
            if time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _set(file: Path, value: int) -> bool:
    try:
        file.write_text(str(value))
    except OSError:
        return False
    return True


def _fields(file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
