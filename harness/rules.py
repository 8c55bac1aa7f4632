"""The rules by which a timing is judged: how large a unit is, how many there are, and when they are looked at.

`paired-1` is the judge's own (docs/judge.md).  `demo` shows the same machinery on a machine whose noise is too large
for it: it promotes a raw ratio, says so in every verdict, and no judged evidence may carry it.
"""

from dataclasses import dataclass

from harness.errors import Usage

__all__ = ["DEMO", "PAIRED", "RULES", "Rule", "Shape", "rule_named"]


@dataclass(frozen=True)
class Shape:
    """What a half of a unit asks of either arm: a warm-up, then quartets of two groups each, in requests and tokens."""

    quartets: int
    group: int
    warm_up: int
    answer_tok: int

    @property
    def half_requests(self) -> int:
        """Requests of one half of a unit."""
        return self.warm_up + 2 * self.quartets * self.group

    @property
    def turns(self) -> int:
        """Turns of both arms in one half: each arm's warm-up and its groups."""
        return 2 * (1 + 2 * self.quartets)


@dataclass(frozen=True)
class Rule:
    """Units a phase has at most; `looks` are those of the confirmation.  charted: a drifting arm b voids a unit."""

    name: str
    shape: Shape
    calibrate: int
    screen: int
    looks: tuple[int, ...]
    charted: bool = True

    @property
    def of(self) -> dict[str, int]:
        """Units of each phase."""
        return {"calibrate": self.calibrate, "screen": self.screen, "confirm": self.looks[-1]}


# The first seconds of a process are its noisiest: a group's worth of requests before any is timed.
PAIRED = Rule("paired-1", Shape(quartets=3, group=8, warm_up=8, answer_tok=128), 8, 5, (10, 20))
# One prompt a group moves the pace of arm b by more than any drift.
DEMO = Rule("demo", Shape(quartets=1, group=1, warm_up=1, answer_tok=48), 4, 0, (4,), charted=False)
RULES = {rule.name: rule for rule in (PAIRED, DEMO)}


def rule_named(name: str) -> Rule:
    """The rule; Usage where this judge has none of that name."""
    if name not in RULES:
        raise Usage(f"the rule is '{name}'", f"this judge has {' and '.join(repr(each) for each in RULES)}")
    return RULES[name]
