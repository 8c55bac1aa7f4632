"""Samples to scored tokens: margins in logits, delta, events and their explanations (docs/judge.md).

A *mismatch* is a token that is not the verifier's best on the system's own prefix, an *event* a mismatch with a margin
above 2 delta.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness import statistics
from harness.errors import Usage
from harness.samples import Line, Samples, Unit
from harness.statistics import Counts, Flags
from harness.tau import looped

__all__ = [
    "AXES",
    "BUCKET_TOK",
    "EDGES",
    "SYSTEM_PHASES",
    "Event",
    "Scored",
    "delta_of",
    "events_of",
    "malformed",
    "mean_clipped",
    "places_from",
    "scored_answers",
    "unchecked",
]

AXES = ("position", "output")  # of a token: its index in its context, and in its answer
EDGES = (512, 2048, 4096)  # where buckets end
BUCKET_TOK = 10_000  # fewer cover no bucket
SYSTEM_PHASES = ("confirm", "force", "stock", "ar")
_DELTA_SHARE = 0.999
_CLIP_LOGIT = 1.0


@dataclass(frozen=True)
class Event:
    """A mismatch with a margin above 2 delta."""

    arm: str
    request: str
    at: int  # index in the answer
    position: int  # index in the context
    given: int
    best: int
    margin_logit: float
    delta_logit: float
    looped: bool
    explanation: str | None  # stock: its own head says the same; shape: the verifier flips with the chunk's length


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """One answer with its scores; arrays [token]."""

    said: Line
    unit: Unit
    best: Counts
    margin: Floats  # in logits, whatever the temperature
    wrong: Flags
    loop: Flags

    @property
    def start(self) -> int:
        return len(self.said["prompt"])

    def places(self, axis: int) -> Counts:
        """The bucket of each token on an axis."""
        return places_from((self.start, 0)[axis], len(self.wrong))


def places_from(first: int, count: int) -> Counts:
    """The buckets [count] of places from `first` on."""
    return np.searchsorted(EDGES, np.arange(first, first + count), side="right")


def malformed(samples: Samples) -> list[str]:
    """The requests of arm a whose answers are not well-formed; the reason that the engine gave is not read."""
    return [
        said["request"]
        for unit in samples.of("screen", *SYSTEM_PHASES)
        for said in unit.said("a")
        if not _well_formed(said)
    ]


def _well_formed(said: Line) -> bool:
    ids, full = said["ids"], len(said["ids"]) == said["max_tokens"]
    stops = set() if said["ignore_eos"] else set(said["stop_ids"])
    return bool(ids) and stops.isdisjoint(ids[:-1]) and (full or ids[-1] in stops)


def unchecked(samples: Samples, reference: Samples | None = None, bucket_tokens: int = BUCKET_TOK) -> list[Event]:
    """The events, of arm a and of stock, whose prefix was not scored again; what the scorer does next."""
    reference = samples if reference is None else reference
    delta = delta_of(reference, bucket_tokens)
    sides = ((samples, SYSTEM_PHASES, "a"), (reference, ("reference",), "stock"))
    return [
        event
        for source, phases, arm in sides
        for scored in scored_answers(source, phases, arm, "fp32")
        for event in _large(scored, delta)
        if (arm, event.request, event.at) not in source.rechecks
    ]


def scored_answers(samples: Samples, phases: Sequence[str], arm: str, head: str) -> Iterator[Scored]:
    """All answers of an arm, each with its scores; an answer without is an error, so none is skipped."""
    missing, seen = 0, set()
    for unit in samples.of(*phases):
        for said in unit.said(arm):
            if said["request"] in seen:
                raise Usage(f"request '{said['request']}' was answered by arm '{arm}' in two units")
            seen.add(said["request"])
            scores = samples.forced.get((unit.phase, unit.number, arm, said["request"], head))
            if scores is None:
                missing += 1
            elif scores["start"] != len(said["prompt"]) or len(scores["argmax"]) != len(said["ids"]):
                raise Usage(f"the scores of request '{said['request']}' do not cover its answer")
            else:
                yield _with_scores(said, unit, scores)
    if missing:
        raise Usage(f"{missing} answers of arm '{arm}' are not scored yet with the head '{head}'")


def _with_scores(said: Line, unit: Unit, scores: Line) -> Scored:
    best = np.array(scores["argmax"], dtype=np.int64)
    scale = said["sampling"]["temperature"] or 1.0
    return Scored(
        said=said,
        unit=unit,
        best=best,
        margin=np.array(scores["margin"], dtype=np.float64) * scale,
        wrong=best != np.array(said["ids"], dtype=np.int64),
        loop=np.array(looped(said["ids"]), dtype=np.bool_),
    )


def delta_of(reference: Samples, bucket_tokens: int) -> tuple[float, ...]:
    """By bucket of positions the 99.9 % quantile of |stock's own margin - the verifier's|, in logits.

    A bucket with too few tokens for a quantile of its own takes the one of all tokens.
    """
    verifiers, owns = (list(scored_answers(reference, ("reference",), "stock", head)) for head in ("fp32", "model"))
    differences: list[list[Floats]] = [[] for _ in range(len(EDGES) + 1)]
    for verifier, own in zip(verifiers, owns, strict=True):
        difference, places = np.abs(verifier.margin - own.margin), verifier.places(0)
        for bucket, found in enumerate(differences):
            found.append(difference[places == bucket])
    each = [np.concatenate(found) if found else np.zeros(0) for found in differences]
    every = np.concatenate(each)
    if not len(every):
        raise Usage("there is no calibration: no answer of stock in the phase 'reference'")
    return tuple(statistics.quantile(found if len(found) >= bucket_tokens else every, _DELTA_SHARE) for found in each)


def _large(scored: Scored, delta: Sequence[float]) -> Iterator[Event]:
    """The mismatches of an answer whose margin is above 2 delta, not explained yet."""
    deltas = np.array(delta)[scored.places(0)]
    for at in np.flatnonzero(scored.wrong & (scored.margin > 2 * deltas)):
        yield Event(
            arm=scored.said["arm"],
            request=scored.said["request"],
            at=int(at),
            position=scored.start + int(at),
            given=scored.said["ids"][at],
            best=int(scored.best[at]),
            margin_logit=float(scored.margin[at]),
            delta_logit=float(deltas[at]),
            looped=bool(scored.loop[at]),
            explanation=None,
        )


def events_of(samples: Samples, system: Sequence[Scored], delta: Sequence[float]) -> list[Event]:
    """All large mismatches with their explanations."""
    events = [event for scored in system for event in _large(scored, delta)]
    open_ = [event for event in events if (event.arm, event.request, event.at) not in samples.rechecks]
    if open_:
        raise Usage(f"{len(open_)} events of arm '{open_[0].arm}' are not checked again yet")
    return [
        replace(event, explanation=_explanation(event, samples.rechecks[event.arm, event.request, event.at]))
        for event in events
    ]


def _explanation(event: Event, recheck: Line) -> str | None:
    """One of the closed list, decided before anything was measured; a tie within delta is no event to begin with."""
    if recheck["stock"] == event.given:
        return "stock"
    return "shape" if recheck["shape"] != event.best else None


def mean_clipped(answers: Sequence[Scored]) -> float | None:
    """The mean of min(margin, 1 logit) over tokens without loops."""
    margins = np.concatenate([scored.margin[~scored.loop] for scored in answers])
    return float(np.minimum(margins, _CLIP_LOGIT).mean()) if len(margins) else None
