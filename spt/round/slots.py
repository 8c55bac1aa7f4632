"""Work side by side: a slot is a place, with devices of its own, where one direction is worked on at a time."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from spt.errors import SptError
from spt.round.budget import Budget, Stopped, Waiting
from spt.round.session import stop_all

__all__ = ["Turns", "side_by_side"]

_POLL_S = 0.2
_LEAVE_S = 5.0
_ENDED = "what works beside it has ended"


class Turns:
    """Whose turn it is on a device, or in a folder, among the slots of one process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def held(self, names: Iterable[str], check: Callable[[], None]) -> Iterator[None]:
        """Has all of the names to itself in the block; `check` is called while another has one, and may raise."""
        with self._guard:
            locks = [self._locks.setdefault(name, threading.Lock()) for name in sorted(set(names))]
        with contextlib.ExitStack() as stack:
            for lock in locks:
                while not lock.acquire(timeout=_POLL_S):
                    check()
                stack.callback(lock.release)
            yield


def side_by_side(count: int, work: Callable[[int], None], budget: Budget) -> None:
    """Calls `work` with each number below `count` at the same time, and returns when all have ended.

    An error, or an interrupt, ends the others at once where they wait for an agent, else at their next step, and is
    raised; one that was told to stop, or waits for another machine, ends nobody.
    """
    if count == 1:
        work(0)
        return
    errors: list[BaseException] = []

    def end() -> None:
        budget.halt()
        stop_all(_ENDED)

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - it is raised where the thread was started
            errors.append(error)
            if not isinstance(error, Stopped):
                end()

    # Daemons, so that an interrupt ends the process whatever they wait for: that is then as after a kill.
    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(_POLL_S)
            if budget.halted:
                stop_all(_ENDED)  # what was opened since, too
    except BaseException:
        end()
        for thread in threads:
            thread.join(_LEAVE_S)
        raise
    if errors:
        raise min(errors, key=_weight)


def _weight(error: BaseException) -> int:
    """What is told of several errors: a fault of the program first, that the round was to stop last."""
    if isinstance(error, Stopped):
        return 3 if isinstance(error, Waiting) else 2
    return 1 if isinstance(error, SptError) else 0
