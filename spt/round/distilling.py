"""What a round leaves to the memory: new entries of mechanisms that were promoted, evidence on those that were reused.

A commit of the system that is no entry's is named as residual.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spt.apply import entries_of, history
from spt.campaign import RULE
from spt.entry import check_name
from spt.errors import SptError
from spt.formats import write_jsonl
from spt.git.message import read_trailers
from spt.git.objects import Commit, Oid
from spt.git.store import Store
from spt.making import make_entry
from spt.memory import Memory
from spt.record import file_of, line_of
from spt.round.bench import Bench
from spt.round.best import commits_between
from spt.round.state import Course
from spt.source import commit_delta
from spt.verdicts import Ledger

__all__ = ["Distilled", "distil", "residual_of"]

_INVARIANT = "in exact mode it says what stock says, token for token, on generated prompts"


@dataclass(frozen=True)
class Distilled:
    """The data of one event `entry`."""

    name: str
    delta: str
    discovery: bool
    promoted: str
    evidence: str | None  # the key of the timing verdict that became a line of it
    note: str = ""

    def record(self) -> dict[str, Any]:
        return dict(vars(self))


def distil(bench: Bench, course: Course, tip: Oid) -> Iterator[Distilled | str]:
    """What a promoted direction leaves: entries with their evidence, or, in words, why its commit became none.

    tip: the newest commit of the system's code.  All is published before it is told; done again, it adds nothing.
    """
    before, after = course.direction.base_commit, str(course.end["commit"])
    memory = Memory.of(bench.store.again())
    commits = commits_between(memory.objects, before, after)
    for commit in commits:
        said = read_trailers(commit.message)
        if said.entry is not None and said.delta is not None:
            key = _evidence(bench, memory, said.entry, course, "+".join(entries_of(history(memory, after)[1])))
            note = "" if key else "no verdict that may be evidence"
            yield Distilled(said.entry, said.delta, False, _first(course), key, note)
        elif commit_delta(memory, commit).rows:
            yield _discovered(bench, memory, commit, tip, course)


def _discovered(bench: Bench, memory: Memory, commit: Commit, tip: Oid, course: Course) -> Distilled | str:
    """A commit of an agent's as an entry of its own, on the entries that were there before it."""
    name = check_name(_first(course))
    requires = sorted(entries_of(history(memory, commit.parents[0])[1]))
    try:
        with memory.store.locked():
            make_entry(memory, name, tip, [commit.oid], requires, None, "rounding", [_INVARIANT], partial=True)
            memory.store.publish(f"spt round {bench.settings.round}: entry {name}")
    except SptError as error:
        return f"{name}: {error.message}"
    key = _evidence(bench, Memory.of(memory.store), name, course)
    return Distilled(name, memory.entry(name).delta.id, True, name, key)


def _first(course: Course) -> str:
    """The direction whose mechanism it is."""
    return course.direction.stacks or course.direction.id


def _evidence(bench: Bench, memory: Memory, name: str, course: Course, system: str | None = None) -> str | None:
    """Adds the direction's timing verdict to an entry's evidence, once; its key, or None where it may be none.

    system: ENTRY+ENTRY, what the direction's system is made of, where that may be none of the usual.
    """
    key = course.end["timing"]
    if bench.settings.rule != RULE or name not in memory.entries:
        return None
    ledger = Ledger(memory.store)
    try:
        line, samples = line_of(memory, ledger, bench.deployment, name, key, system)
    except SptError:
        return None  # of a system that is not made of entries alone: the verdict stays in the ledger
    records = memory.records(name)
    path, text = file_of(line, bench.deployment), write_jsonl([line])
    held = records.get(path, b"")
    if text.rstrip() not in held.splitlines():
        entry, card = memory.entry(name), memory.card(name)
        more = {path: held + text, str(line["samples"]["path"]): samples}
        with memory.store.locked():
            memory.stage_entry(card, entry.delta, entry.base.tree, {**records, **more})
            memory.store.publish(f"spt round {bench.settings.round}: evidence of {name}")
    return str(key)


def residual_of(store: Store, start: Oid, tip: Oid, entries: Sequence[Mapping[str, Any]]) -> list[Oid]:
    """The commits of a round's series that change code and became no entry."""
    memory = Memory.of(store)
    taken = {entry["promoted"] for entry in entries}
    found = []
    for commit in commits_between(memory.objects, start, tip):
        if read_trailers(commit.message).entry is None and commit_delta(memory, commit).rows:
            direction = _direction(commit)
            if direction not in taken:
                found.append(commit.oid)
    return found


def _direction(commit: Commit) -> str | None:
    mark = "Spt-Direction: "
    return next((line.removeprefix(mark) for line in commit.message.splitlines() if line.startswith(mark)), None)
