"""Evidence in words: is it of the entry as it is now, and who says its figure?

A line of evidence is text that anyone can write.  One that says it was judged, with a passing forcing verdict, is
shown as a claim of that: a repository holds no verdicts that could back it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spt.errors import Conflict, Differs, SptError, Usage
from spt.formats import read_jsonl
from spt.git.objects import Oid
from spt.memory import Memory
from spt.source import lines_of

__all__ = [
    "CARRIED",
    "CURRENT",
    "STALE",
    "ClaimedSpeedup",
    "Evidence",
    "RawRatio",
    "evidence_of",
    "measured_system",
    "ratio_of",
]

CURRENT, CARRIED, STALE = "current", "carried", "stale"


@dataclass(frozen=True)
class RawRatio:
    """Time before over time after, without a verdict that the tokens are stock's."""

    value: float

    def __str__(self) -> str:
        return f"raw ratio {self.value:.2f}"


@dataclass(frozen=True)
class ClaimedSpeedup:
    """Time before over time after, of timed tokens that forcing accepted, as the line says; nothing here backs it."""

    value: float

    def __str__(self) -> str:
        return f"claimed speedup {self.value:.2f}"


@dataclass(frozen=True)
class Evidence:
    """One line of evidence: where it stands, its figure, and the line itself."""

    state: str
    ratio: RawRatio | ClaimedSpeedup | None
    file: str
    line: dict[str, Any]

    @property
    def kind(self) -> str:
        """raw (the author's figures) or judged (a verdict of the harness, as the line says)."""
        return str(self.line["evidence"])

    @property
    def answer(self) -> str | None:
        """What the verdict behind the line said; None where the line names none."""
        return str(self.line["verdict"]["answer"]) if "verdict" in self.line else None


def evidence_of(memory: Memory, name: str) -> list[Evidence]:
    """All evidence of an entry, in file order."""
    found = []
    for path, data in sorted(memory.records(name).items()):
        if path.startswith("evidence/") and path.endswith(".jsonl") and path.count("/") == 1:
            for line in read_jsonl(data, f"{name}/{path}", "evidence"):
                found.append(Evidence(_state(memory, name, line), ratio_of(line), path, line))
    return found


def _state(memory: Memory, name: str, line: dict[str, Any]) -> str:
    entry = memory.entry(name)
    if line["delta_id"] != entry.delta.id:
        return STALE
    if not line["stock_tree"] == memory.stock == entry.stock:
        return CARRIED
    return CURRENT if _is_system_of_now(memory, name, line) else CARRIED


def _is_system_of_now(memory: Memory, name: str, line: dict[str, Any]) -> bool:
    """Whether today's entries make the line's system, and it holds the entry.

    That is the entry's own, one of an entry that requires it, the entries that the line names, or a source whose
    deltas are today's.
    """
    tree = line["system_tree"]
    if (last := memory.closures_by_tree.get(tree)) is not None and name in memory.closure([last]):
        return True
    if "entries" in line:
        with contextlib.suppress(SptError):  # what the line names need not be here, nor compose
            words = "+".join(pin.partition("@")[0] for pin in line["entries"])
            return measured_system(memory, name, tree, words) == list(line["entries"])
        return False
    sources = (line for line in lines_of(memory, name) if line["tree"] == tree)
    return any(all(_is_of_now(memory, pin) for pin in line["entries"]) for line in sources)


def _is_of_now(memory: Memory, pin: str) -> bool:
    name, _, delta_id = pin.partition("@")
    return name in memory.entries and memory.entries[name].delta.id == delta_id


def measured_system(
    memory: Memory,
    name: str,
    tree: Oid,
    system: str | None = None,
    stock: Oid | None = None,
    what: str = "the system is",
) -> list[str]:
    """The entries as name@delta_id, in composition order, that make this tree on a stock and hold entry `name`.

    system: ENTRY+ENTRY; where left out, the entry with what it requires, each entry that requires it, and all entries
    together are tried.  stock: the memory's own where left out.
    Raises Usage where `system` does not hold the entry, and Differs, in a message that begins with `what`, where it or
    whatever was tried is of another tree.
    """
    stock = stock or memory.stock
    composition = memory.composition(stock)
    if system is not None:
        names = memory.closure(system.split("+"))
        if name not in names:
            raise Usage(f"system '{system}' does not hold '{name}'")
        if (made := composition.tree(names)) != tree:
            hint = "export and measure it again, or name with --system what was measured"
            raise Differs(f"{what} of tree {tree[:12]}, and '{system}' on stock {stock[:12]} is {made[:12]}", hint)
        return _pins(memory, composition.ordered(names))
    for names in _systems(memory, name):
        with contextlib.suppress(Conflict):
            if composition.tree(names) == tree:
                return _pins(memory, composition.ordered(names))
    raise Differs(
        f"{what} of tree {tree[:12]}, and no system that holds '{name}' as it is now makes that on stock {stock[:12]}",
        "--system ENTRY+ENTRY names what was measured, if it is not the entry, one that requires it, or all",
    )


def _systems(memory: Memory, name: str) -> Iterator[frozenset[str]]:
    yield memory.closure([name])
    closures = memory.composition().closures
    yield from (closure for other, closure in closures.items() if name in closure and other != name)
    yield frozenset(closures)


def _pins(memory: Memory, names: list[str]) -> list[str]:
    return [f"{name}@{memory.entry(name).delta.id}" for name in names]


def ratio_of(line: dict[str, Any]) -> RawRatio | ClaimedSpeedup | None:
    """What a line says of its gain; None where it has none."""
    if line["gain"] is None:
        return None
    value = 1 + float(line["gain"])
    return ClaimedSpeedup(value) if line["evidence"] == "judged" and _is_forced(line) else RawRatio(value)


def _is_forced(line: dict[str, Any]) -> bool:
    """Whether forcing accepted the very tokens that were timed, as the line says."""
    forcing, verdict = line["forcing"], line.get("verdict")
    if forcing is None or verdict is None:
        return False
    return bool(forcing["answer"] == "accept" and forcing["timed"] == verdict["samples"])
