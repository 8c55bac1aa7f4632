"""Evidence in words: is it of the entry as it is now, and who says its figure?

A line of evidence is text that anyone can write.  One that says it was judged, with a passing forcing verdict, is
shown as a claim of that: a repository holds no verdicts that could back it.
"""

from dataclasses import dataclass
from typing import Any

from spt.formats import read_jsonl
from spt.git.objects import Oid
from spt.memory import Memory
from spt.source import lines_of

__all__ = ["CARRIED", "CURRENT", "STALE", "ClaimedSpeedup", "Evidence", "RawRatio", "evidence_of"]

CURRENT, CARRIED, STALE = "current", "carried", "stale"


@dataclass(frozen=True)
class RawRatio:
    """Time before over time after, without a verdict that the tokens are stock's."""

    value: float

    def __str__(self) -> str:
        return f"raw ratio {self.value:.2f}"


@dataclass(frozen=True)
class ClaimedSpeedup:
    """Time before over time after, of tokens that forcing accepted, as the line says; nothing here backs it."""

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


def evidence_of(memory: Memory, name: str) -> list[Evidence]:
    """All evidence of an entry, in file order."""
    found = []
    for path, data in sorted(memory.records(name).items()):
        if path.startswith("evidence/") and path.endswith(".jsonl") and path.count("/") == 1:
            for line in read_jsonl(data, f"{name}/{path}", "evidence"):
                found.append(Evidence(_state(memory, name, line), _ratio(line), path, line))
    return found


def _state(memory: Memory, name: str, line: dict[str, Any]) -> str:
    entry = memory.entry(name)
    if line["delta_id"] != entry.delta.id:
        return STALE
    if not line["stock_tree"] == memory.stock == entry.stock:
        return CARRIED
    return CURRENT if _is_system_of_now(memory, name, line["system_tree"]) else CARRIED


def _is_system_of_now(memory: Memory, name: str, tree: Oid) -> bool:
    """Whether today's entries make a system of this tree that holds the entry.

    That is the entry's own, one of an entry that requires it, or a source whose deltas are today's.
    """
    if (last := memory.closures_by_tree.get(tree)) is not None and name in memory.closure([last]):
        return True
    sources = (line for line in lines_of(memory, name) if line["tree"] == tree)
    return any(all(_is_of_now(memory, pin) for pin in line["entries"]) for line in sources)


def _is_of_now(memory: Memory, pin: str) -> bool:
    name, _, delta_id = pin.partition("@")
    return name in memory.entries and memory.entries[name].delta.id == delta_id


def _ratio(line: dict[str, Any]) -> RawRatio | ClaimedSpeedup | None:
    if line["gain"] is None:
        return None
    forced = line["forcing"] is not None and line["forcing"].get("answer") == "accept"
    value = 1 + float(line["gain"])
    return ClaimedSpeedup(value) if line["evidence"] == "judged" and forced else RawRatio(value)
