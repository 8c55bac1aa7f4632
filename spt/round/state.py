"""Where a round stands: a fold of its events, and nothing that is not in them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spt.git.objects import Oid
from spt.round.agents import Spent
from spt.round.direction import Candidate, Direction, SystemOf, Verdict
from spt.round.journal import PHASES, Event

__all__ = ["OUTCOMES", "OWN", "WHOLE", "Course", "State", "fold"]

OWN = "controller"  # the agent of directions that no agent proposed
WHOLE = "whole"  # the direction of all that was promoted, together

OUTCOMES = ("promoted", "declined", "failed")


@dataclass
class Course:
    """One direction so far.  verdicts: of the newest candidate.  outcome: one of OUTCOMES, or None; end: its data."""

    direction: Direction
    candidate: Candidate | None = None
    candidates: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    outcome: str | None = None
    end: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said_no(self) -> Verdict | None:
        """The verdict that stopped the newest candidate, if one did."""
        return next((verdict for verdict in self.verdicts if not verdict.passed), None)

    def passed(self, gate: str) -> Verdict | None:
        """What a gate said of the newest candidate, if it was asked and let it through."""
        return next((verdict for verdict in self.verdicts if verdict.gate == gate and verdict.passed), None)


@dataclass
class State:
    """A round so far.

    begun: the data of its first event.  phases: {phase: begun, done or skipped}.  best: the current best, `commit` the
    newest commit of its code, and `line` the directions that it is made of, in order.  aside: what was promoted and
    is yet to be stacked on the best.  spent: by phase.
    """

    begun: Mapping[str, Any]
    best: SystemOf
    commit: Oid
    line: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=dict)
    why_skipped: dict[str, str] = field(default_factory=dict)
    measured: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    courses: dict[str, Course] = field(default_factory=dict)
    final: Mapping[str, Any] | None = None
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    residual: tuple[str, ...] | None = None
    deployment: Mapping[str, Any] | None = None
    outcome: str | None = None
    stopped: str | None = None
    spent: dict[str, Spent] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """The first phase that has not ended; the last one once all have."""
        return next((phase for phase in PHASES if self.phases.get(phase) not in ("done", "skipped")), PHASES[-1])

    @property
    def promoted(self) -> list[Course]:
        """The directions that the current best is made of, in order."""
        return [self.courses[name] for name in self.line]

    @property
    def promotions(self) -> list[Course]:
        """All that were promoted, but for the whole of them: it adds nothing."""
        return [course for name, course in self.courses.items() if course.outcome == "promoted" and name != WHOLE]

    @property
    def besides(self) -> list[Course]:
        """Those that are not in the best, and are yet to be stacked on it."""
        return [self.courses[name] for name in self.aside]

    def of(self, phase: str) -> list[Course]:
        """The directions of a phase."""
        return [course for course in self.courses.values() if course.direction.phase == phase]


def fold(events: Iterable[Event], start_commit: Oid) -> State:
    """The state after these events, of which the first is `begun`."""
    first, *rest = events
    state = State(first.data, SystemOf.of(first.data["start"]), start_commit)
    for event in rest:
        _take(state, event)
    return state


def _take(state: State, event: Event) -> None:
    data = event.data
    if event.direction is not None and event.event != "direction":
        _take_direction(state, state.courses[event.direction], event)
        return
    match event.event:
        case "phase":
            state.phases[event.phase] = data["state"]
            if data["state"] == "skipped":
                state.why_skipped[event.phase] = data["reason"]
        case "direction":
            assert event.direction is not None
            state.courses[event.direction] = Course(Direction.of(event.direction, event.phase, data))
        case "measured":
            state.measured = data
        case "planned":
            state.plan = data["plan"]
        case "spent":
            _spend(state, event)
        case "best":
            state.best, state.commit = SystemOf.of(data["system"]), data["commit"]
            state.line, state.aside = list(data.get("line", state.line[:1])), list(data.get("aside", ()))
        case "final":
            state.final = data
        case "entry":
            state.entries.append(data)
        case "residual":
            state.residual = tuple(data["commits"])
        case "deployment":
            state.deployment = data
        case "ended":
            state.outcome = data["outcome"]
        case "stopped":
            state.stopped = data["reason"]
        case "resumed":
            state.stopped = None


def _take_direction(state: State, course: Course, event: Event) -> None:
    data, direction = event.data, course.direction
    if event.event in OUTCOMES and direction.stacks in state.aside:
        state.aside.remove(direction.stacks)
    match event.event:
        case "candidate":
            course.candidate, course.verdicts = Candidate.of(data), []
            course.candidates += 1
        case "gate":
            course.verdicts.append(Verdict.of(data))
        case "promoted":
            course.outcome, course.end = "promoted", data
            if data.get("beside"):
                state.aside.append(direction.id)
                return
            state.best, state.commit = SystemOf.of(data["system"]), data["commit"]
            state.line += [] if direction.id == WHOLE else [direction.id]
        case "declined" | "failed":
            course.outcome, course.end = event.event, data
        case "spent":
            _spend(state, event)


def _spend(state: State, event: Event) -> None:
    known = state.spent.setdefault(event.phase, Spent())
    for name, value in event.data.items():
        setattr(known, name, getattr(known, name) + value)
