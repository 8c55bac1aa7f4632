"""A round as data for people and programs: what `spt round status --json` prints."""

from typing import Any

from spt.round.journal import Journal, best_reference
from spt.round.state import Course, State

__all__ = ["as_json"]


def as_json(journal: Journal, state: State) -> dict[str, Any]:
    """Where a round stands, with the references that hold it."""
    return {
        "v": 1,
        "round": journal.round,
        "journal": journal.reference,
        "events": len(journal.events()),
        "phase": state.phase,
        "phases": dict(state.phases),
        "outcome": state.outcome,
        "stopped": state.stopped,
        "begun": dict(state.begun),
        "best": {**state.best.record(), "commit": state.commit, "reference": best_reference(journal.round)},
        "directions": [_course(course) for course in state.courses.values()],
        "final": None if state.final is None else dict(state.final),
        "entries": [dict(entry) for entry in state.entries],
        "residual": None if state.residual is None else list(state.residual),
        "deployment": None if state.deployment is None else dict(state.deployment),
        "spent": {phase: spent.record() for phase, spent in state.spent.items()},
    }


def _course(course: Course) -> dict[str, Any]:
    return {
        "id": course.direction.id,
        "phase": course.direction.phase,
        "agent": course.direction.agent,
        "title": course.direction.title,
        "candidates": course.candidates,
        "gates": [verdict.record() for verdict in course.verdicts],
        "outcome": course.outcome,
        "end": dict(course.end),
    }
