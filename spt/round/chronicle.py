"""A round's journal as all that work on it in one process write it: one at a time, with a line for people beside."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from spt.git.store import Store
from spt.round.agents import Spent
from spt.round.journal import Journal
from spt.round.settings import Settings
from spt.round.state import State, fold

__all__ = ["Chronicle", "Say"]

Say = Callable[[str], None]


class Chronicle:
    """The journal, and `say`, which gets a line for people whenever something is decided.

    Whoever reads the state and appends what follows from it does so in one block of `alone`.
    """

    def __init__(self, journal: Journal, settings: Settings, say: Say) -> None:
        self.journal, self.settings = journal, settings
        self._say = say
        self.append = journal.append
        self._lock = journal.lock
        self._told_s = time.monotonic()

    @property
    def store(self) -> Store:
        """Where objects are made that an event names: they are published with it."""
        return self.journal.store

    @contextmanager
    def alone(self) -> Iterator[State]:
        """The state as it is, while nobody else changes it."""
        with self._lock:
            yield self.state()

    def state(self) -> State:
        """Where the round stands."""
        with self._lock:
            return fold(self.journal.events(), self.settings.start_commit)

    def say(self, line: str) -> None:
        with self._lock:
            self._say(line)

    def spend(self, phase: str, spent: Spent, direction: str | None = None) -> None:
        """Tells what was spent.  Its wall time is what has passed since anybody told last, so that the sum is no more
        than what has passed, however many work side by side."""
        with self._lock:
            now_s = time.monotonic()
            self.append(phase, "spent", replace(spent, wall_s=now_s - self._told_s).record(), direction)
            self._told_s = now_s
