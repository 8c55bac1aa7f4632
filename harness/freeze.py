"""An arm as a whole: all processes that an engine is, which stop, go on and end together.

Stopping is done by the freezer of its control group where there is one, else by SIGSTOP to each process.  It is read
back, never assumed; and who comes back tells how much CPU time it used while it was meant to stand still, since a
timer of its own can wake what a signal stopped.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from harness.cgroup import EMPTY_S, Group
from harness.errors import Hung, Violation

__all__ = ["FREEZE_S", "Whole", "way"]

FREEZE_S = 2.0
CPU_ALLOWED_S = 0.02  # two ticks of the clock that /proc counts in
_POLL_S = 0.001
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def way(group: Group | None) -> str:
    """How what is in the group is stopped: `cgroup v2`, `cgroup v1` or `signals`."""
    if group is not None and group.v2 is not None:
        return "cgroup v2"
    return "cgroup v1" if group is not None and "freezer" in group.v1 else "signals"


class Whole:
    """The engine's first process, everything that it started, and the group that they are in, if any."""

    def __init__(self, child: "subprocess.Popen[bytes]", group: Group | None) -> None:
        self._child = child
        self._group = group
        self._way = way(group)
        self._cpu_s: float | None = None  # when it stood still; None while it runs

    @property
    def frozen(self) -> bool:
        return self._cpu_s is not None

    @property
    def way(self) -> str:
        """How it is stopped."""
        return self._way

    def freeze(self, patience_s: float = FREEZE_S) -> None:
        """Stops all processes; raises `Hung` when that cannot be seen within `patience_s`."""
        if self.frozen:
            raise ValueError("the engine is frozen already")
        if self._group is not None and self.way != "signals":
            self._group.freeze(True)
        deadline = time.monotonic() + patience_s
        while not self._stands():
            if self.way == "signals":
                self._signal_each(signal.SIGSTOP)
            if time.monotonic() > deadline:
                raise Hung(f"the engine could not be frozen within {patience_s:g} s")
            time.sleep(_POLL_S)
        self._cpu_s = self._used_s()

    def thaw(self) -> None:
        """Lets all processes go on; raises `Violation` when some ran while they were frozen."""
        if self._cpu_s is None:
            raise ValueError("the engine is not frozen")
        stood = self._stands()
        used_s = self._used_s() - self._cpu_s
        self._cpu_s = None
        if not stood or used_s > CPU_ALLOWED_S:
            raise Violation(f"the engine ran while it was frozen: {used_s:.2f} s of CPU time")
        if self._group is not None and self.way != "signals":
            self._group.freeze(False)
        else:
            self._signal_each(signal.SIGCONT)

    def kill(self) -> None:
        """Ends all processes, frozen or not, and removes the group; returns when none is left."""
        left = [] if self._group is not None else _descriptors(self._members())
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        if self._group is not None:
            self._group.kill()  # before the wait: what version 1 froze does not end by itself
        for descriptor in left:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        self._child.wait()
        _wait_for_end(left)
        if self._group is not None:
            self._group.close()

    def memory_reached(self) -> bool:
        """Whether the memory cap ended one of them."""
        return self._group is not None and self._group.oom_kills() > 0

    # --- one by one ---

    def _members(self) -> dict[int, "_Row"]:
        """The first process, its process group and session, and all their descendants."""
        table, first = _table(), self._child.pid
        members = {pid for pid, row in table.items() if first in (pid, row.group, row.session)}
        grown = True
        while grown:
            more = {pid for pid, row in table.items() if row.parent in members} - members
            members |= more
            grown = bool(more)
        return {pid: table[pid] for pid in members}

    def _stands(self) -> bool:
        """Whether all have stopped; seen twice without a new one between, since what runs can fork."""
        if self._group is not None and self.way != "signals":
            return self._group.is_frozen()
        before = self._members()
        return all(_stopped(pid) for pid in before) and before.keys() == self._members().keys()

    def _signal_each(self, number: signal.Signals) -> None:
        for descriptor in _descriptors(self._members()):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            os.close(descriptor)

    def _used_s(self) -> float:
        told = None if self._group is None else self._group.cpu_s()
        return sum(row.cpu_s for row in self._members().values()) if told is None else told


@dataclass(frozen=True)
class _Row:
    """A process as /proc tells it."""

    parent: int
    group: int
    session: int
    started: int
    cpu_s: float


def _table() -> dict[int, _Row]:
    """All processes that can be seen."""
    rows = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, no paths wanted
        if name.isdecimal() and (row := _row(int(name))) is not None:
            rows[int(name)] = row
    return rows


def _row(pid: int) -> _Row | None:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    numbers = [int(word) for word in words[1:20]]
    return _Row(numbers[0], numbers[1], numbers[2], numbers[18], (numbers[10] + numbers[11]) * _TICK_S)


def _stopped(pid: int) -> bool:
    """Whether every thread of the process stands still, or is gone."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return all((thread / "stat").read_text().rpartition(")")[2].split()[0] in "tTZX" for thread in threads)
    except OSError:
        return not Path(f"/proc/{pid}").exists()


def _wait_for_end(descriptors: list[int]) -> None:
    """Until the processes have ended, and not for ever; closes their descriptors."""
    poll, left, deadline = select.poll(), set(descriptors), time.monotonic() + EMPTY_S
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    while left and time.monotonic() < deadline:
        for ended, _ in poll.poll((deadline - time.monotonic()) * 1e3):
            poll.unregister(ended)
            left.remove(ended)
    for descriptor in descriptors:
        os.close(descriptor)
    if left:
        raise Hung(f"{len(left)} killed processes of the engine do not end")


def _descriptors(members: dict[int, _Row]) -> list[int]:
    """Descriptors of the processes; unlike ids they cannot come to mean another process."""
    found = []
    for pid, row in members.items():
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            again = _row(pid)
            if again is not None and again.started == row.started:
                found.append(descriptor)
            else:
                os.close(descriptor)
    return found
