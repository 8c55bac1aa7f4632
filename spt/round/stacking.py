"""What was promoted side by side, put on top of one another: each once more through all gates, on what is there."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from spt.apply import apply
from spt.errors import Conflict, SptError
from spt.git.message import read_trailers
from spt.git.objects import Commit, Oid
from spt.git.store import Store
from spt.memory import Memory
from spt.round.agents import Task, Tools
from spt.round.best import commits_between
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict
from spt.round.journal import keep_composed
from spt.round.state import OWN, Course, State
from spt.source import commit_delta, replay
from spt.system import Value, check_options, options_of, system_tree

__all__ = ["Stacking", "best_line", "over_start", "stacked", "to_stack"]

_SUFFIX = "-stacked"


@dataclass(frozen=True)
class Stacking:
    """The agent of directions that stack others: their candidates are composed, and never revised."""

    store: Store
    state: Callable[[], State]
    round: str
    name: str = OWN

    def propose(self, task: Task) -> list[Direction]:
        """None: what is to be stacked is seen in the state of the round."""
        return []

    def implement(self, direction: Direction, tools: Tools) -> Candidate | Declined:
        """The mechanism of the first direction on the base of this one."""
        assert direction.stacks is not None
        course, store = self.state().courses[direction.stacks], self.store.again()
        try:
            candidate = stacked(Memory.of(store), course, direction.base, direction.base_commit)
        except SptError as error:
            return Declined(f"it does not compose with the others: {error.message}")
        keep_composed(store, self.round, direction.id, candidate.commit, candidate.system.tree)
        return candidate

    def revise(self, direction: Direction, verdict: Verdict, tools: Tools) -> Candidate | Declined:
        """A composition is as it is."""
        return Declined(verdict.reason)


def stacked(memory: Memory, course: Course, base: SystemOf, commit: Oid) -> Candidate:
    """What a promoted direction changed, on another system; Conflict where that is not possible.

    commit: the newest commit of the system's code.  Its objects are in the store of `memory`, and not yet published.
    Of an option that both set, the direction's value counts.
    """
    objects = memory.objects
    for made in commits_between(objects, course.direction.base_commit, str(course.end["commit"])):
        said = read_trailers(made.message)
        if said.entry is not None:
            commit = apply(memory, [said.entry], commit).commit
        elif commit_delta(memory, made).rows:
            commit = _replayed(memory, made, commit)
    tree = system_tree(objects, objects.commit(commit).tree, memory.layout)
    declared = options_of(objects, tree)
    before, after = course.direction.base.options, SystemOf.of(course.end["system"]).options
    changed = sorted(name for name in {*before, *after} if after.get(name) != before.get(name))
    if missing := [name for name in changed if name not in declared]:
        raise Conflict(f"it sets the option '{missing[0]}', which is declared by what is not in this system")
    own: dict[str, Value] = {name: after.get(name, declared[name].default) for name in changed}
    values = check_options(declared, {**base.options, **own}, course.direction.id)
    options = {name: value for name, value in values.items() if value != declared[name].default}
    return Candidate(SystemOf(tree, options), commit, f"{course.direction.id}, on what was promoted beside it")


def _replayed(memory: Memory, made: Commit, onto: Oid) -> Oid:
    """The same commit on another, merged line by line."""
    tree = replay(memory, memory.objects.commit(onto).tree, [made])
    return memory.objects.add_commit(tree, [onto], made.author, made.message)


# --- which, and on what ---


def over_start(state: State, course: Course) -> float:
    """What a promoted direction and all that its base holds gained over the round's start, as far as was measured."""
    gain, base, before = float(course.end["gain"]), course.direction.base, state.promotions
    before = before[: before.index(course)]
    below = next((each for each in reversed(before) if SystemOf.of(each.end["system"]) == base), None)
    return gain if below is None else gain * over_start(state, below)


def best_line(state: State) -> list[Course]:
    """The directions, each on the one before, that gained most together: of those that are the best, and of every one
    that was promoted beside them."""
    lines = [state.promoted, *([*_below(state, course), course] for course in state.besides)]
    return max((line for line in lines if line), key=lambda line: over_start(state, line[-1]))


def _below(state: State, course: Course) -> list[Course]:
    """The directions of the best that a direction's base holds."""
    systems = [SystemOf.of(each.end["system"]) for each in state.promoted]
    base = course.direction.base
    return state.promoted[: systems.index(base) + 1] if base in systems else []


def to_stack(state: State, phase: str) -> Direction | None:
    """The next direction that stacks what is promoted and not in the best: the one that gained most, and none before
    what it was promoted on.  Its base is the best as it is.  None where nothing waits."""
    systems = [SystemOf.of(course.end["system"]) for course in state.besides]
    ready = [course for course in state.besides if course.direction.base not in systems]
    if not ready:
        return None
    course = max(ready, key=lambda course: float(course.end["gain"]))
    return Direction(
        id=_free_id(state, course.direction.id),
        phase=phase,
        agent=OWN,
        title=course.direction.title,
        hypothesis=f"{course.direction.id} pays on top of what was promoted beside it.",
        base=state.best,
        base_commit=state.commit,
        stacks=course.direction.id,
    )


def _free_id(state: State, name: str) -> str:
    """The first id that no direction of the round has, of at most 64 characters."""
    numbered = (f"{_SUFFIX}{number}" for number in itertools.count(2))
    ids = (f"{name[: 64 - len(end)]}{end}" for end in itertools.chain([_SUFFIX], numbered))
    return next(each for each in ids if each not in state.courses)
