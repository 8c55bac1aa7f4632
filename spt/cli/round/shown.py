"""How a round is shown in a terminal."""

from typing import TYPE_CHECKING

from spt.cli.output import data, table

if TYPE_CHECKING:
    from spt.round.journal import Journal
    from spt.round.state import Course, State

__all__ = ["show_state"]


def show_state(journal: "Journal", state: "State") -> None:
    """Phases, directions with what became of them, the best, the final, what it cost."""
    head = state.outcome or (f"stopped: {state.stopped}" if state.stopped else f"in phase {state.phase}")
    data(f"round {journal.round} on {state.begun['deployment']}: {head}")
    rows = [_row(course) for course in state.courses.values()]
    if rows:
        table(("direction", "phase", "agent", "outcome", "ratio", "noise", "rule", "why"), rows)
    options = " ".join(f"{name}={value}" for name, value in state.best.options.items())
    data(f"best: tree {state.best.tree[:12]}, {options or 'every option at its default'}")
    if state.final is not None:
        for name in ("stock", "ar"):
            against = state.final[f"against_{name}"]
            if against is not None:
                data(f"final against {name}: ratio {against['gain']:.3f}{_bounds(against)}")
        data(f"final: {state.final['verdict']}: {state.final['reason']}")
    for entry in state.entries:
        data(f"entry {entry['name']}: {'a discovery' if entry['discovery'] else 'reused, no discovery'}")
    for commit in state.residual or ():
        data(f"residual: commit {commit[:12]} is no entry's")
    if state.deployment is not None:
        data(f"system: {state.deployment['branch']}; {state.deployment['path']} runs it")
    spent = state.spent.values()
    wall_s, device_s = (sum(getattr(each, name) for each in spent) for name in ("wall_s", "device_s"))
    usd = sum(each.usd for each in spent)
    data(f"spent: {wall_s / 60:.1f} min, {device_s / 60:.1f} of them on devices, ${usd:.2f}")


def _bounds(against: "dict[str, float]") -> str:
    return "" if against["low"] is None else f" ({against['low']:.3f} to {against['high']:.3f})"


def _row(course: "Course") -> tuple[str, ...]:
    confirm = next((each for each in course.verdicts if each.gate in ("confirm", "screen") and each.figure), None)
    figure = None if confirm is None else confirm.figure
    why = "" if course.outcome == "promoted" else str(course.end.get("reason", ""))
    outcome = course.outcome or "under way"
    if course.outcome == "declined":
        outcome = f"declined ({course.end['gate']})"
    return (
        course.direction.id,
        course.direction.phase,
        course.direction.agent,
        outcome if course.outcome != "promoted" else f"promoted, {course.end['kind']}",
        "-" if figure is None or figure.gain is None else f"{figure.gain:.3f}",
        "-" if figure is None or figure.noise is None else f"{figure.noise:.2%}",
        str(course.end.get("rule", "-")),
        why,
    )
