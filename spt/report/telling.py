"""Folds a journal into the story of its round.

Figures get the word that the ledger allows, whatever the journal calls them; where the two disagree, that is a doubt
which the page shows.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from spt.errors import Usage
from spt.ratio import RawRatio, Speedup, figure_of
from spt.report.events import Data, Read, Told
from spt.report.story import (
    COSTS,
    DECLINED,
    FACTORS,
    FAILED,
    OPEN,
    PROMOTED,
    Bucket,
    Ceiling,
    Entry,
    Figure,
    Final,
    Forcing,
    Gate,
    Phase,
    Promotion,
    Source,
    Spending,
    Story,
    System,
    Tried,
    raw_word,
)
from spt.round.journal import PHASES
from spt.verdicts import Held, Ledger

__all__ = ["tell"]

_ALIKE = 1e-3  # relative; a journal's ratio and the ledger's gain of one verdict are written apart
_LEAST_UNITS = 3  # an interval of two says nothing


def tell(read: Read, ledger: Ledger) -> Story:
    """The story of a journal; Usage, in one line, where an event does not hold what it must."""
    return _Teller(read, ledger).story()


class _Teller:
    """Reads the events of a journal in order, kind by kind."""

    def __init__(self, read: Read, ledger: Ledger) -> None:
        self.read = read
        self.ledger = ledger
        self.doubts: list[str] = []
        self.rule = read.told[0].data.text("rule")
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
        start = _system(data.inner("start"))
        promotions = self._promotions(tried, entries, start)
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
                if told.name in ("stopped", "resumed", "best")
            ),
            deployment=data.text("deployment", "unnamed"),
            digest=data.text("digest"),
            stock=data.text("stock"),
            start=start,
            commitment=data.text("commitment"),
            rule=self.rule,
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
            unmade=tuple(words for told in self._of("residual") for words in told.data.words("reasons")),
            best=self._best(start),
            branch=deployed.data.text("branch") if deployed else "",
            file=self._inside(deployed.data.text("path")) if deployed else "",
            doubts=tuple(dict.fromkeys(self.doubts)),
            source=self._source(begun or read.told[0]),
            commits={told.event.seq: told.commit for told in read.told},
            told={told.event.seq: _words(told) for told in read.told},
        )

    def _of(self, name: str) -> list[Told]:
        return self.by_name.get(name, [])

    def _best(self, start: System | None) -> System | None:
        """The current best after all events."""
        names = (PROMOTED, "best", "deployment")
        moved = [told for told in self.read.told if told.name in names and not told.data.flag("beside")]
        systems = (_system(told.data.inner("system")) for told in reversed(moved))
        return next((system for system in systems if system is not None), start)

    def _inside(self, path: str) -> str:
        """A path without what is above the repository: a page may go where nobody needs to know that."""
        common = self.ledger.store.common
        if common is not None and path.startswith(f"{common}/"):
            return path.removeprefix(f"{common}/")
        return path

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
            candidates=sum(told.name == "candidate" for told in own),
            files=made.data.amount("files") if made else None,
            lines=made.data.amount("lines") if made else None,
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

    def _promotions(
        self, tried: Sequence[Tried], entries: Sequence[Entry], start: System | None
    ) -> tuple[Promotion, ...]:
        by_name = {each.id: each for each in tried}
        by_direction = {entry.promoted: entry.name for entry in entries}
        made: list[tuple[System | None, str]] = [(start, "the start")]
        found = []
        for told in self._of(PROMOTED):
            name = told.event.direction or ""
            about, held = by_name.get(name), self._held(told, "timing", told.data.word("timing"))
            gates = [gate for gate in about.gates if gate.noise is not None] if about else []
            system, base = _system(told.data.inner("system")), self._base(told, held)
            over = next((word for known, word in made if known is not None and known == base), None)
            made.append((system, name))
            found.append(
                Promotion(
                    direction=name,
                    phase=told.event.phase,
                    agent=about.agent if about else "",
                    title=about.title if about else name,
                    commit=told.data.word("commit"),
                    base=base,
                    over=over or ("not known" if base is None else base.tree[:12]),
                    system=system,
                    rule=told.data.text("rule", self.rule),
                    figure=self._figure(told, told.data, held, None),
                    measured=gates[-1] if gates else None,
                    forcing=self._forcing(told, name, held),
                    entry=by_direction.get(name),
                    source=self._source(told, verdict=held),
                )
            )
        return tuple(found)

    def _base(self, told: Told, timing: Held | None) -> System | None:
        """What a promotion was timed against: what its direction began on, else what its verdict says."""
        own = self.by_direction.get(told.event.direction or "", [])
        begun = next((each for each in own if each.name == "direction"), None)
        base = _system(begun.data.inner("base")) if begun else None
        if timing is None or timing.verdict is None:
            return base
        other = timing.verdict["of"]["b"]
        if base is not None and base.tree != other["tree"]:
            self._doubt(told, f"its direction began on {base.tree[:12]}, and it was timed against {other['tree'][:12]}")
            return None
        return base or System(other["tree"], dict(other["options"]))

    def _figure(self, told: Told, data: Data, held: Held | None, against: str | None) -> Figure:
        """A gain in the words that the ledger allows; what the journal claims beyond that is a doubt."""
        value, raw = data.ratio("gain"), raw_word(told.data.text("rule", self.rule))
        word = raw
        if value is None:
            raise Usage(f"{data.where}: 'gain' is missing")
        if held is not None and held.verdict is not None:
            allowed: RawRatio | Speedup | None = figure_of(self.ledger, held.verdict, against)
            word = "speedup" if isinstance(allowed, Speedup) else word
            if allowed is not None and abs(allowed.value / value - 1) > _ALIKE:
                self._doubt(told, f"it says {value:.3f}, and its verdict {allowed.value:.3f}")
                word = raw
        if told.data.text("kind") == "speedup" and word != "speedup":
            self._doubt(told, "it says speedup, and no forcing verdict in the ledger here backs that: a raw ratio")
        low, high = data.ratio("low"), data.ratio("high")
        verdict = held.verdict if held else None
        if verdict is not None and against is not None and verdict["timing"][against]["units"] < _LEAST_UNITS:
            low = high = None
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
        factors, floors, taken = data.inner("factors"), data.inner("floors_us"), data.inner("classes_us")
        found = {name: factors.ratio(name) for name in FACTORS} if factors else {}
        classes = [
            (name, taken.amount(name) if taken else None, floors.amount(name) or 0.0)
            for name in (floors.values if floors else ())
            if floors is not None
        ]
        return Ceiling(
            folder=self._inside(data.text("folder")),
            tau=data.amount("tau"),
            nodes=data.amount("nodes"),
            factors={name: value for name, value in found.items() if value is not None},
            published=data.amount("published"),
            calibrated=data.amount("calibrated"),
            step_us=data.amount("step_us"),
            floors_us=math.fsum(floor for _, _, floor in classes) if classes else None,
            classes=tuple(classes),
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
            figures[against] = self._figure(told, inner, held, against) if inner is not None and has else None
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
            mine = [each for each in tried if each.phase == phase and each.counts]
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
                    note=told.data.text("note"),
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
