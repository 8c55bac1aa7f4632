"""Agents: who has ideas and writes patches.  The machine of phases knows them by this interface alone.

`memory` and `sweep` run in the controller.  Any other agent works in a private clone, in a sandbox, and what it says
comes back as ids and numbers; whoever runs it makes a `Candidate` of its bundle.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spt.errors import Usage
from spt.round.budget import Waiting
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict

if TYPE_CHECKING:
    from spt.deployment import Deployment
    from spt.git.objects import Oid

__all__ = [
    "AGENTS",
    "Agent",
    "Limits",
    "Spent",
    "Task",
    "Tools",
    "Workshop",
    "make_agent",
    "measure_all",
    "refuse_agent",
]

# name: "module:function" with (argument after the colon of the user's word, workshop) -> Agent
AGENTS = {
    "memory": "spt.round.agents.memory:make",
    "sweep": "spt.round.agents.sweep:make",
    "scripted": "spt.round.agents.scripted:make",
    "command": "spt.round.agents.command:make",
    "claude": "spt.round.agents.claude:make",
}


@dataclass(frozen=True)
class Limits:
    """What one direction may cost: seconds on the wall, turns of a model, dollars; None is no limit."""

    wall_s: float | None = None
    turns: int | None = None
    usd: float | None = None
    tries: int = 16  # calls of measure_quick and try_patch together


@dataclass
class Spent:
    """What a direction cost so far."""

    wall_s: float = 0.0
    device_s: float = 0.0
    input_tok: int = 0
    output_tok: int = 0
    usd: float = 0.0

    def record(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Workshop:
    """Where an agent works for: the trusted repository, what is made fast, the round, and what it may cost.

    Only code of ours in the controller sees it; nothing of it is mounted for an agent.
    """

    repository: Path
    deployment: "Deployment"
    round: str
    limits: Limits


@dataclass(frozen=True)
class Task:
    """What an agent is asked to propose directions for.

    outlook: the record of `spt ceiling --json` for the base, or None where the round runs without a cost model.
    declined: what was tried before and did not pay: {title, gate, reason}.
    taken: ids of directions that the round has already.
    text: all of it in words, the same for every agent.
    """

    phase: str
    base: SystemOf
    base_commit: "Oid"
    slots: int
    outlook: Mapping[str, Any] | None = None
    declined: Sequence[Mapping[str, str]] = ()
    taken: frozenset[str] = frozenset()
    text: str = ""


class Tools(Protocol):
    """What an agent may ask while it works.  Answers are flat mappings of numbers, enumerated words and at most 2 kB of
    text; each call counts against the limits of the direction, and one too many is answered {"refused": reason}.

    Candidates are known by number.  `offer` is for code in the controller: it takes a candidate whose objects are in
    the repository (the bundle of an agent's clone was taken in before) and gives its number.
    """

    spent: Spent

    def offer(self, candidate: Candidate) -> int:
        """The number of a candidate from now on; its reference is written, nothing is measured."""

    def measure_quick(self, number: int) -> dict[str, Any]:
        """Both the candidate and its base on fresh requests of the development set, a few of each: {tau, base_tau,
        ms_tok, base_ms_tok, ratio, same: share of answers with equal ids}.  Advice, never evidence."""

    def try_patch(self, number: int) -> dict[str, Any]:
        """The gates that need no timing (scope, default, exact) on fresh prompts: {passed, gate, reason}."""

    def walk(self, policy: str) -> dict[str, Any]:
        """What a draft policy would accept on the recorded lattice: {policy, tau, nodes}."""

    def ceiling(self) -> dict[str, Any]:
        """The factors and gaps of the base: {tau, kernel, overhead, step_us, floor_us, classes}."""

    def search_memory(self, words: str) -> list[dict[str, Any]]:
        """Entries and declined ideas that hold the words: [{name, kind: entry or declined, title, text}]."""


class Agent(Protocol):
    """Who proposes directions, implements one, and may revise a candidate that a gate declined.

    An agent that cannot work raises SptError: its direction fails, with the words in the journal.  It must stand being
    killed at any moment: `implement` is called again, with the same direction, where it did not return.
    """

    @property
    def name(self) -> str:
        """By which its directions name it."""

    def propose(self, task: Task) -> list[Direction]:
        """Directions for the task, the most promising first; none where there is nothing to try."""

    def implement(self, direction: Direction, tools: Tools) -> Candidate | Declined:
        """A candidate for the gates."""

    def revise(self, direction: Direction, verdict: Verdict, tools: Tools) -> Candidate | Declined:
        """Another candidate after a gate said no, or Declined to leave it at that."""


def measure_all(tools: Tools, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """`measure_quick` of several candidates; where another machine measures, all of them are asked for together."""
    found, waiting = [], None
    for candidate in candidates:
        try:
            found.append(tools.measure_quick(tools.offer(candidate)))
        except Waiting as error:
            waiting = error
    if waiting is not None:
        raise waiting
    return found


@dataclass(frozen=True)
class Words:
    """An agent as the user names it: NAME or NAME:ARGUMENT."""

    name: str
    argument: str = ""
    text: str = field(default="", compare=False)

    @classmethod
    def of(cls, word: str) -> "Words":
        name, _, argument = word.partition(":")
        return cls(name, argument, word)


def refuse_agent(word: str) -> None:
    """Usage where no agent goes by this name."""
    if Words.of(word).name not in AGENTS:
        raise Usage(f"no agent is called '{word}'", f"there are: {', '.join(AGENTS)}")


def make_agent(word: str, workshop: Workshop) -> Agent:
    """The agent that the user's word names; Usage or Missing where it is none, or cannot work here."""
    refuse_agent(word)
    words = Words.of(word)
    module, _, function = AGENTS[words.name].partition(":")
    make: Callable[[str, Workshop], Agent] = getattr(importlib.import_module(module), function)
    return make(words.argument, workshop)
