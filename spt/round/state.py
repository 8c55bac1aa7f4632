"""Where a round stands: a fold of its events, and nothing that is not in them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spt.git.objects import Oid
from spt.round.agents import Spent
from spt.round.direction import Candidate, Direction, SystemOf, Verdict
from spt.round.journal import PHASES, Event

__all__ = ["OUTCOMES", "Course", "State", "fold"]

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

    begun: the data of its first event.  phases: {phase: begun, done or skipped}.  best: the current best, and `commit`
    the newest commit of its code.  spent: by phase.
    """

    begun: Mapping[str, Any]
    best: SystemOf
    commit: Oid
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
        """The agents' directions that moved the current best, in order."""
        found = (course for phase in ("explore", "tune") for course in self.of(phase))
        return [course for course in found if course.outcome == "promoted"]

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
    data = event.data
    match event.event:
        case "candidate":
            course.candidate, course.verdicts = Candidate.of(data), []
            course.candidates += 1
        case "gate":
            course.verdicts.append(Verdict.of(data))
        case "promoted":
            state.best, state.commit = SystemOf.of(data["system"]), data["commit"]
            course.outcome, course.end = "promoted", data
        case "declined" | "failed":
            course.outcome, course.end = event.event, data
        case "spent":
            _spend(state, event)


def _spend(state: State, event: Event) -> None:
    known = state.spent.setdefault(event.phase, Spent())
    for name, value in event.data.items():
        setattr(known, name, getattr(known, name) + value)
