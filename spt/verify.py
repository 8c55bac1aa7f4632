"""The replay checker: an entry is kept only while recomposing it gives, to the id, what it came from.

Three questions, each answered `ok`, `differs`, `residual` or `unavailable`:

- recompose: stock, requirements and delta against the tree of the entry's own commit;
- source: stock and deltas of that time against the tree of the system that the entry was distilled from;
- record: schema, trailers, references, commits and evidence against each other.

`unavailable` means that history is not here; it is never `ok`.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spt.difference import Difference, tree_differences
from spt.entry import check_records, lint
from spt.errors import Conflict, Missing, SptError
from spt.formats import read_jsonl
from spt.git.compose import Composition, Part, PreimageDiffers
from spt.git.message import Trailers, compose_message, read_trailers
from spt.git.tree import compare
from spt.memory import STOCK, Memory, Recorded, patch_reference, records_path
from spt.source import lines_of, source_differences

__all__ = ["DIFFERS", "OK", "RESIDUAL", "UNAVAILABLE", "Finding", "Report", "exit_code", "recompose", "verify"]

OK, DIFFERS, RESIDUAL, UNAVAILABLE = "ok", "differs", "residual", "unavailable here"


@dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    state: str
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Report:
    """What the checker says about one entry."""

    name: str
    recompose: Finding
    source: Finding
    record: Finding

    @property
    def findings(self) -> dict[str, Finding]:
        return {"recompose": self.recompose, "source": self.source, "record": self.record}


def exit_code(reports: Iterable[Report]) -> int:
    """1 where anything differs, else 4 where history is missing, else 0."""
    states = {finding.state for report in reports for finding in report.findings.values()}
    return 1 if states & {DIFFERS, RESIDUAL} else 4 if UNAVAILABLE in states else 0


def verify(memory: Memory, name: str) -> Report:
    """Checks one entry; Missing for a name that no branch has."""
    if name in memory.broken:
        error = memory.broken[name]
        if isinstance(error, Missing):
            absent = Finding(UNAVAILABLE, (Difference("history", error.message),))
            return Report(name, absent, absent, absent)
        broken = Finding(DIFFERS, (Difference("record", error.message),))
        skipped = Finding(UNAVAILABLE, (Difference("history", "the branch is no entry"),))
        return Report(name, skipped, skipped, broken)
    entry = memory.entry(name)
    return Report(name, recompose(memory, entry), source(memory, name), record(memory, entry))


def _answer(action: Callable[[], Iterable[Difference]]) -> Finding:
    """The finding of a check that yields differences; its errors are findings too."""
    try:
        differences = tuple(action())
    except Missing as error:
        return Finding(UNAVAILABLE, (Difference("history", error.message),))
    except PreimageDiffers as error:
        return Finding(DIFFERS, (Difference("dependency", error.message, error.row.path, error.name),))
    except Conflict as error:
        return Finding(DIFFERS, (Difference("conflict", error.message),))
    except SptError as error:
        return Finding(DIFFERS, (Difference("record", error.message),))
    kinds = {difference.kind for difference in differences}
    state = OK if not kinds else RESIDUAL if kinds == {"residual"} else DIFFERS
    return Finding(UNAVAILABLE if kinds == {"history"} else state, differences)


# Recompose.


def recompose(memory: Memory, entry: Recorded) -> Finding:
    """Requirements plus delta, against base and tree of P."""
    return _answer(lambda: _recompose(memory, entry))


def _recompose(memory: Memory, entry: Recorded) -> Iterator[Difference]:
    said = read_trailers(entry.tip.message).delta
    own = entry.part
    if said is not None and said != entry.delta.id:
        own = Part(entry.name, entry.part.requires, memory.part_at(entry.name, said)[0].delta)
    composition = _composition(memory, entry, own)
    below = composition.below(entry.name)
    base = composition.tree(below)
    result = composition.step(base, below, entry.name)
    if base != entry.base.tree:
        yield from tree_differences(composition, below, base, entry.base.tree, dependency=True)
    elif result != entry.patch.tree:
        yield from tree_differences(composition, below | {entry.name}, result, entry.patch.tree)


def _composition(memory: Memory, entry: Recorded, own: Part) -> Composition:
    """Over the stock and with the deltas that the entry was made on: usually those of now."""
    if own is entry.part and entry.stock == memory.stock and _pins_are_current(memory, entry):
        return memory.composition()
    parts = {own.name: own}
    waiting = list(entry.pins)
    while waiting:
        name, delta_id = waiting.pop()
        if name not in parts:
            part, patch = memory.part_at(name, delta_id)
            parts[name] = part
            waiting.extend(read_trailers(patch.message).requires)
    return Composition(memory.objects, entry.stock, parts.values())


def _pins_are_current(memory: Memory, entry: Recorded) -> bool:
    composition = memory.composition()
    if entry.name not in composition.parts:
        return False
    closure = [memory.entries[name] for name in composition.closures[entry.name]]
    return all(memory.entries[other].delta.id == delta_id for one in closure for other, delta_id in one.pins)


# Source.


def source(memory: Memory, name: str) -> Finding:
    """The newest line of each source system, recomposed with stock and deltas of that time."""
    return _answer(lambda: _sources(memory, name))


def _sources(memory: Memory, name: str) -> Iterator[Difference]:
    newest = {line["tree"]: line for line in lines_of(memory, name)}
    if not newest:
        yield Difference("history", "no source is recorded")
    for line in newest.values():
        if name not in (pin.partition("@")[0] for pin in line["entries"]):
            yield Difference("record", f"source {line['tree'][:12]} does not list '{name}'")
        yield from source_differences(memory, line)


# Record.


def record(memory: Memory, entry: Recorded) -> Finding:
    """entry.yaml, trailers, references, commits and evidence, each against the others."""
    return _answer(lambda: _record(memory, entry))


def _record(memory: Memory, entry: Recorded) -> Iterator[Difference]:
    name, objects = entry.name, memory.objects
    for text in (*_branch_problems(memory, entry), *_trailer_problems(entry), *_reference_problems(memory, entry)):
        yield Difference("record", text)
    card = memory.card(name)
    if card.name != name:
        yield Difference("record", f"entry.yaml is of entry '{card.name}'")
    if set(card.requires) != entry.part.requires:
        yield Difference(
            "dependency", f"entry.yaml requires {list(card.requires)}, its commit {sorted(entry.part.requires)}"
        )
    said = Trailers(entry=name, delta=entry.delta.id, requires=entry.pins)
    message = compose_message(card.subject, card.body, said)
    if (entry.patch.message, entry.patch.author) != (message, card.author):
        yield Difference("record", f"commit {entry.patch.oid[:12]} has not the author, date and message of entry.yaml")
    lint(objects, card, entry.delta, entry.base.tree, entry.patch.tree, memory.layout)
    records = memory.records(name)
    check_records(name, records)
    yield from _evidence_problems(name, records)


def _branch_problems(memory: Memory, entry: Recorded) -> Iterator[str]:
    objects, own = memory.objects, f"{records_path(entry.name)}/"
    if objects.lookup(entry.patch.tree, ".spt") is not None:
        yield f"commit {entry.patch.oid[:12]} holds records beside its code"
    commit = entry.tip
    while commit.oid != entry.patch.oid:
        parent = objects.commit(commit.parents[0])
        foreign = [row.path for row in compare(objects, parent.tree, commit.tree).rows if not row.path.startswith(own)]
        if foreign:
            yield f"commit {commit.oid[:12]} touches '{foreign[0]}', which is no record of '{entry.name}'"
        commit = parent
    if entry.base.tree != entry.stock and entry.base.message.strip() != entry.base.tree:
        yield f"its base {entry.base.oid[:12]} is not composed"


def _trailer_problems(entry: Recorded) -> Iterator[str]:
    pairs = (
        ("R", read_trailers(entry.tip.message), entry.base.tree, entry.patch.tree),
        ("P", read_trailers(entry.patch.message), None, None),
    )
    for where, said, base, result in pairs:
        true = Trailers(entry.name, entry.delta.id, entry.pins, base, result)
        for line in sorted(set(true.lines()) ^ set(said.lines())):
            yield f"trailer '{line}' {'is missing from' if line in true.lines() else 'is wrong on'} {where}"


def _reference_problems(memory: Memory, entry: Recorded) -> Iterator[str]:
    pin = patch_reference(entry.name, entry.delta.id)
    if memory.store.reference(pin) != entry.patch.oid:
        yield f"reference '{pin}' does not keep commit {entry.patch.oid[:12]}"
    stock = memory.store.reference(f"{STOCK}{entry.stock[:12]}")
    if stock is None or memory.objects.commit(stock).tree != entry.stock:
        yield f"reference '{STOCK}{entry.stock[:12]}' does not keep the stock of the entry"


def _evidence_problems(name: str, records: dict[str, bytes]) -> Iterator[Difference]:
    for path, data in records.items():
        if not (path.startswith("evidence/") and path.endswith(".jsonl") and path.count("/") == 1):
            continue
        for line in read_jsonl(data, f"{name}/{path}", "evidence"):
            samples = line["samples"]
            if samples is None:
                continue
            held = records.get(samples["path"]) or records.get(f"evidence/{samples['path']}")
            if held is None:
                yield Difference("history", f"samples '{samples['path']}' of {path} are not here")
            elif hashlib.sha256(held).hexdigest() != samples["sha256"]:
                yield Difference("record", f"samples '{samples['path']}' are not those that {path} was computed from")
