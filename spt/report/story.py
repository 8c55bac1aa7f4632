"""What a round did, folded from its journal: every record with the events, verdicts and samples that it stands on."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spt.errors import Usage
from spt.git.objects import Oid
from spt.ratio import RawRatio, Speedup, figure_of
from spt.report.events import Data, Read, Told
from spt.round.journal import PHASES
from spt.verdicts import Held, Ledger

__all__ = [
    "DECLINED",
    "FAILED",
    "OPEN",
    "PROMOTED",
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
    "tell",
]

PROMOTED, DECLINED, FAILED, OPEN = "promoted", "declined", "failed", "open"
_ALIKE = 1e-3  # relative; a journal's ratio and the ledger's gain of one verdict are written apart
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
    """A ratio of times with its interval, and the word that may be said of it; ends are None where there are none."""

    word: str  # raw ratio or speedup
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
    system: System | None
    rule: str
    figure: Figure
    measured: Gate | None  # the gate whose noise stands beside it
    forcing: Forcing | None
    entry: str | None
    source: Source


@dataclass(frozen=True)
class Ceiling:
    """A measurement against its ceiling: factors multiply to ceiling over speed; ceilings in the journal's own unit."""

    folder: str
    tau: float | None
    nodes: float | None
    factors: dict[str, float]
    published: float | None
    calibrated: float | None
    step_us: float | None
    floors_us: float | None
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
    """A memory entry that the round made, or added evidence to; `patch` is the commit of its delta where it is here."""

    name: str
    delta: str
    discovery: bool
    promoted: str | None
    patch: Oid | None
    source: Source


@dataclass(frozen=True)
class Story:
    """A whole round."""

    round: str
    tip: Oid
    begun: str
    last: str
    outcome: str  # what `ended` says; "" where the round did not end
    stops: tuple[tuple[str, str, Source], ...]  # (stopped or resumed, reason, source)
    deployment: str
    digest: str
    stock: str
    start: System | None
    commitment: str
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
    result: System | None
    branch: str
    file: str  # the deployment file that runs the result
    doubts: tuple[str, ...]
    source: Source
    commits: dict[int, Oid] = field(repr=False, default_factory=dict)
    told: dict[int, str] = field(repr=False, default_factory=dict)  # what each event is, in words

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
        """How many directions came to what."""
        return {word: sum(each.outcome == word for each in self.tried) for word in (PROMOTED, DECLINED, FAILED, OPEN)}

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
        """The product along `path`, over the round's start: a raw ratio, since each was measured on its own."""
        if not self.path:
            return None
        value, events = 1.0, list[int]()
        for each in self.path:
            value *= each.figure.value
            events += each.source.events
        return Figure("raw ratio", value, None, None, Source(self.round, tuple(events)))

    @property
    def best(self) -> System | None:
        """The system that the round came to, as far as it came."""
        return self.result or (self.promotions[-1].system if self.promotions else self.start)


def tell(read: Read, ledger: Ledger) -> Story:
    """The story of a journal; Usage, in one line, where an event does not hold what it must."""
    return _Teller(read, ledger).story()


class _Teller:
    """Reads the events of a journal in order, kind by kind."""

    def __init__(self, read: Read, ledger: Ledger) -> None:
        self.read = read
        self.ledger = ledger
        self.doubts: list[str] = []
        self.by_name: dict[str, list[Told]] = defaultdict(list)
        self.by_direction: dict[str, list[Told]] = defaultdict(list)
        for told in read.told:
            self.by_name[told.name].append(told)
            if told.event.direction is not None:
                self.by_direction[told.event.direction].append(told)

    def story(self) -> Story:
        read, begun = self.read, self._first("begun")
        data = begun.data if begun else Data({}, read.round)
        ended, deployed = self._last("ended"), self._last("deployment")
        modes = data.inner("modes")
        tried, entries = self._tried(), self._entries()
        promotions = tuple(self._promotion(told, tried, entries) for told in self._of("promoted"))
        width = modes.amount("agents") if modes else None
        return Story(
            round=read.round,
            tip=read.tip,
            begun=read.told[0].event.date,
            last=read.told[-1].event.date,
            outcome=ended.data.text("outcome", "ended") if ended else "",
            stops=tuple(
                (told.name, told.data.text("reason"), self._source(told))
                for told in read.told
                if told.name in ("stopped", "resumed")
            ),
            deployment=data.text("deployment", "unnamed"),
            digest=data.text("digest"),
            stock=data.text("stock"),
            start=_system(data.inner("start")),
            commitment=data.text("commitment"),
            agents=tuple(data.words("agents")),
            cost_model=modes.flag("cost_model") if modes else None,
            width=None if width is None else int(width),
            phases=self._phases(tried),
            tried=tried,
            promotions=promotions,
            ceilings=tuple(self._ceiling(told) for told in self._of("measured")),
            final=self._final(),
            spendings=self._spendings(),
            entries=entries,
            residual=tuple(
                (commit, self._source(told)) for told in self._of("residual") for commit in told.data.words("commits")
            ),
            result=_system(deployed.data.inner("system")) if deployed else None,
            branch=deployed.data.text("branch") if deployed else "",
            file=deployed.data.text("path") if deployed else "",
            doubts=tuple(dict.fromkeys(self.doubts)),
            source=self._source(begun or read.told[0]),
            commits={told.event.seq: told.commit for told in read.told},
            told={told.event.seq: _words(told) for told in read.told},
        )

    def _of(self, name: str) -> list[Told]:
        return self.by_name.get(name, [])

    def _first(self, name: str) -> Told | None:
        return next(iter(self._of(name)), None)

    def _last(self, name: str) -> Told | None:
        return next(reversed(self._of(name)), None)

    def _source(self, *told: Told, verdict: Held | None = None) -> Source:
        events = tuple(each.event.seq for each in told)
        if verdict is None or verdict.verdict is None:
            return Source(self.read.round, events)
        return Source(self.read.round, events, verdict.path, verdict.verdict.get("samples"))

    def _doubt(self, told: Told, words: str) -> None:
        self.doubts.append(f"event {told.event.seq} ({told.name}): {words}")

    def _held(self, told: Told, what: str, key: str | None) -> Held | None:
        """The record of a verdict that an event names; None, with a doubt, where the ledger has none."""
        if key is None:
            return None
        held = self.ledger.held(what, key)
        if held.verdict is None:
            self._doubt(told, f"the ledger here has no {what} verdict '{key[:12]}'")
            return None
        return held

    # Directions.

    def _tried(self) -> tuple[Tried, ...]:
        """The directions in the order in which they were first named."""
        kinds = {"direction", "candidate", "gate", PROMOTED, DECLINED, FAILED}
        found = ((name, [told for told in own if told.name in kinds]) for name, own in self.by_direction.items())
        return tuple(self._direction(name, own) for name, own in found if own)

    def _direction(self, name: str, own: Sequence[Told]) -> Tried:
        begun = next((told for told in own if told.name == "direction"), own[0])
        ended = next((told for told in reversed(own) if told.name in (PROMOTED, DECLINED, FAILED)), None)
        made = next((told for told in reversed(own) if told.name == "candidate"), None)
        known = begun.data if begun.name == "direction" else Data({}, begun.data.where)
        return Tried(
            id=name,
            phase=begun.event.phase,
            agent=known.text("agent"),
            title=known.text("title", name),
            hypothesis=known.text("hypothesis"),
            predicted=known.ratio("predicted_gain"),
            bounds=known.bounds("interval"),
            source=self._source(begun),
            gates=tuple(self._gate(told) for told in own if told.name == "gate"),
            outcome=ended.name if ended else OPEN,
            ended=self._source(ended) if ended else None,
            gate=ended.data.word("gate") if ended and ended.name == DECLINED else None,
            reason=ended.data.text("reason") if ended and ended.name != PROMOTED else "",
            rescue=ended.data.word("rescue") if ended and ended.name != PROMOTED else None,
            commit=made.data.word("commit") if made else None,
        )

    def _gate(self, told: Told) -> Gate:
        data, figure = told.data, told.data.inner("figure") or Data({}, told.data.where)
        gate, key = data.text("gate", "unnamed"), data.word("key")
        what = "forcing" if gate in ("force", "forcing", "development") else "timing"
        held = None if key is None else self.ledger.held(what, key)
        return Gate(
            gate=gate,
            passed=bool(data.flag("passed", False)),
            reason=data.text("reason"),
            gain=figure.ratio("gain"),
            low=figure.ratio("low"),
            high=figure.ratio("high"),
            noise=figure.amount("noise"),
            source=self._source(told, verdict=held),
        )

    def _promotion(self, told: Told, tried: Sequence[Tried], entries: Iterable[Entry]) -> Promotion:
        data, name = told.data, told.event.direction or ""
        about = next((each for each in tried if each.id == name), None)
        held = self._held(told, "timing", data.word("timing"))
        gates = [gate for gate in about.gates if gate.noise is not None] if about else []
        return Promotion(
            direction=name,
            phase=told.event.phase,
            agent=about.agent if about else "",
            title=about.title if about else name,
            commit=data.word("commit"),
            base=self._base(name, held),
            system=_system(data.inner("system")),
            rule=data.text("rule"),
            figure=self._figure(told, data, held, None, data.text("kind")),
            measured=gates[-1] if gates else None,
            forcing=self._forcing(told, name, held),
            entry=next((entry.name for entry in entries if entry.promoted == name), None),
            source=self._source(told, verdict=held),
        )

    def _base(self, name: str, timing: Held | None) -> System | None:
        """What a promotion was timed against: what its verdict says, else what its direction began on."""
        if timing is not None and timing.verdict is not None:
            other = timing.verdict["of"]["b"]
            return System(other["tree"], dict(other["options"]))
        begun = next((told for told in self.by_direction.get(name, []) if told.name == "direction"), None)
        return _system(begun.data.inner("base")) if begun else None

    def _figure(self, told: Told, data: Data, held: Held | None, against: str | None, said: str) -> Figure:
        """A gain in the words that the ledger allows; what the journal claims beyond that is a doubt."""
        value, word = data.ratio("gain"), "raw ratio"
        if value is None:
            raise Usage(f"{data.where}: 'gain' is missing")
        if held is not None and held.verdict is not None:
            allowed: RawRatio | Speedup | None = figure_of(self.ledger, held.verdict, against)
            word = "speedup" if isinstance(allowed, Speedup) else word
            if allowed is not None and abs(allowed.value / value - 1) > _ALIKE:
                self._doubt(told, f"it says {value:.3f}, and its verdict {allowed.value:.3f}")
                word = "raw ratio"
        if said == "speedup" and word != "speedup":
            self._doubt(told, "it says speedup, and no forcing verdict in the ledger here backs that: a raw ratio")
        low, high = data.ratio("low"), data.ratio("high")
        return Figure(word, value, low, high, self._source(told, verdict=held))

    def _forcing(self, told: Told, name: str, timing: Held | None) -> Forcing | None:
        held = self._held(told, "forcing", told.data.word("forcing"))
        if held is None or held.verdict is None:
            return None
        verdict = held.verdict
        timed = timing is not None and timing.verdict is not None and verdict.get("timed") == timing.verdict["samples"]
        return Forcing(
            direction=name,
            answer=verdict["answer"],
            mismatch=verdict["mismatch"],
            stock_mismatch=verdict.get("stock_mismatch"),
            excess=_excess(verdict.get("excess")),
            tokens=verdict["tokens"],
            sessions=verdict.get("sessions", 0),
            timed=timed,
            source=self._source(told, verdict=held),
        )

    # The other phases.

    def _ceiling(self, told: Told) -> Ceiling:
        data = told.data
        factors = data.inner("factors")
        found = {name: factors.ratio(name) for name in FACTORS} if factors else {}
        return Ceiling(
            folder=data.text("folder"),
            tau=data.amount("tau"),
            nodes=data.amount("nodes"),
            factors={name: value for name, value in found.items() if value is not None},
            published=data.amount("published"),
            calibrated=data.amount("calibrated"),
            step_us=data.amount("step_us"),
            floors_us=data.amount("floors_us"),
            source=self._source(told),
        )

    def _final(self) -> Final | None:
        told = self._last("final")
        if told is None:
            return None
        data, key = told.data, told.data.word("key")
        held = self._held(told, "final", key)
        verdict = (held.verdict if held else None) or {}
        answer = data.text("verdict", "unnamed")
        if verdict and verdict["answer"] != answer:
            self._doubt(told, f"it says {answer}, and its verdict {verdict['answer']}")
        figures = {}
        for name, against in (("against_stock", "stock"), ("against_ar", "ar")):
            inner = data.inner(name)
            has = inner is not None and inner.ratio("gain") is not None
            figures[against] = self._figure(told, inner, held, against, "") if inner is not None and has else None
        return Final(
            verdict=answer,
            stock=figures["stock"],
            ar=figures["ar"],
            mismatch=verdict.get("mismatch"),
            stock_mismatch=verdict.get("stock_mismatch"),
            excess=_excess(verdict.get("excess")),
            tokens=verdict.get("tokens"),
            buckets=tuple(_bucket(each) for each in verdict.get("buckets", [])),
            source=self._source(told, verdict=held),
        )

    def _spendings(self) -> tuple[Spending, ...]:
        found = []
        for phase in PHASES:
            spent = [told for told in self._of("spent") if told.event.phase == phase]
            if spent:
                sums = {name: sum(told.data.amount(name) or 0.0 for told in spent) for name in COSTS}
                found.append(Spending(phase=phase, **sums, source=self._source(*spent)))
        return tuple(found)

    def _phases(self, tried: Iterable[Tried]) -> tuple[Phase, ...]:
        found = []
        for phase in PHASES:
            told = [each for each in self.read.told if each.event.phase == phase]
            states = [each for each in told if each.name == "phase"]
            state = states[-1].data.text("state") if states else "begun" if told else ""
            mine = [each for each in tried if each.phase == phase]
            found.append(
                Phase(
                    phase=phase,
                    state=state,
                    reason=states[-1].data.text("reason") if states else "",
                    tried=len(mine),
                    promoted=sum(each.outcome == PROMOTED for each in mine),
                    source=self._source(states[-1]) if states else None,
                )
            )
        return tuple(found)

    def _entries(self) -> tuple[Entry, ...]:
        found = []
        for told in self._of("entry"):
            name, delta = told.data.text("name", "unnamed"), told.data.text("delta")
            patch = self.ledger.store.reference(f"refs/spt/patch/{name}/{delta[:12]}")
            found.append(
                Entry(
                    name=name,
                    delta=delta,
                    discovery=bool(told.data.flag("discovery", False)),
                    promoted=told.data.word("promoted") or told.event.direction,
                    patch=patch,
                    source=self._source(told),
                )
            )
        return tuple(found)


def _system(data: Data | None) -> System | None:
    if data is None:
        return None
    options = data.inner("options")
    return System(data.text("tree"), dict(options.values) if options else {})


def _excess(bounds: Any) -> tuple[float, float, float] | None:
    return None if bounds is None else (bounds["value"], bounds["lower"], bounds["upper"])


def _bucket(bucket: Any) -> Bucket:
    high = "on" if bucket["high"] is None else f"to {bucket['high']}"
    return Bucket(
        name=f"{bucket['axis']} {bucket['low']} {high}",
        tokens=bucket["tokens"],
        sessions=bucket["sessions"],
        mismatch=bucket["mismatch"],
        stock_mismatch=bucket["stock_mismatch"],
        excess=_excess(bucket["excess"]),
        word="rejects" if bucket["rejects"] else "covered" if bucket["covered"] else "not covered",
    )


def _words(told: Told) -> str:
    """What an event is: its phase, its name, its direction, and of a gate which."""
    event, gate = told.event, ""
    if event.event == "gate" and isinstance(event.data.get("gate"), str):
        gate = f" {event.data['gate']}"
    return f"{event.phase}: {event.event}{gate}" + (f" {event.direction}" if event.direction else "")
