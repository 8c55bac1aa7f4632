"""One direction on the desk of an enclosed agent: its clone, its tools, and what becomes of its work.

The agents `command`, `scripted` and `claude` share it: they differ in what runs in the sandbox, not in what they are
told, what they may ask, or how their work is taken in.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spt.errors import SptError
from spt.git.objects import Oid
from spt.git.store import Store
from spt.git.tree import compare, splice
from spt.round.agents import Limits, Task, Tools, Workshop
from spt.round.brief import MOST_DIRECTIONS
from spt.round.bundle import Work, keep_incoming, take_in, try_incoming
from spt.round.clone import Clone, cloned
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict
from spt.round.enclosure import Caps, Enclosure
from spt.round.journal import tree_reference, try_reference
from spt.round.session import Outcome, Session
from spt.system import check_options, options_of

__all__ = ["Desk", "Proposals", "enclosure_of"]

Answer = Mapping[str, Any]
_WITH_WORK = ("offer",)
_WALL_S = 3600.0
_WORD = re.compile(r"[A-Za-z0-9 ._:=,+-]{1,64}")
_WORDS_CHARS, _TITLE_CHARS, _TEXT_CHARS = 200, 120, 2000
_FOUND_BYTES = 6 * 1024
_NOTHING = "it changed nothing"


def enclosure_of(
    workshop: Workshop, limits: Limits, reads: Sequence[Path] = (), model: Path | None = None
) -> Enclosure:
    """The enclosure of an agent that works for this round."""
    store = Store.find(workshop.repository)
    hidden = [path for path in (store.common, store.work_tree) if path is not None]
    caps = Caps(wall_s=_WALL_S if limits.wall_s is None else limits.wall_s)
    return Enclosure(workshop.deployment.interpreter(), caps, tuple(reads), model, tuple(hidden))


class Desk:
    """A direction and its clone; `with Desk.open(...) as desk`."""

    def __init__(
        self, workshop: Workshop, direction: Direction, tools: Tools, clone: Clone, verdict: Verdict | None
    ) -> None:
        self.workshop, self.direction, self.tools, self.clone = workshop, direction, tools, clone
        self.verdict = verdict
        self.store = Store.find(workshop.repository)
        self._work: Work | None = None
        self._offered: Candidate | None = None

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, workshop: Workshop, direction: Direction, tools: Tools, verdict: Verdict | None = None
    ) -> Iterator["Desk"]:
        """The desk for the time of the block; after a gate's verdict it is the last candidate that is gone on from."""
        start: Oid | None = None
        if verdict is not None:
            start = Store.find(workshop.repository).reference(try_reference(workshop.round, direction.id))
        with cloned(workshop.repository, workshop.round, direction.id, direction.base_commit, start) as clone:
            yield cls(workshop, direction, tools, clone, verdict)

    def session(
        self, command: Sequence[str], task: str, enclosure: Enclosure, environment: Mapping[str, str] | None = None
    ) -> Session:
        """A sandbox over the clone, whose calls come here."""
        return Session(self.clone, command, task, self.answer, enclosure, with_work=_WITH_WORK, environment=environment)

    # Calls.

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """What a tool says; whatever is no call of a tool with arguments that fit is refused, in words."""
        known: dict[str, tuple[frozenset[str], Callable[..., Answer]]] = {
            "offer": (frozenset(), self._offer),
            "measure_quick": (frozenset({"number"}), self.tools.measure_quick),
            "try_patch": (frozenset({"number"}), self.tools.try_patch),
            "walk": (frozenset({"policy"}), self.tools.walk),
            "ceiling": (frozenset(), self.tools.ceiling),
            "search_memory": (frozenset({"words"}), self._search),
        }
        if tool not in known:
            return {"refused": f"there are these tools: {', '.join(known)}"}
        names, function = known[tool]
        if set(arguments) != names:
            return {"refused": f"'{tool}' takes {', '.join(names) or 'nothing'}"}
        problem = next((problem for name, value in arguments.items() if (problem := _misfit(name, value))), None)
        return {"refused": problem} if problem else function(**arguments)

    def _offer(self) -> Answer:
        try:
            candidate = self._candidate()
        except SptError as error:
            return {"refused": error.message}
        if candidate is None:
            return {"refused": _NOTHING}
        self._offered = candidate
        return {"number": self.tools.offer(candidate)}

    def _search(self, words: str) -> Answer:
        """As many finds as fit into one answer."""
        found: list[dict[str, Any]] = []
        for one in self.tools.search_memory(words):
            if len(json.dumps([*found, one])) > _FOUND_BYTES:
                break
            found.append(one)
        return {"found": found}

    # Work.

    def conclude(self, outcome: Outcome) -> Candidate | Declined:
        """What a session came to: its work as it stands now, or what was offered before it broke down.

        Whatever was taken in and is no candidate has a rescue reference afterwards.
        """
        problem = outcome.reason
        if outcome.status and outcome.last:
            problem = f"{problem}: {outcome.last}"
        if problem is None and outcome.unsaved is not None:
            problem = f"its work cannot be taken out: {outcome.unsaved}"
        candidate = None
        try:
            candidate = self._candidate()
        except SptError as error:
            problem = problem or error.message
        if problem is not None:
            rescue = self._rescue()
            return self._offered or Declined(problem, rescue, failed=True)
        if candidate is None:
            self._rescue()
            return Declined(_NOTHING if self.verdict is None else self.verdict.reason)
        self.tools.offer(candidate)
        try_incoming(self.store, self.workshop.round, self.direction.id, self.direction.base_commit)
        return candidate

    def _rescue(self) -> str | None:
        return keep_incoming(self.store, self.workshop.round, self.direction.id)

    def _candidate(self) -> Candidate | None:
        """The work as it was taken out last, None where that changes nothing; SptError where it cannot be taken in."""
        data = self.clone.saved()
        if data is not None:
            lent = self.clone.origin / "objects"
            round_, direction = self.workshop.round, self.direction
            self._work = take_in(self.store, data, direction.base_commit, lent, round_, direction.id)
            self.clone.forget()
        if self._work is None or self._work.commit == self.clone.start:
            return None
        system = self._system(self._work)
        return None if system == self.direction.base else Candidate(system, self._work.commit, self._work.note)

    def _system(self, work: Work) -> SystemOf:
        """The base with all that the work changes, be it where it may or not: the gate of scope is to see it."""
        objects, base = self.store.objects, self.direction.base
        rows = compare(objects, objects.commit(self.direction.base_commit).tree, work.tree).rows
        tree = splice(objects, base.tree, {row.path: row.new for row in rows})
        declared = options_of(objects, tree)
        values = check_options(declared, {**base.options, **work.options}, "its commits")
        with self.store.locked():
            self.store.stage(tree_reference(self.workshop.round, self.direction.id), tree)
            self.store.publish(f"spt round {self.workshop.round}: {self.direction.id}")
        return SystemOf(tree, {name: value for name, value in values.items() if value != declared[name].default})


def _misfit(name: str, value: object) -> str | None:
    """What is wrong with an argument, None where nothing is."""
    if name == "number":
        fits = isinstance(value, int) and not isinstance(value, bool)
        return None if fits else "'number' is a candidate's number, from `offer`"
    most = _WORDS_CHARS if name == "words" else 64
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        return f"'{name}' is a word or a few, at most {most} characters"
    return None if name == "words" or _WORD.fullmatch(value) else f"'{name}' has a character that no policy has"


class Proposals:
    """Directions that an enclosed agent proposes for a task."""

    def __init__(self, agent: str, task: Task) -> None:
        self.agent, self.task = agent, task
        self.directions: list[Direction] = []

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """Takes a direction, or says what is wrong with it."""
        if tool != "direction":
            return {"refused": "there is one tool here: direction"}
        if len(self.directions) >= MOST_DIRECTIONS:
            return {"refused": f"{MOST_DIRECTIONS} directions are all that are asked for"}
        if set(arguments) - {"title", "hypothesis", "predicted_gain", "low", "high"}:
            return {"refused": "a direction has title, hypothesis, predicted_gain, low and high"}
        title, hypothesis = (_text(arguments.get(name)) for name in ("title", "hypothesis"))
        gain, low, high = (_ratio(arguments.get(name)) for name in ("predicted_gain", "low", "high"))
        if not title or not hypothesis or len(title) > _TITLE_CHARS:
            return {"refused": f"a direction has a title, of at most {_TITLE_CHARS} characters, and a hypothesis"}
        interval = None if low is None or high is None or low > high else (low, high)
        self.directions.append(
            Direction(
                id=self._free_id(),
                phase=self.task.phase,
                agent=self.agent,
                title=title,
                hypothesis=hypothesis,
                base=self.task.base,
                base_commit=self.task.base_commit,
                predicted_gain=gain,
                interval=interval,
                slot=len(self.directions) % self.task.slots,
            )
        )
        return {"direction": self.directions[-1].id}

    def _free_id(self) -> str:
        taken = self.task.taken | {direction.id for direction in self.directions}
        number = next(number for number in range(1, len(taken) + 2) if f"{self.agent}-{number}" not in taken)
        return f"{self.agent}-{number}"


def _text(value: object) -> str:
    return (
        " ".join(value.split())[:_TEXT_CHARS]
        if isinstance(value, str) and " ".join(value.split()).isprintable()
        else ""
    )


def _ratio(value: object) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1000
    return float(value) if fits and isinstance(value, int | float) else None
