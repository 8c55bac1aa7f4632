"""What a round did, as records: each with the events, verdicts and samples that it stands on."""

from dataclasses import dataclass, field
from typing import Any

from spt.campaign import DEMO
from spt.git.objects import Oid

__all__ = [
    "COSTS",
    "DECLINED",
    "FACTORS",
    "FAILED",
    "OPEN",
    "PROMOTED",
    "Bucket",
    "Ceiling",
    "Entry",
    "Figure",
    "Final",
    "Forcing",
    "Gate",
    "Phase",
    "Promotion",
    "Source",
    "Spending",
    "Story",
    "System",
    "Tried",
    "raw_word",
]

PROMOTED, DECLINED, FAILED, OPEN = "promoted", "declined", "failed", "open"
_OWN = "controller"  # the agent of directions that are no idea: the whole, measured again
FACTORS = ("overhead", "kernel", "tau")
COSTS = ("wall_s", "device_s", "input_tok", "output_tok", "usd")


@dataclass(frozen=True)
class Source:
    """Where a record comes from: events of the journal by number, a verdict of the ledger, raw samples by digest."""

    round: str
    events: tuple[int, ...]
    verdict: str | None = None  # path in the ledger: what/key.json
    raw: str | None = None


@dataclass(frozen=True)
class System:
    """A system as a journal names it."""

    tree: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A ratio of times with its interval, and the word that may be said of it; ends are None where there are none.

    word: raw ratio or speedup; one by the demo's rule says so.
    """

    word: str
    value: float
    low: float | None
    high: float | None
    source: Source


@dataclass(frozen=True)
class Gate:
    """What one gate said of a candidate; ratios, and the noise of the campaign behind it."""

    gate: str
    passed: bool
    reason: str
    gain: float | None
    low: float | None
    high: float | None
    noise: float | None
    source: Source


@dataclass(frozen=True)
class Tried:
    """One direction from its plan to its end.  `predicted` and `bounds` are ratios."""

    id: str
    phase: str
    agent: str
    title: str
    hypothesis: str
    predicted: float | None
    bounds: tuple[float, float] | None
    source: Source
    gates: tuple[Gate, ...]
    outcome: str
    ended: Source | None  # the event that ended it
    gate: str | None = None  # that declined it
    reason: str = ""
    rescue: str | None = None
    commit: Oid | None = None  # of its newest candidate
    candidates: int = 0
    files: float | None = None  # that the newest candidate changes, and their lines
    lines: float | None = None

    @property
    def counts(self) -> bool:
        """Whether it is an idea that was tried, and not the whole that was measured again."""
        return self.agent != _OWN


@dataclass(frozen=True)
class Forcing:
    """What forcing said of a promoted system: shares of tokens, the excess over stock's own in shares."""

    direction: str
    answer: str
    mismatch: float | None
    stock_mismatch: float | None
    excess: tuple[float, float, float] | None  # value, lower, upper
    tokens: int
    sessions: int
    timed: bool  # whether the very tokens that were timed were forced
    source: Source


@dataclass(frozen=True)
class Promotion:
    """A change that became the current best, and what it gained over the best before."""

    direction: str
    phase: str
    agent: str
    title: str
    commit: Oid | None
    base: System | None  # what it was timed against
    over: str  # the same in a word: start, or the direction that made it
    system: System | None
    rule: str
    figure: Figure
    measured: Gate | None  # the gate whose noise stands beside it
    forcing: Forcing | None
    entry: str | None
    source: Source


@dataclass(frozen=True)
class Ceiling:
    """A measurement against its ceiling: factors multiply to ceiling over speed, as published and calibrated are."""

    folder: str
    tau: float | None
    nodes: float | None
    factors: dict[str, float]
    published: float | None
    calibrated: float | None
    step_us: float | None
    floors_us: float | None  # of all classes
    classes: tuple[tuple[str, float | None, float], ...]  # (kernel class, profiled us a step, floor us)
    source: Source

    @property
    def speed(self) -> float | None:
        """Tokens a second: tau over the time of a step."""
        if self.tau is None or not self.step_us:
            return None
        return 1e6 * self.tau / self.step_us

    @property
    def product(self) -> float | None:
        """Ceiling over speed."""
        if set(self.factors) != set(FACTORS):
            return None
        return self.factors["overhead"] * self.factors["kernel"] * self.factors["tau"]


@dataclass(frozen=True)
class Bucket:
    """A bucket of a final's forcing, as far as the ledger tells it."""

    name: str
    tokens: int
    sessions: int
    mismatch: float
    stock_mismatch: float | None
    excess: tuple[float, float, float] | None
    word: str


@dataclass(frozen=True)
class Final:
    """The sealed final; figures are None where nothing was timed."""

    verdict: str
    stock: Figure | None
    ar: Figure | None
    mismatch: float | None
    stock_mismatch: float | None
    excess: tuple[float, float, float] | None
    tokens: int | None
    buckets: tuple[Bucket, ...]
    source: Source


@dataclass(frozen=True)
class Spending:
    """Sums over events of one phase; `events` are those that were summed."""

    phase: str
    wall_s: float
    device_s: float
    input_tok: float
    output_tok: float
    usd: float
    source: Source


@dataclass(frozen=True)
class Phase:
    """How a phase went: the last state that was journaled, and how many directions were tried and promoted in it."""

    phase: str
    state: str  # begun, done, skipped, or "" where it was not reached
    reason: str
    tried: int
    promoted: int
    source: Source | None


@dataclass(frozen=True)
class Entry:
    """An entry that the round made, or that got evidence; `patch` is the commit of its delta where that is here."""

    name: str
    delta: str
    discovery: bool
    promoted: str | None
    patch: Oid | None
    note: str  # why no evidence came with it
    source: Source


@dataclass(frozen=True)
class Story:
    """A whole round."""

    round: str
    tip: Oid
    begun: str
    last: str
    outcome: str  # what `ended` says; "" where the round did not end
    stops: tuple[tuple[str, str, Source], ...]  # (stopped, resumed or best, reason, source)
    deployment: str
    digest: str
    stock: str
    start: System | None
    commitment: str
    rule: str
    agents: tuple[str, ...]
    cost_model: bool | None
    width: int | None  # agents at once, as the round was told
    phases: tuple[Phase, ...]
    tried: tuple[Tried, ...]
    promotions: tuple[Promotion, ...]
    ceilings: tuple[Ceiling, ...]
    final: Final | None
    spendings: tuple[Spending, ...]
    entries: tuple[Entry, ...]
    residual: tuple[tuple[str, Source], ...]
    unmade: tuple[str, ...]  # why promoted directions became no entry
    best: System | None  # that the round came to, as far as it came
    branch: str
    file: str  # the deployment file that runs the result
    doubts: tuple[str, ...]
    source: Source
    commits: dict[int, Oid] = field(repr=False, default_factory=dict)
    told: dict[int, str] = field(repr=False, default_factory=dict)  # what each event is, in words

    @property
    def raw(self) -> str:
        """What a figure of this round is called that is no speedup."""
        return raw_word(self.rule)

    @property
    def way(self) -> str:
        """How the round was run, in words."""
        model = {True: "cost model", False: "no cost model", None: "cost model not recorded"}[self.cost_model]
        width = "agents not recorded" if self.width is None else f"{self.width} agent{'' if self.width == 1 else 's'}"
        return f"{model}, {width}"

    def cost(self, phase: str) -> Spending | None:
        """What a phase took; None where nothing was written down."""
        return next((each for each in self.spendings if each.phase == phase), None)

    @property
    def total(self) -> Spending | None:
        """What all phases took together."""
        if not self.spendings:
            return None
        events = tuple(seq for each in self.spendings for seq in each.source.events)
        sums = {name: sum(getattr(each, name) for each in self.spendings) for name in COSTS}
        return Spending(phase="all", **sums, source=Source(self.round, events))

    @property
    def count(self) -> dict[str, int]:
        """How many ideas came to what."""
        ideas = [each.outcome for each in self.tried if each.counts]
        return {word: ideas.count(word) for word in (PROMOTED, DECLINED, FAILED, OPEN)}

    @property
    def ideas(self) -> int:
        """How many ideas were tried."""
        return sum(self.count.values())

    @property
    def path(self) -> tuple[Promotion, ...] | None:
        """The promotions that lead from the round's start to its best; None where they do not.

        Directions that ran beside one another may have been timed against one base, so not all that was promoted
        multiplies.
        """
        best, found = self.best, list[Promotion]()
        for each in reversed(self.promotions):
            if best is not None and each.system == best:
                found.append(each)
                best = each.base
        return tuple(reversed(found)) if best is not None and best == self.start else None

    @property
    def development(self) -> Figure | None:
        """The gain over the round's start: as it was measured, or else the product along `path`, a raw ratio."""
        if not self.path:
            return None
        if len(self.path) == 1:
            return self.path[0].figure
        value, events = 1.0, list[int]()
        for each in self.path:
            value *= each.figure.value
            events += each.source.events
        return Figure(self.raw, value, None, None, Source(self.round, tuple(events)))


def raw_word(rule: str) -> str:
    """What a figure is called that is no speedup; the demo's rule is said wherever one of its figures is."""
    return "raw ratio" if rule != DEMO else f"raw ratio (rule {rule})"
