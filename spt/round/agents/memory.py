"""The agent `memory`: no model; every entry whose requirements fit, each with the variants of its card.

It runs in the controller: what it proposes was composed of entries of this repository.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from spt.apply import apply, entries_of, history
from spt.entry import Card
from spt.errors import SptError
from spt.git.objects import Oid
from spt.git.store import Store
from spt.memory import Memory
from spt.round.agents import Task, Tools, Workshop, measure_all
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict
from spt.round.journal import keep_composed
from spt.system import Value, check_options, options_of, system_tree

__all__ = ["MemoryAgent", "make"]

_PREFIX = "memory-"
_MOST_ID = 64
_ANY = "cpu"  # a device that needs no kernel of its own


def make(argument: str, workshop: Workshop) -> "MemoryAgent":
    """The agent; `argument` names entries, with commas between them, where not all are to be tried."""
    names = tuple(name for name in argument.split(",") if name)
    memory = Memory.of(Store.find(workshop.repository))
    for name in names:
        memory.entry(name)
    return MemoryAgent(workshop, names)


@dataclass(frozen=True)
class MemoryAgent:
    """`names` are the entries to try; all where there are none."""

    workshop: Workshop
    names: tuple[str, ...] = ()
    name: str = "memory"

    def _memory(self) -> Memory:
        return Memory.of(Store.find(self.workshop.repository))

    def propose(self, task: Task) -> list[Direction]:
        """A direction for each entry that is not in the base and fits; those that require fewer others first."""
        if task.phase != "explore":
            return []
        memory = self._memory()
        there = set(entries_of(history(memory, task.base_commit)[1]))
        names = [name for name in self.names or sorted(memory.entries) if name not in there]
        # One that the user named is a direction all the same, and its end says why it does not fit.
        fitting = [name for name in names if name in self.names or not self._misfit(memory, name)]
        fitting = [name for name in fitting if _id(name) not in task.taken]
        ordered = sorted(fitting, key=lambda name: (len(memory.closure([name]) - there), name))
        return [self._direction(memory, name, task) for name in ordered]

    def _direction(self, memory: Memory, name: str, task: Task) -> Direction:
        card = memory.card(name)
        return Direction(
            id=_id(name),
            phase=task.phase,
            agent=self.name,
            title=str(card.data["title"]),
            hypothesis=" ".join(str(card.data["summary"]).split()),
            base=task.base,
            base_commit=task.base_commit,
            evidence=tuple(f"entry {name}: {variant['name']} ({variant['card']})" for variant in card.variants),
        )

    def _misfit(self, memory: Memory, name: str) -> str | None:
        """Why an entry cannot be tried on this deployment, as far as its card says it in words that can be checked."""
        wanted = memory.card(name).data["requires"].get("device")
        device = "cpu" if self.workshop.deployment.device == "cpu" else "sm_"
        if wanted is not None and not any(word.startswith((device, "any")) for word in wanted):
            return f"it wants {', '.join(wanted)}"
        if not _sets(memory.card(name)):
            return "its card has no variant, and it adds no value of a seam"
        return None

    def implement(self, direction: Direction, tools: Tools) -> Candidate | Declined:
        """The entry on the base, with the options of its card that are quickest on a few requests."""
        memory = self._memory()
        name = next((each for each in memory.entries if _id(each) == direction.id), None)
        if name is None:
            return Declined("its entry is not in the memory any more")
        if (misfit := self._misfit(memory, name)) is not None:
            return Declined(f"it does not fit: {misfit}")
        try:
            applied = apply(memory, [name], direction.base_commit)
        except SptError as error:
            return Declined(f"it does not compose with the base: {error.message}")
        tree = system_tree(memory.objects, memory.objects.commit(applied.commit).tree, memory.layout)
        keep_composed(memory.store, self.workshop.round, direction.id, applied.commit, tree)
        found = []
        for label, values in _sets(memory.card(name)):
            candidate = _candidate(memory, direction, tree, applied.commit, label, values)
            if isinstance(candidate, Candidate):
                found.append(candidate)
        if not found:
            return Declined("no variant of its card has options that this system takes")
        if len(found) == 1:
            return found[0]
        tried = measure_all(tools, found)
        told = [
            (answer["ratio"], candidate) for answer, candidate in zip(tried, found, strict=True) if "ratio" in answer
        ]
        return max(told, key=lambda each: each[0])[1] if told else found[0]

    def revise(self, direction: Direction, verdict: Verdict, tools: Tools) -> Candidate | Declined:
        """An entry is as it is."""
        return Declined(verdict.reason)


def _id(name: str) -> str:
    """The direction of an entry; a name that would be too long is cut, and told apart by its digest."""
    whole = f"{_PREFIX}{name}"
    return whole if len(whole) <= _MOST_ID else f"{whole[: _MOST_ID - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def _sets(card: Card) -> list[tuple[str, dict[str, Any]]]:
    """(label, options) of each variant, or of each value that the entry adds to a seam where it has none."""
    if card.variants:
        return [(str(variant["name"]), dict(variant["options"])) for variant in card.variants]
    return [(f"{seam}={value}", {seam: value}) for seam, values in card.seams.items() for value in values]


def _candidate(
    memory: Memory, direction: Direction, tree: Oid, commit: Oid, label: str, values: dict[str, Any]
) -> Candidate | None:
    declared = options_of(memory.objects, tree)
    try:
        own = check_options(declared, values, label)
    except SptError:
        return None
    merged: dict[str, Value] = {**direction.base.options, **own}
    options = {name: value for name, value in merged.items() if value != declared[name].default}
    return Candidate(SystemOf(tree, options), commit, f"options of {label}")
