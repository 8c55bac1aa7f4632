"""How long a round may work: until when this process goes on, and what it has spent of wall and device time."""

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spt.errors import SptError, Usage

__all__ = ["Budget", "Stopped", "Waiting", "checked_minutes"]


class Stopped(SptError):
    """The round was told to stop, or its minutes are up; the journal says so, and `spt round resume` goes on."""


def checked_minutes(minutes: float | None, flag: str) -> float | None:
    """The minutes; Usage where nothing can be done in so many."""
    if minutes is None:
        return None
    if not 0 < minutes < 1e7:
        raise Usage(f"{flag} {minutes:g}: no round can be run in so many minutes", "leave it out for no limit")
    return minutes


class Waiting(Stopped):
    """What another machine is to measure has not come back; the jobs lie ready for `spt round pack`."""


class Budget:
    """This process's minutes, the wish to stop, and a meter of device time.

    stop_file: whoever makes it wants the round to stop.
    """

    def __init__(self, minutes: float | None, stop_file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begun_s = clock()
        self.deadline_s = None if minutes is None else self.begun_s + 60 * minutes
        self.stop_file = stop_file
        self.device_s = 0.0
        self._halted = threading.Event()

    def part(self) -> "Budget":
        """A meter of its own for one of several that work side by side; all else is shared."""
        found = copy.copy(self)
        found.device_s = 0.0
        return found

    def halt(self) -> None:
        """Lets all that share this budget stop at their next step."""
        self._halted.set()

    @property
    def halted(self) -> bool:
        """Whether somebody did."""
        return self._halted.is_set()

    def check_halted(self) -> None:
        """Raises Stopped where somebody halted: what came of work that was cut off is no outcome."""
        if self.halted:
            raise Stopped("what works beside it has ended", "`spt round resume` goes on with it")

    def left_s(self) -> float:
        """Seconds until the deadline, which there must be; never below 0."""
        assert self.deadline_s is not None
        return max(0.0, self.deadline_s - self._clock())

    def check(self) -> None:
        """Raises Stopped where the round is to stop now."""
        self.check_halted()
        if self.stop_file.exists():
            raise Stopped("the round was told to stop", "`spt round resume` goes on with it")
        if self.deadline_s is not None and self._clock() >= self.deadline_s:
            raise Stopped("the time is up", "`spt round resume` goes on with the round from there")

    @contextlib.contextmanager
    def device(self) -> Iterator[None]:
        """Counts the time in the block as the device's."""
        begun_s = self._clock()
        try:
            yield
        finally:
            self.device_s += self._clock() - begun_s
