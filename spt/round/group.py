"""A control group for one agent: caps on memory and processes where this machine lets us set them.

Version 2 of cgroups or version 1, whichever can be written.  A group's folders are locked while we live: one that
nobody locks was left by a process that was killed, and is emptied and removed by the next that makes one.
"""

import contextlib
import fcntl
import itertools
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Group"]

PREFIX = "spt-agent-"
_EMPTY_S = 5.0
_POLL_S = 0.01
_CONTROLLERS = ("memory", "pids")
_numbers = itertools.count()


@dataclass
class Group:
    """The folders of one agent's group, none where nothing can be written; `close` leaves no process and no folder."""

    folders: list[Path] = field(default_factory=list)
    memory: bool = False  # whether its memory is capped
    pids: bool = False  # whether the number of its processes and threads is capped
    _locks: list[int] = field(default_factory=list)

    @classmethod
    def make(cls, memory_bytes: int, pids: int) -> "Group":
        """A new empty group with these caps, where they can be had."""
        places = _places()
        group = cls()
        name = f"{PREFIX}{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"
        _sweep(places.values())
        try:
            for folder in dict.fromkeys(places.values()):
                group._add(folder / name)
            group._cap(places, name, memory_bytes, pids)
        except BaseException:
            group.close()
            raise
        return group

    @property
    def entrances(self) -> list[str]:
        """The files to which a process writes 0 to be in the group with all its future children."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def oom_kills(self) -> int:
        """How many of its processes the kernel ended because the memory cap was reached."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    lines = dict(line.split() for line in (folder / name).read_text().splitlines())
                    return int(lines.get("oom_kill", 0))
        return 0

    def kill(self) -> None:
        """Ends every process in the group; returns when none is left, or a few seconds later."""
        deadline_s = time.monotonic() + _EMPTY_S
        while (members := self._members()) and time.monotonic() < deadline_s:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Kills what is left and removes the folders."""
        self.kill()
        deadline_s = time.monotonic() + _EMPTY_S
        for folder in self.folders:
            while not _is_removed(folder) and time.monotonic() < deadline_s:  # its last zombie is not reaped yet
                time.sleep(_POLL_S)
        self._release()

    def _release(self) -> None:
        for lock in self._locks:
            os.close(lock)
        self.folders, self._locks = [], []

    def _members(self) -> set[int]:
        found = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found |= {int(word) for word in (folder / "cgroup.procs").read_text().split()}
        return {pid for pid in found if _state(pid) not in "ZX"}

    def _add(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            while True:
                folder.mkdir(exist_ok=True)
                if (lock := _lock(folder)) is not None:  # else another took it for left behind, and removes it
                    self._locks.append(lock)
                    self.folders.append(folder)
                    return
                time.sleep(_POLL_S)

    def _cap(self, places: dict[str, Path], name: str, memory_bytes: int, pids: int) -> None:
        memory = places["memory"] / name if "memory" in places else None
        if memory is not None:
            self.memory = _set(memory / "memory.max", memory_bytes) or _set(
                memory / "memory.limit_in_bytes", memory_bytes
            )
            _set(memory / "memory.swap.max", 0)
        if "pids" in places:
            self.pids = _set(places["pids"] / name / "pids.max", pids)


def _places() -> dict[str, Path]:
    """Controller -> the group below which ours is made, for those that can be written."""
    ours: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        ours |= dict.fromkeys(controllers.split(","), path)
    places: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, source = line.partition(" - ")
        root, point = mounted.split()[3:5]
        kind, _, options = source.split()[:3]
        if kind == "cgroup2" and "" in ours:
            folder = _folder(point, root, ours[""])
            if folder is not None and (parent := _handing_on(folder)) is not None:
                places = dict.fromkeys(_CONTROLLERS, parent) | places
        elif kind == "cgroup":
            for name in set(_CONTROLLERS) & set(options.split(",")) & set(ours):
                folder = _folder(point, root, ours[name])
                if folder is not None and os.access(folder, os.W_OK):
                    places[name] = folder
    return places


def _folder(point: str, root: str, path: str) -> Path | None:
    inside = os.path.relpath(path, root)
    folder = Path(point) / ("" if inside.startswith("..") else inside)
    return folder if folder.is_dir() else None


def _handing_on(ours: Path) -> Path | None:
    """The group of version 2, our own or the one above, that hands both controllers on; None where neither does."""
    for folder in (ours, ours.parent):
        if not (folder / "cgroup.procs").exists() or not os.access(folder, os.W_OK):
            continue
        control = folder / "cgroup.subtree_control"
        with contextlib.suppress(OSError):
            control.write_text("+memory +pids")
        if set(_CONTROLLERS) <= set(control.read_text().split()):
            return folder
    return None


def _sweep(parents: Iterable[Path]) -> None:
    """Empties and removes the groups whose makers are gone."""
    for folder in {folder for parent in parents for folder in parent.glob(PREFIX + "*")}:
        if (lock := _lock(folder)) is not None:
            Group([folder], _locks=[lock]).close()


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None where another has it or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _set(file: Path, value: int) -> bool:
    try:
        file.write_text(str(value))
    except OSError:
        return False
    return True


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
