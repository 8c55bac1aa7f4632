"""What an agent may ask while it works on one direction: numbers in, numbers and a few words out, so many times."""

from collections.abc import Mapping
from typing import Any

from spt.errors import SptError
from spt.round import gates
from spt.round.agents import Limits, Spent
from spt.round.bench import Bench
from spt.round.budget import Stopped
from spt.round.direction import Candidate, Direction, SystemOf
from spt.round.journal import Journal, rounds

__all__ = ["MOST_TEXT", "DirectionTools", "search"]

MOST_TEXT = 2000  # characters of an answer
MOST_FOUND = 20


class DirectionTools:
    """The tools of one direction (spt.round.agents.Tools)."""

    def __init__(
        self,
        bench: Bench,
        direction: Direction,
        limits: Limits,
        outlook: Mapping[str, Any] | None,
        spent: Spent,
        *,
        trusted: bool,
    ) -> None:
        self.bench, self.direction, self.limits, self.outlook = bench, direction, limits, outlook
        self.trusted = trusted
        self.spent = spent
        self._offered: list[Candidate] = []
        self._tries = 0

    def offer(self, candidate: Candidate) -> int:
        """The number of a candidate from now on."""
        if candidate not in self._offered:
            self._offered.append(candidate)
        return self._offered.index(candidate)

    def measure_quick(self, number: int) -> dict[str, Any]:
        """Candidate and base on the same few development requests."""
        candidate = self._candidate(number)
        if isinstance(candidate, str):
            return {"refused": candidate}
        try:
            self.bench.arm(candidate.system)  # options that nobody declared
            return gates.quick(self.bench, candidate.system, self.direction.base)
        except Stopped:
            raise
        except SptError as error:
            self.bench.budget.check()
            return {"refused": error.message[:MOST_TEXT]}

    def try_patch(self, number: int) -> dict[str, Any]:
        """The gates that need no timing."""
        candidate = self._candidate(number)
        if isinstance(candidate, str):
            return {"refused": candidate}
        subject = gates.Subject(self.bench, self.direction, candidate, self.trusted)
        for gate in (gates.scope, gates.default, gates.exact):
            verdict = gate(subject)
            if not verdict.passed:
                break
        return {"passed": verdict.passed, "gate": verdict.gate, "reason": verdict.reason[:MOST_TEXT]}

    def walk(self, policy: str) -> dict[str, Any]:
        """What a policy would accept on the round's own lattices."""
        from spt.policy import parse_policy
        from spt.walk import walk

        if self.outlook is None:
            return {"refused": "this round has no cost model, and recorded no lattice"}
        from spt.lattices import read_lattices

        try:
            folder = self.bench.room / "measured" / SystemOf.of(self.outlook).folder
            walked = walk(read_lattices([folder]), parse_policy(policy))
        except SptError as error:
            return {"refused": error.message[:MOST_TEXT]}
        return {"policy": str(walked.policy), "tau": walked.tau, "nodes": walked.nodes_per_step}

    def ceiling(self) -> dict[str, Any]:
        """Factors and gaps of the system that was measured: the start in exploring, the best in tuning."""
        if self.outlook is None:
            return {"refused": "this round has no cost model"}
        return {key: self.outlook[key] for key in ("tau", "factors", "step_us", "floors_us", "published", "calibrated")}

    def search_memory(self, words: str) -> list[dict[str, Any]]:
        """Entries and declined ideas that hold all of the words."""
        return search(self.bench, words)

    def _candidate(self, number: int) -> Candidate | str:
        """The candidate, counted as one try, or why not."""
        if not 0 <= number < len(self._offered):
            return f"there is no candidate {number}"
        if self._tries >= self.limits.tries:
            return f"the {self.limits.tries} tries of this direction are used up"
        self._tries += 1
        return self._offered[number]


def search(bench: Bench, words: str) -> list[dict[str, Any]]:
    """Entries, and what rounds of this repository declined, whose text holds all of the words."""
    from spt.memory import Memory

    wanted = words.lower().split()
    found = []
    memory = Memory.of(bench.store)
    for name in sorted(memory.entries):
        card = memory.card(name)
        text = f"{card.data['summary']} {card.data['mechanism']}"
        found.append({"name": name, "kind": "entry", "title": card.data["title"], "text": " ".join(text.split())})
    for round_ in rounds(bench.store):
        try:
            events = Journal(bench.store, round_).events()
        except SptError:  # a round of long ago that is damaged is no reason to fail in this one
            continue
        told = {event.direction: event.data for event in events if event.event == "direction"}
        for event in events:
            if event.event == "declined" and event.direction is not None:
                title, text = told[event.direction]["title"], f"{event.data['gate']}: {event.data['reason']}"
                found.append({"name": f"{round_}/{event.direction}", "kind": "declined", "title": title, "text": text})
    hits = [one for one in found if all(word in " ".join(one.values()).lower() for word in wanted)]
    return [{**one, "text": one["text"][:MOST_TEXT]} for one in hits[:MOST_FOUND]]
