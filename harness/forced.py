"""What was forced, as counts and a decision: from samples to what harness/forcing.py decides on (docs/judge.md)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.errors import Usage
from harness.forcing import LOOKS, STANDARD, Decision, Limits, Run, comparable, decide, decide_final, wanted_tok
from harness.samples import Samples
from harness.scored import (
    AXES,
    EDGES,
    SYSTEM_PHASES,
    Event,
    Scored,
    delta_of,
    events_of,
    malformed,
    mean_clipped,
    places_from,
    scored_answers,
)
from harness.statistics import Flags
from harness.tau import looped

__all__ = ["Report", "Wanted", "fault_of", "first_look", "judge", "run_of"]

AUDITED = 200
_FAULTS = {"crash": "crashed", "hang": "hung", "violation": "broke the protocol"}


@dataclass(frozen=True)
class Wanted:
    """What a first look wants, known before anything is scored."""

    tokens: int  # without loops
    sessions: int
    known: Flags  # [bucket of position]: whether the calibration has tokens to compare with

    def met_by(self, samples: Samples) -> bool:
        """Whether the system's answers in the samples are as many."""
        found: dict[str, int] = {}
        for said in (each for unit in samples.of(*SYSTEM_PHASES) for each in unit.said("a")):
            places = places_from(len(said["prompt"]), len(said["ids"]))
            count = int((self.known[places] & ~np.array(looped(said["ids"]), dtype=np.bool_)).sum())
            found[said["session"]] = found.get(said["session"], 0) + count
        sessions = sum(count > 0 for count in found.values())
        return sessions >= self.sessions and sum(found.values()) >= self.tokens


def first_look(reference: Samples, limits: Limits = STANDARD) -> Wanted:
    """The tokens and sessions that a first look wants against a calibration.

    Where the calibration itself leaves too much open for any number of tokens, the least that may accept.
    """
    run = run_of(_calibration(reference, "fp32"), [])
    return Wanted(wanted_tok(run, limits) or limits.tokens, limits.sessions, comparable(run.placed[1]))


def _calibration(reference: Samples, head: str) -> list[Scored]:
    stock = list(scored_answers(reference, ("reference",), "stock", head))
    if not stock:
        raise Usage("there is no calibration: no answer of stock in the phase 'reference'")
    return stock


@dataclass(frozen=True)
class Report:
    """A decision on samples, with what is printed beside it."""

    decision: Decision
    looped_tok: int
    delta_logit: tuple[float, ...]  # a bucket of positions
    families: dict[str, dict[str, float | int | None]]
    margin_logit: dict[str, float | None]  # mean clipped margin of system and stock: advice
    audit: tuple[Event, ...] = ()
    malformed: tuple[str, ...] = ()


def judge(
    samples: Samples,
    reference: Samples | None = None,
    limits: Limits = STANDARD,
    *,
    head: str = "fp32",
    clustered: bool = True,
    by_bucket: bool = True,
    standard: bool = True,
    final: bool = False,
) -> Report:
    """The decision on arm a of `samples` against stock's calibration, in `reference` or in the same file.

    `final`: all of it was measured before any of it was read, so that there are no looks.

    Raises `Usage` where answers or events are not scored yet.
    """
    reference = samples if reference is None else reference
    stock = _calibration(reference, head)
    delta = delta_of(reference, limits.bucket_tokens)
    bad, fault = malformed(samples), fault_of(samples)
    if bad or fault is not None:
        return _without_rates(bad, fault or "", delta)
    system = list(scored_answers(samples, SYSTEM_PHASES, "a", head))
    if not system:
        raise Usage("there is no answer of arm 'a' to judge", "measure the confirmation units first")
    events = {"a": events_of(samples, system, delta), "stock": events_of(reference, stock, delta)}
    runs = [run_of(part, events["a"]) for part in (_halves(system) if final else _parts(system, samples.looks))]
    own = run_of(stock, events["stock"])
    timed = [scored for scored in system if scored.unit.phase == "confirm"] if samples.timed else []
    if final:
        decision = decide_final(runs, own, limits)
    else:
        decision = decide(
            runs,
            own,
            limits,
            timed=run_of(timed, []) if timed else None,
            clustered=clustered,
            by_bucket=by_bucket,
            standard=standard,
        )
    audit = sorted(events["a"], key=lambda event: (event.explanation is not None, -event.margin_logit))
    return Report(
        decision=decision,
        looped_tok=sum(run.looped_tok for run in runs),
        delta_logit=delta,
        families=_families(system, stock),
        margin_logit={"system": mean_clipped(system), "stock": mean_clipped(stock)},
        audit=tuple(audit[:AUDITED]),
    )


def fault_of(samples: Samples) -> str | None:
    """How the candidate failed while its answers were asked, in words; None where it did not."""
    for void in samples.voids:
        if void.phase == "force" and void.arm == "a" and void.cause in _FAULTS:
            return f"the candidate {_FAULTS[void.cause]} while its answers were asked"
    return None


def _without_rates(bad: Sequence[str], fault: str, delta: tuple[float, ...]) -> Report:
    if bad:
        answer, reason = "malformed", f"{len(bad)} answers do not end as they must, '{bad[0]}' first"
    else:
        answer, reason = "reject", fault
    decision = Decision(answer, reason, 1, True, 0, 0, 0, None, None, None, needed_tok=0)
    return Report(decision, 0, delta, {}, {"system": None, "stock": None}, malformed=tuple(bad[:AUDITED]))


def _parts(system: Sequence[Scored], looks: Sequence[int]) -> list[list[Scored]]:
    """The answers by the look that first saw them; those after the last look belong to the look taken now."""
    parts: dict[int, list[Scored]] = {}
    for scored in system:
        parts.setdefault(sum(scored.unit.at > look for look in looks), []).append(scored)
    return [parts[number] for number in sorted(parts)]


def _halves(system: Sequence[Scored]) -> list[list[Scored]]:
    """The answers in two halves of whole sessions, every other one, so that both have all sorts of request."""
    order = {name: index for index, name in enumerate(dict.fromkeys(scored.said["session"] for scored in system))}
    parts = [[scored for scored in system if order[scored.said["session"]] % LOOKS == half] for half in range(LOOKS)]
    return [part for part in parts if part]


def run_of(answers: Sequence[Scored], events: Sequence[Event]) -> Run:
    """The counts of these answers; `events` may be of others too, and those that are explained do not count."""
    rows: dict[str, int] = {}
    for scored in answers:
        rows.setdefault(scored.said["session"], len(rows))
    wrong, tokens = (np.zeros((len(rows), len(EDGES) + 1, len(EDGES) + 1), dtype=np.int64) for _ in range(2))
    for scored in answers:
        row, keep = rows[scored.said["session"]], ~scored.loop
        places = scored.places(0), scored.places(1)
        for counts, counted in ((tokens, keep), (wrong, keep & scored.wrong)):
            np.add.at(counts[row], tuple(each[counted] for each in places), 1)
    own = {scored.said["request"]: scored for scored in answers}
    open_ = [event for event in events if event.explanation is None and event.request in own]
    placed_events, placed_tok = (np.zeros((len(AXES), len(EDGES) + 1), dtype=np.int64) for _ in range(2))
    for axis in range(len(AXES)):
        for event in open_:
            placed_events[axis, own[event.request].places(axis)[event.at]] += 1
        for scored in answers:
            np.add.at(placed_tok[axis], scored.places(axis), 1)
    return Run(
        tuple(rows),
        wrong,
        tokens,
        looped_tok=sum(int(scored.loop.sum()) for scored in answers),
        looped_wrong=sum(int((scored.loop & scored.wrong).sum()) for scored in answers),
        events=len(open_),
        placed_events=placed_events,
        placed_tok=placed_tok,
    )


def _families(system: Sequence[Scored], stock: Sequence[Scored]) -> dict[str, dict[str, float | int | None]]:
    """Mismatch by task family, for reading only."""
    sides = {"system": _by_family(system), "stock": _by_family(stock)}
    return {
        family: {
            "tokens": sides["system"][family][1],
            "mismatch": sides["system"][family][0] / (sides["system"][family][1] or 1),
            "stock_tokens": sides["stock"].get(family, (0, 0))[1],
            "stock_mismatch": _rate(*sides["stock"].get(family, (0, 0))),
        }
        for family in sorted(sides["system"])
    }


def _by_family(answers: Sequence[Scored]) -> dict[str, tuple[int, int]]:
    """Mismatches and tokens without loops."""
    found: dict[str, tuple[int, int]] = {}
    for scored in answers:
        if (family := scored.said.get("family")) is not None:
            wrong, tokens = found.get(family, (0, 0))
            keep = ~scored.loop
            found[family] = wrong + int((keep & scored.wrong).sum()), tokens + int(keep.sum())
    return found


def _rate(wrong: int, tokens: int) -> float | None:
    return wrong / tokens if tokens else None
