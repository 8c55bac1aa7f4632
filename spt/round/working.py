"""Work on a round: one process at a time, which can be asked to stop, and clears away what a killed one left."""

import contextlib
import fcntl
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from spt.campaign import Emit, sweep_parts
from spt.errors import SptError, Unsupported
from spt.git.store import Store
from spt.round.bench import Bench, room_of
from spt.round.budget import Budget
from spt.round.bundle import INCOMING, RESCUE
from spt.round.chronicle import Say
from spt.round.clone import sweep
from spt.round.executors import make_executor
from spt.round.far import FarBench
from spt.round.journal import BESIDE, BEST, TREES, TRY, Journal, rounds
from spt.round.machine import Machine
from spt.round.remote import RemoteBench
from spt.round.settings import Settings
from spt.round.state import State, fold

__all__ = ["ask_to_stop", "is_at_work", "standing", "state_of", "work"]

_LOCK, _STOP = "lock", "stop"
_STOP_WAIT_S, _POLL_S = 30.0, 0.1


def state_of(journal: Journal) -> State:
    """Where a round stands."""
    return fold(journal.events(), Settings.of(journal.settings()).start_commit)


def standing(store: Store, damaged: list[SptError]) -> Iterator[tuple[Journal, State]]:
    """Every round with where it stands, by name; what is wrong with one that cannot be read goes to `damaged`."""
    for name in rounds(store):
        journal = Journal(store, name)
        try:
            state = state_of(journal)
        except SptError as error:
            damaged.append(error)
            continue
        yield journal, state


def work(journal: Journal, minutes: float | None, emit: Emit, say: Say) -> State:
    """Goes on with a round until it has ended, is told to stop, or its minutes are up (Stopped)."""
    store = journal.store
    settings, room = Settings.of(journal.settings()), room_of(store, journal.round)
    with _held(room):
        (room / _STOP).unlink(missing_ok=True)
        _clear(store, room, journal.round)
        state = state_of(journal)
        if state.outcome is not None:
            return state
        if state.phases:
            journal.append(state.phase, "resumed", {})
        with _bench(store, settings, Budget(minutes, room / _STOP), emit) as bench:
            return Machine(journal, bench, say).run()


@contextlib.contextmanager
def _bench(store: Store, settings: Settings, budget: Budget, emit: Emit) -> Iterator[Bench]:
    """The bench that a round asks: of this machine, of one that a person carries jobs to, or of an executor's hosts."""
    if settings.executor is None:
        yield (FarBench if settings.elsewhere else Bench)(store, settings, budget, emit)
        return
    executor = make_executor(settings.executor)
    executor.check()
    with contextlib.closing(executor):
        executor.open()
        yield RemoteBench(store, settings, budget, emit, executor=executor)


def is_at_work(store: Store, round_: str) -> bool:
    """Whether a process works on the round now."""
    try:
        with _held(room_of(store, round_), make=False):
            return False
    except Unsupported:
        return True


def ask_to_stop(journal: Journal) -> bool:
    """Lets the process that works on a round stop after what it is at; whether there was one.

    Unsupported where it has not stopped after a while.
    """
    room = room_of(journal.store, journal.round)
    if not is_at_work(journal.store, journal.round):
        return False
    (room / _STOP).touch()
    until_s = time.monotonic() + _STOP_WAIT_S
    while is_at_work(journal.store, journal.round):
        if time.monotonic() > until_s:
            raise Unsupported(
                f"the round '{journal.round}' has not stopped yet", "it stops at its next step; `spt round status` says"
            )
        time.sleep(_POLL_S)
    return True


@contextlib.contextmanager
def _held(room: Path, *, make: bool = True) -> Iterator[None]:
    """Holds the round's own lock, which a killed process gives up by itself; Unsupported where another has it."""
    if make:
        room.mkdir(parents=True, exist_ok=True)
    if not room.is_dir():
        yield
        return
    with (room / _LOCK).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unsupported(
                f"another process works on the round '{room.name}'", "`spt round stop` lets it stop"
            ) from None
        yield


def _clear(store: Store, room: Path, round_: str) -> None:
    """Removes what a killed process left: half-made folders, agents' clones (their work is rescued), and locks of
    references that only rounds write."""
    for part in room.glob("*/.new-*"):
        shutil.rmtree(part, ignore_errors=True)
    for shared in store.state.iterdir():
        sweep_parts(shared)
    shutil.rmtree(room / "measuring", ignore_errors=True)
    with store.locked():
        own = (f"{BEST}{round_}", *(f"{prefix}{round_}/" for prefix in (BESIDE, TREES, TRY, INCOMING, RESCUE)))
        store.sweep_locks((f"refs/spt/round/{round_}", *own, "refs/spt/verdicts"))
    sweep(store)
