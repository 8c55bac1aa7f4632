"""The agent `sweep`: a search over declared options, arm 0 of every round.  Its candidate is the same tree.

From the base's own values it changes one option after the other and keeps what is quickest on a few requests: a seam
takes its other values, a number its halves and doubles, in the order in which the tree declares them.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spt.errors import Usage
from spt.gains import LEAST_GAIN
from spt.git.store import Store
from spt.round.agents import Task, Tools, Workshop, measure_all
from spt.round.budget import Waiting
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict
from spt.system import Option, Value, options_of

__all__ = ["Sweep", "make", "neighbours"]

# Draft `none` decodes without a draft, which is what the round is to beat.
_LEFT_OUT = frozenset({"draft"})


def make(argument: str, workshop: Workshop) -> "Sweep":
    """The agent; `argument` names the options to search over, with commas between them, where not all are."""
    return Sweep(workshop, tuple(name for name in argument.split(",") if name))


@dataclass(frozen=True)
class Sweep:
    """`names` are the options to search over; all where there are none."""

    workshop: Workshop
    names: tuple[str, ...] = ()
    name: str = "sweep"

    def propose(self, task: Task) -> list[Direction]:
        """One search, in exploring and once more in tuning, where the base has options."""
        name = f"sweep-{task.phase}"
        if task.phase not in ("explore", "tune") or name in task.taken or not self._options(task.base):
            return []
        return [
            Direction(
                id=name,
                phase=task.phase,
                agent=self.name,
                title="A search over the declared options",
                hypothesis="Some option of the system as it is stands better elsewhere than at its value of now.",
                base=task.base,
                base_commit=task.base_commit,
            )
        ]

    def _options(self, base: SystemOf) -> dict[str, Option]:
        declared = options_of(Store.find(self.workshop.repository).objects, base.tree)
        if unknown := [name for name in self.names if name not in declared]:
            raise Usage(f"no option is named '{unknown[0]}'", f"there are: {', '.join(sorted(declared)) or 'none'}")
        chosen = self.names or tuple(name for name in declared if name not in _LEFT_OUT)
        return {name: declared[name] for name in chosen}

    def implement(self, direction: Direction, tools: Tools) -> Candidate | Declined:
        """The quickest values found within the tries of the direction; Declined where none is quicker than now."""
        declared = self._options(direction.base)
        best: tuple[float, Candidate] | None = None
        values, tried, failed = dict(direction.base.options), 0, ""
        for number, name in enumerate(declared):
            candidates = _near(direction, declared, values, name)
            try:
                answers = measure_all(tools, candidates)
            except Waiting:
                for later in tuple(declared)[number + 1 :]:  # carried together, unless this one finds better values
                    with contextlib.suppress(Waiting):
                        measure_all(tools, _near(direction, declared, values, later))
                raise
            for answer, candidate in zip(answers, candidates, strict=True):
                if "refused" in answer:
                    failed = failed or str(answer["refused"])
                    continue
                tried += 1
                if answer["ratio"] > (best[0] if best else 1.0):
                    best = float(answer["ratio"]), candidate
            if best is not None:
                values = dict(best[1].system.options)
        if best is None:
            words = f"none of {tried} settings was quicker on development requests"
            return Declined(words if tried or not failed else f"no setting could be measured: {failed}")
        if best[0] < 1 + LEAST_GAIN:
            least = f"and at least {LEAST_GAIN:.0%} are wanted"
            return Declined(f"the quickest of {tried} settings promises {best[0] - 1:+.1%}, {least}")
        return best[1]

    def revise(self, direction: Direction, verdict: Verdict, tools: Tools) -> Candidate | Declined:
        """What was quickest was not quick enough."""
        return Declined(verdict.reason)


def _near(
    direction: Direction, declared: Mapping[str, Option], values: Mapping[str, Value], name: str
) -> list[Candidate]:
    """The values with one option at those beside its own."""
    near = neighbours(declared[name], values.get(name, declared[name].default))
    return [_candidate(direction, declared, {**values, name: value}) for value in near]


def _candidate(direction: Direction, declared: Mapping[str, Option], values: Mapping[str, Value]) -> Candidate:
    options = {name: value for name, value in values.items() if name not in declared or value != declared[name].default}
    words = " ".join(f"{name}={value}" for name, value in sorted(options.items())) or "every option at its default"
    return Candidate(SystemOf(direction.base.tree, options), direction.base_commit, words)


def neighbours(option: Option, value: Value) -> Iterator[Value]:
    """Other values to try beside one: all that are listed, or half and double of a number within its range."""
    if option.values is not None:
        yield from (one for one in option.values if one != value)
    elif option.type == "bool":
        yield not value
    elif option.type == "int":
        low, high = option.span or (0, math.inf)
        # 0 often stands for "all": its neighbours are small numbers, not its halves.
        near = (int(value) // 2, 2 * int(value)) if value else (4, 8)
        yield from dict.fromkeys(one for one in near if low <= one <= high and one != value)
    elif option.type == "float":
        low, high = option.span or (0.0, math.inf)
        parts = (float(value) / 2, 2 * float(value)) if value else (min(1.0, high) / 16,)
        yield from dict.fromkeys(one for one in parts if low <= one <= high and one != value)
