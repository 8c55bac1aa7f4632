"""A profile of what a system does, which its own engine takes while it answers a few requests once more.

Never while answers are timed: a profile distorts.  It is the engine's word, so only its form is checked.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from harness import shape
from harness.conversation import Conversation
from harness.errors import Hung, Refused, Violation
from harness.request import Request
from harness.run import Runner
from harness.shape import constant, integer, mapping, number, one_of, record

__all__ = ["PROFILE", "Unkept", "Unprofiled", "check_profile", "take_profile"]

PROFILE = "profile.jsonl"  # in the engine's room too
STEP = frozenset(("draft", "verify", "accept", "host"))
PHASES = STEP | {"prefill"}
MOST_ANSWERS = 8  # or as many as are open at once
PREFILL_ANSWERS = 4  # what a prefill is worth, which is profiled only between windows: no floor is held against it
_ABSENT = ("unsupported", "unknown_op")

_ROW = record(
    {
        "v": constant(1),
        "kind": constant("profile"),
        "phase": one_of(*sorted(PHASES)),
        "steps": integer(1),
        **{name: number(0) for name in ("rows", "context", "wall_us", "profiled_us")},
        "batch": number(1),
        "residual_us": number(),
        "classes": mapping(record({"us": number(0), "calls": number(0)})),
    }
)


class Unprofiled(Exception):
    """There is no profile, and that is no failure; `reason` is the summary's word for why (docs/records.md)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Unkept:
    """Where answers go that nobody keeps, since they were under a profile."""

    def add(self, answer: dict[str, Any]) -> None:
        """Lets an answer go."""

    def add_full(self, conversation: Conversation) -> None:
        """Lets go that a session is full."""


def take_profile(
    runner: Runner,
    requests: Sequence[Request],
    deadline_s: float | None,
    said: Callable[[int, int], None],
    *,
    warm: bool,
) -> bytes:
    """The lines of a profile, of as few answers as give rows for each phase of a step, or of a bounded number.

    A prefill gets its row where it comes soon.

    The runner's engine records nothing; with `warm` it answers as many requests first as are open at once, so that
    nothing is captured or compiled under the profile.  `said` gets how many answers came, and the most that are asked.
    Raises Unprofiled where the engine takes none, or not of every phase of a step; Hung where the time is up.
    """
    engine, at_once = runner.engine, runner.job.deployment.concurrency
    most = max(MOST_ANSWERS, at_once)
    if warm:
        _answer(runner, requests, deadline_s, lambda count: count >= at_once)
    try:
        engine.profile(PROFILE)
    except Refused as error:
        if error.code in _ABSENT:
            raise Unprofiled("unsupported", f"no profile: {error.message}") from None
        raise
    file = engine.room / PROFILE

    def enough(count: int) -> bool:
        said(count, most)
        phases = _phases(_whole_lines(file))
        return count >= most or (phases >= STEP and (phases >= PHASES or count >= PREFILL_ANSWERS))

    count = _answer(runner, requests, deadline_s, enough)
    engine.profile(None)
    data = _whole_lines(file)
    if not _phases(data) >= STEP:
        raise Unprofiled(
            "short",
            f"no profile: {count} answers held no whole window of steps; measure longer answers, or more requests,"
            " into another folder",
        )
    return data


def check_profile(path: Path) -> int:
    """How many profiled steps a file holds; `shape.Mismatch` where it is no profile of whole steps."""
    data = path.read_bytes()
    rows = _rows(data.splitlines())
    missing = sorted(STEP - {row["phase"] for row in rows})
    if missing or not data.endswith(b"\n"):
        raise shape.Mismatch(f"it has no phase '{missing[0]}'" if missing else "its last line has no end")
    return sum(row["steps"] for row in rows if row["phase"] == "verify")


def _answer(
    runner: Runner, requests: Sequence[Request], deadline_s: float | None, enough: Callable[[int], bool]
) -> int:
    """Has requests answered anew until `enough` says so of their number; returns it."""
    count = 0

    def note(request: Request, answer: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        runner.stopped = runner.stopped or enough(count)

    runner.noted, runner.stopped = note, False
    runner.work(deque(map(Conversation, requests)), deadline_s)
    if runner.active:
        raise Hung("the time was up before a profile was whole")
    return count


def _whole_lines(file: Path) -> bytes:
    data = file.read_bytes() if file.is_file() else b""
    return data[: data.rfind(b"\n") + 1]


def _phases(data: bytes) -> set[str]:
    try:
        return {row["phase"] for row in _rows(data.splitlines())}
    except shape.Mismatch as error:
        raise Violation(f"the engine's profile is none: {error}") from None


def _rows(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    rows = [shape.loads(line) for line in lines]
    for row in rows:
        _ROW(row, "the row")
    return rows
