"""What a maintainer looks at after a round: its commits, what agents wrote where that differs, and the verdicts.

All of it is plain git as well; docs/rounds.md has the commands.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from spt.git.program import git
from spt.git.store import Store
from spt.round.best import code_commit
from spt.round.journal import Journal, try_reference
from spt.round.state import Course, State

__all__ = ["Reviewed", "review"]

_PLAIN = ("--no-color", "--no-show-signature", "--no-decorate", "--format=medium")  # whatever its user's own log is


@dataclass(frozen=True)
class Reviewed:
    """One promoted direction: its commits as `git log --stat` shows them, and how they differ from the agent's own.

    range_diff: empty where the series holds the very commits that the agent made.
    """

    course: Course
    log: str
    range_diff: str


def review(journal: Journal, state: State) -> Iterator[Reviewed]:
    """Every direction that moved the best, in order."""
    store = journal.store
    for course in state.promoted:
        base, tip = course.direction.base_commit, str(course.end["commit"])
        log = _git(store, "log", *_PLAIN, "--reverse", "--stat", f"{base}..{tip}") if base != tip else ""
        yield Reviewed(course, log, _range_diff(store, journal.round, course, base, tip))


def _range_diff(store: Store, round_: str, course: Course, base: str, tip: str) -> str:
    """How the series differs from the commits that the agent left under refs/spt/try."""
    tried = store.reference(try_reference(round_, course.direction.id))
    if tried is None or code_commit(store.objects, tried) == tip:
        return ""
    return _git(store, "range-diff", "--no-color", f"{base}..{tried}", f"{base}..{tip}")


def _git(store: Store, command: str, *arguments: str) -> str:
    return git(command, *arguments, git_dir=store.common).decode(errors="replace")
