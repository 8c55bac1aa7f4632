"""Distilling: some commits of a system become an entry, if with it the system recomposes exactly.

The entry's delta is what its commits do on top of its requirements, each commit replayed file by file.  It is
kept only if stock, the system's entries and the new one make the very tree that the system has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spt.apply import entries_of, history
from spt.entry import Card
from spt.errors import Differs, Missing, Usage
from spt.formats import write_jsonl
from spt.git.compose import topological
from spt.git.objects import Commit, Oid
from spt.git.tree import Delta, Row
from spt.memory import Memory
from spt.source import commit_delta, lines_of, replay, source_differences, stage_source
from spt.system import system_tree

__all__ = ["Draft", "draft", "keep"]


@dataclass(frozen=True)
class Draft:
    """A delta found in a system, before it has a card."""

    requires: tuple[str, ...]
    base: Oid
    delta: Delta
    commits: tuple[Commit, ...]
    tree: Oid
    others: dict[str, str]  # the system's other entries with their deltas

    @property
    def newest(self) -> Commit:
        return self.commits[-1]


def draft(memory: Memory, requires: Sequence[str], system: Oid, chosen: Sequence[Oid]) -> Draft:
    """What some commits of a system do on top of some entries; stages the system's branch as a source.

    Raises Conflict where a chosen commit builds on one that is neither chosen nor a requirement's.
    """
    objects = memory.objects
    stock, newest_first = history(memory, system)
    if stock != memory.stock:
        hint = "`spt init --stock REV` makes it the stock; `spt entry refresh` then carries the entries on"
        raise Usage(f"the system stands on stock {stock[:12]}, not on this repository's {memory.stock[:12]}", hint)
    tree = system_tree(objects, objects.commit(system).tree, memory.layout)
    originals = newest_first[::-1]
    copies = stage_source(memory, tree, memory.stage_stock(stock, current=False), originals)
    selected = _selected(originals, copies, chosen)
    base = memory.composition().tree(memory.closure(requires))
    delta = _delta(memory, base, selected)
    others = _others(memory, requires, newest_first, tree)
    return Draft(tuple(sorted(requires)), base, delta, tuple(selected), tree, others)


def keep(memory: Memory, card: Card, card_data: bytes, found: Draft, *, partial: bool = False) -> dict[str, Any]:
    """Stages a draft as an entry with its source, which entries distilled from the system before get too.

    Returns the source line.  Raises Differs where the system does not recompose, or where commits of it belong to
    no entry (with `partial`, those may wait for entries of their own).  After an error nothing may be published.
    """
    name = card.name
    _, patch = memory.stage_patch(card, found.delta, found.base)
    _refuse_taken(memory, name, patch, card_data)
    commits = {one: oids for line in _lines(memory, found.tree) for one, oids in line.get("commits", {}).items()}
    line = {
        "stock_tree": memory.stock,
        "entries": _listed(memory, {**found.others, name: found.delta.id}),
        "tree": found.tree,
        "commits": {**commits, name: [commit.oid for commit in found.commits]},
    }
    _refuse_other_source(memory, name, line, partial)
    if name not in memory.entries:
        records = {"entry.yaml": card_data, "source.jsonl": write_jsonl([line])}
        memory.stage_entry(card, found.delta, found.base, records)
    for other in commits:
        _append(memory, other, line)
    return line


def _refuse_taken(memory: Memory, name: str, patch: Commit, card_data: bytes) -> None:
    """A name may be taken only by this very entry: then a run that was killed is being finished."""
    taken = name in memory.broken
    if name in memory.entries:
        same = memory.entry(name).patch.oid == patch.oid and memory.records(name).get("entry.yaml") == card_data
        taken = not same
    if taken:
        raise Usage(f"there is an entry '{name}' already", "`spt entry edit` changes it; or choose another name")


def _append(memory: Memory, name: str, line: dict[str, Any]) -> None:
    """Gives an entry that was distilled from the same system the line that knows more of its commits."""
    entry = memory.entries.get(name)
    if entry is None or entry.stock != memory.stock or f"{name}@{entry.delta.id}" not in line["entries"]:
        return
    records = memory.records(name)
    held, new = records.get("source.jsonl", b""), write_jsonl([line])
    if new not in held.splitlines(keepends=True):
        memory.stage_entry(memory.card(name), entry.delta, entry.base.tree, {**records, "source.jsonl": held + new})


def _selected(originals: Sequence[Commit], copies: Sequence[Commit], chosen: Sequence[Oid]) -> list[Commit]:
    for oid in chosen:
        original = next((commit for commit in originals if commit.oid == oid), None)
        if original is None:
            raise Missing(f"commit '{oid[:12]}' is not in the system", "`git log --first-parent` lists its commits")
        if len(original.parents) != 1:
            raise Usage(f"commit '{oid[:12]}' is a merge", "an entry is made of plain commits")
    pairs = zip(originals, copies, strict=True)
    return [copy for original, copy in pairs if original.oid in set(chosen)]


def _delta(memory: Memory, base: Oid, commits: Sequence[Commit]) -> Delta:
    result = replay(memory, base, commits)
    paths = sorted({row.path for commit in commits for row in commit_delta(memory, commit).rows})
    rows = (Row(path, memory.objects.lookup(base, path), memory.objects.lookup(result, path)) for path in paths)
    return Delta(tuple(row for row in rows if row.old != row.new))


def _others(memory: Memory, requires: Iterable[str], newest_first: Iterable[Commit], tree: Oid) -> dict[str, str]:
    """The system's entries: by trailer, by what was distilled from it before, by requirement."""
    pins = entries_of(newest_first)
    for line in _lines(memory, tree):
        pins.update(pin.split("@") for pin in line["entries"])
    for name in memory.closure(requires):
        pins.setdefault(name, memory.entry(name).delta.id)
    return pins


def _lines(memory: Memory, tree: Oid) -> list[dict[str, Any]]:
    return [line for name in memory.entries for line in lines_of(memory, name) if line["tree"] == tree]


def _listed(memory: Memory, pins: dict[str, str]) -> list[str]:
    parts = [memory.part_at(name, delta_id)[0] for name, delta_id in pins.items()]
    return [f"{name}@{pins[name]}" for name in topological({part.name: part.requires for part in parts})]


def _refuse_other_source(memory: Memory, name: str, line: dict[str, Any], partial: bool) -> None:
    problems = list(source_differences(memory, line))
    wrong = [problem for problem in problems if problem.kind != "residual"]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        hint = "a requirement may be missing (--requires), or a commit (--from)"
        raise Differs(f"entry '{name}' does not recompose to its source: {wrong[0].text}{more}", hint)
    if problems and not partial:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        hint = "name it with --from, or use --partial if an entry of its own will follow"
        raise Differs(f"{problems[0].text}{more}", hint)
