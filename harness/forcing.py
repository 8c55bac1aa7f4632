"""The forcing decision: does a system say what stock would have said? (docs/judge.md)

This is the rule on counts, and what simulations run; harness/forced.py makes the counts from samples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from harness import statistics
from harness.scored import AXES, BUCKET_TOK, EDGES
from harness.statistics import Bounds, Counts, Flags

__all__ = [
    "LOOKS",
    "STANDARD",
    "Bucket",
    "Decision",
    "EventTest",
    "Limits",
    "Run",
    "comparable",
    "decide",
    "decide_final",
    "wanted_tok",
]

LIMIT = 0.005  # the excess over stock's mismatch rate that is too much
LOOKS = 2
TIMED = "timed"  # beside the axes of buckets
_CONFIDENCE = 0.975
_EVENT_ALPHA = 0.01
_PLAN_POWER = 0.98  # of a first look of the size asked for: both that an honest system passes and a bad one does not
_PLAN_FREEDOM = 99  # some 100 sessions
_NEED_POWER = 0.9
_CLUSTERS = 2  # fewer have no variance between them


@dataclass(frozen=True)
class Limits:
    """Sizes below which an answer is not given."""

    sessions: int = 50
    tokens: int = 25_000
    bucket_tokens: int = BUCKET_TOK  # and as many sessions as above
    reference_tokens: int = 100_000


STANDARD = Limits()


@dataclass(frozen=True)
class Run:
    """Counts of the fresh tokens of one look, or of stock's calibration; one row a session."""

    sessions: tuple[str, ...]
    wrong: Counts  # int64 [session, bucket of position, bucket of output]: mismatches without loops
    tokens: Counts  # int64 [session, bucket of position, bucket of output]: tokens without loops
    looped_tok: int = 0
    looped_wrong: int = 0
    events: int = 0  # loops included, as in `all_tok`
    placed_events: Counts | None = None  # int64 [axis, bucket]: where the events are
    placed_tok: Counts | None = None  # int64 [axis, bucket]: all tokens, loops included

    @property
    def all_tok(self) -> int:
        """All tokens, looped ones too."""
        return int(self.tokens.sum()) + self.looped_tok

    @property
    def placed(self) -> tuple[Counts, Counts]:
        """Mismatches and tokens, int64 [session, bucket of position]."""
        return self.wrong.sum(axis=2), self.tokens.sum(axis=2)

    def within(self, axis: int, bucket: int) -> tuple[Counts, Counts]:
        """The part of `placed` that lies in a bucket of an axis."""
        if axis == 0:
            wrong, tokens = self.placed
            return wrong[:, [bucket]], tokens[:, [bucket]]
        return self.wrong[:, :, bucket], self.tokens[:, :, bucket]

    def __add__(self, other: "Run") -> "Run":
        """Both together; a session that stands in both is one session."""
        names = dict.fromkeys((*self.sessions, *other.sessions))
        rows = {name: row for row, name in enumerate(names)}
        wrong, tokens = (np.zeros((len(rows), *self.wrong.shape[1:]), dtype=np.int64) for _ in range(2))
        for run in (self, other):
            at = [rows[name] for name in run.sessions]
            np.add.at(wrong, at, run.wrong)
            np.add.at(tokens, at, run.tokens)
        return Run(
            tuple(names),
            wrong,
            tokens,
            self.looped_tok + other.looped_tok,
            self.looped_wrong + other.looped_wrong,
            self.events + other.events,
        )


@dataclass(frozen=True)
class Bucket:
    """The comparison within one bucket of an axis."""

    axis: str
    low: int
    high: int | None
    tokens: int
    sessions: int
    mismatch: float  # of the tokens that are compared, where any are
    stock_mismatch: float | None
    excess: Bounds | None  # None where too little is there to compare
    covered: bool  # enough sessions and tokens, on both sides, for silence to mean something
    events: "tuple[EventTest, ...]" = ()  # of a final, one a half

    @property
    def rejects(self) -> bool:
        """Whether this bucket alone rejects the system."""
        return (self.excess is not None and self.excess.lower > LIMIT) or _all_reject(self.events)

    @property
    def name(self) -> str:
        """In words."""
        if self.axis == TIMED:
            return "the timed tokens"
        return f"{self.axis} {self.low}-{'' if self.high is None else self.high}"


class EventTest(NamedTuple):
    """The events of one run against stock's."""

    events: int
    tokens: int
    stock_events: int
    stock_tokens: int
    p: float

    @property
    def rejects(self) -> bool:
        """Whether this run has too many events."""
        return self.p <= _EVENT_ALPHA


def _all_reject(tests: Sequence[EventTest]) -> bool:
    """Whether both of two runs have too many events: one alone may be chance."""
    return len(tests) == LOOKS and all(test.rejects for test in tests)


@dataclass(frozen=True)
class Decision:
    """The answer, and what it rests on; rates are shares of the compared tokens without loops.

    `stock_mismatch` is stock's rate with the system's mix of positions, so that the excess is what lies between.
    """

    answer: str  # accept, reject, undecided, smoke, malformed
    reason: str
    look: int
    final: bool  # no further look may change it
    tokens: int
    sessions: int
    compared_tok: int  # those in a bucket of positions that the calibration has
    mismatch: float | None
    stock_mismatch: float | None
    excess: Bounds | None
    buckets: tuple[Bucket, ...] = ()
    events: tuple[EventTest, ...] = ()  # one a run
    needed_tok: int | None = None  # more tokens until the next look; None where none helps, 0 where none is needed

    @property
    def uncovered(self) -> list[str]:
        """The buckets that hold tokens, but too few."""
        return [bucket.name for bucket in self.buckets if not bucket.covered]


def decide(
    runs: Sequence[Run],
    stock: Run,
    limits: Limits = STANDARD,
    *,
    timed: Run | None = None,
    clustered: bool = True,
    by_bucket: bool = True,
    standard: bool = True,
) -> Decision:
    """The answer after the looks so far: `runs` holds each look's fresh tokens, `stock` the calibration's.

    The first look that accepts or rejects stays; after two looks the answer is final.
    `timed` are those of the first look that were timed: they alone can reject, as a bucket can.
    `clustered`, `by_bucket` and `standard` false leave out a part of the rule, so that a test can show what it is for.
    """
    if not runs:
        raise ValueError("no look was taken")
    tests: list[EventTest] = []
    for look in range(1, min(len(runs), LOOKS) + 1):
        seen = reduce(Run.__add__, runs[:look])
        tests.append(_event_test(runs[look - 1], stock))
        compared = _compare(seen.placed, stock.placed, clustered, standard)
        buckets = tuple(_buckets(seen, stock, timed, limits, clustered, standard)) if by_bucket else ()
        decision = _look(seen, stock, compared, buckets, tuple(tests), limits)
        if decision.answer in ("accept", "reject"):
            break
    return decision


def decide_final(halves: Sequence[Run], stock: Run, limits: Limits = STANDARD) -> Decision:
    """The answer of a final, where all tokens, of both `halves`, were there before any was read.

    The rate is that of both; the events of each half are tested for themselves, as those of two looks are, and in every
    bucket too.
    """
    tests = tuple(_event_test(half, stock) for half in halves)
    seen = reduce(Run.__add__, halves)
    compared = _compare(seen.placed, stock.placed, True, True)
    buckets = tuple(_with_events(bucket, halves, stock) for bucket in _buckets(seen, stock, None, limits, True, True))
    return replace(_look(seen, stock, compared, buckets, tests, limits), look=1, final=True, needed_tok=None)


def _with_events(bucket: Bucket, halves: Sequence[Run], stock: Run) -> Bucket:
    """The bucket with its events, a test a half."""
    place = AXES.index(bucket.axis), (0, *EDGES).index(bucket.low)

    def count(counts: Counts | None) -> int:
        return 0 if counts is None else int(counts[place])

    own = count(stock.placed_events), count(stock.placed_tok)
    return replace(
        bucket,
        events=tuple(_tested(count(half.placed_events), count(half.placed_tok), *own) for half in halves),
    )


@dataclass(frozen=True)
class _Compared:
    """Like with like: tokens of a system in those buckets of positions of which stock's calibration has some."""

    wrong: Counts  # int64 [session, bucket of position], as `tokens`
    tokens: Counts
    mismatch: float | None
    stock_mismatch: float | None  # with the system's mix of positions
    excess: Bounds | None  # None where too little is there to compare

    @property
    def sessions(self) -> int:
        return int((self.tokens.sum(axis=1) > 0).sum())


def _compare(system: tuple[Counts, Counts], stock: tuple[Counts, Counts], clustered: bool, standard: bool) -> _Compared:
    """Counts [session, bucket of position] of both sides; what stock has in fewer than two sessions is left out."""
    places = comparable(stock[1])
    sides = [(wrong[:, places], tokens[:, places]) for wrong, tokens in (system, stock)]
    if not standard:
        sides = [(wrong.sum(axis=1, keepdims=True), tokens.sum(axis=1, keepdims=True)) for wrong, tokens in sides]
    (wrong, tokens), (stock_wrong, stock_tokens) = sides
    excess = None
    if clustered and (tokens.sum(axis=1) > 0).sum() >= _CLUSTERS and (stock_tokens.sum(axis=1) > 0).any():
        excess = statistics.clustered_excess(wrong, tokens, stock_wrong, stock_tokens, _CONFIDENCE)
    elif not clustered and tokens.sum() and stock_tokens.sum():
        pairs = [(int(hits.sum()), int(trials.sum())) for hits, trials in sides]
        excess = statistics.newcombe(*pairs[0], *pairs[1], _CONFIDENCE)
    mismatch = _share(wrong, tokens)
    if excess is None or mismatch is None:
        return _Compared(wrong, tokens, _share(*system), _share(*stock), None)
    return _Compared(wrong, tokens, mismatch, mismatch - excess.value, excess)


def comparable(stock_tokens: Counts) -> Flags:
    """[bucket of position]: whether stock has tokens of two sessions there, of counts [session, bucket of position]."""
    places: Flags = (stock_tokens > 0).sum(axis=0) >= _CLUSTERS
    return places


def _look(
    seen: Run,
    stock: Run,
    compared: _Compared,
    buckets: tuple[Bucket, ...],
    tests: tuple[EventTest, ...],
    limits: Limits,
) -> Decision:
    answer, reason = _answer(compared, stock, buckets, tests, limits)
    undecided = answer not in ("accept", "reject")
    return Decision(
        answer=answer,
        reason=reason,
        look=len(tests),
        final=not undecided or len(tests) == LOOKS,
        tokens=int(seen.tokens.sum()),
        sessions=int((seen.tokens.sum(axis=(1, 2)) > 0).sum()),
        compared_tok=int(compared.tokens.sum()),
        mismatch=compared.mismatch,
        stock_mismatch=compared.stock_mismatch,
        excess=compared.excess,
        buckets=buckets,
        events=tests,
        needed_tok=_needed_tok(compared, stock, tests, limits) if undecided else 0,
    )


def _answer(
    compared: _Compared,
    stock: Run,
    buckets: Sequence[Bucket],
    tests: Sequence[EventTest],
    limits: Limits,
) -> tuple[str, str]:
    excess = compared.excess
    if excess is not None and excess.lower > LIMIT:
        return "reject", f"the mismatch exceeds stock's by {excess.value:.2%}, at least {excess.lower:.2%}"
    for bucket in buckets:
        if bucket.rejects and bucket.excess is not None:
            return "reject", (
                f"at {bucket.name} the mismatch exceeds stock's by {bucket.excess.value:.2%},"
                f" at least {bucket.excess.lower:.2%}"
            )
    for bucket in buckets:
        if _all_reject(bucket.events):
            return "reject", f"at {bucket.name} {_too_many(bucket.events)}"
    if _all_reject(tests):
        return "reject", _too_many(tests)
    small = _smoke(compared, stock, limits)
    if small or excess is None:
        return "smoke", small or "too few sessions to compare"
    if len(tests) == 1 and tests[0].rejects:
        return "undecided", f"events: {tests[0].events} in {tests[0].tokens} tokens; a second run must say so too"
    if excess.upper < LIMIT:
        return "accept", f"the mismatch exceeds stock's by {excess.value:.2%}, at most {excess.upper:.2%}"
    return "undecided", f"the excess over stock's mismatch lies between {excess.lower:.2%} and {excess.upper:.2%}"


def _too_many(tests: Sequence[EventTest]) -> str:
    counts = " and ".join(f"{test.events} in {test.tokens}" for test in tests)
    return f"events: {counts} tokens, stock {tests[0].stock_events} in {tests[0].stock_tokens}"


def _smoke(compared: _Compared, stock: Run, limits: Limits) -> str:
    """Why the counts are too few to accept on; empty where they are not."""
    tokens = int(compared.tokens.sum())
    if compared.sessions < limits.sessions:
        return f"{compared.sessions} sessions to compare, fewer than {limits.sessions}"
    if tokens < limits.tokens:
        return f"{tokens} tokens to compare, fewer than {limits.tokens}"
    if stock.all_tok < limits.reference_tokens:
        return f"stock's calibration holds {stock.all_tok} tokens, fewer than {limits.reference_tokens}"
    return ""


def _buckets(
    seen: Run, stock: Run, timed: Run | None, limits: Limits, clustered: bool, standard: bool
) -> Iterator[Bucket]:
    """All buckets that hold tokens of the system, each compared at like positions, and what was timed."""
    parts = [
        (name, low, high, seen.within(axis, at), stock.within(axis, at))
        for axis, name in enumerate(AXES)
        for at, (low, high) in enumerate(zip((0, *EDGES), (*EDGES, None), strict=True))
    ]
    if timed is not None:
        parts.append((TIMED, 0, None, timed.placed, stock.placed))
    for name, low, high, system, own in parts:
        tokens = system[1].sum(axis=1)
        if tokens.sum():
            compared = _compare(system, own, clustered, standard)
            yield Bucket(
                axis=name,
                low=low,
                high=high,
                tokens=int(tokens.sum()),
                sessions=int((tokens > 0).sum()),
                mismatch=compared.mismatch or 0.0,
                stock_mismatch=compared.stock_mismatch,
                excess=compared.excess,
                covered=all(
                    side.sum() >= limits.bucket_tokens and (side > 0).sum() >= limits.sessions
                    for side in (compared.tokens.sum(axis=1), own[1].sum(axis=1))
                ),
            )


def _share(wrong: Counts, tokens: Counts) -> float | None:
    return float(wrong.sum() / tokens.sum()) if tokens.sum() else None


def _event_test(run: Run, stock: Run) -> EventTest:
    return _tested(run.events, run.all_tok, stock.events, stock.all_tok)


def _tested(events: int, tokens: int, stock_events: int, stock_tokens: int) -> EventTest:
    counts = events, tokens, stock_events, stock_tokens
    return EventTest(*counts, statistics.event_p(*counts) if tokens and stock_tokens else 1.0)


def wanted_tok(stock: Run, limits: Limits = STANDARD) -> int | None:
    """Tokens of a first look that decides: honest passes, one point worse does not, each 98 times in 100.

    From stock's own rate, its design effect, and the variance that its calibration leaves; None where that alone is
    too large, or one session leaves it unknown.
    """
    wrong, tokens = stock.placed
    if (tokens.sum(axis=1) > 0).sum() < _CLUSTERS:
        return None
    rate = float(wrong.sum() / tokens.sum()) + 2 * LIMIT
    free = rate * (1 - rate) * statistics.design_effect(wrong, tokens)
    width = statistics.student(_CONFIDENCE, _PLAN_FREEDOM) + statistics.normal(_PLAN_POWER)
    room = (LIMIT / width) ** 2 - _variance(wrong, tokens)
    return max(limits.tokens, math.ceil(free / room)) if room > 0 else None


def _variance(wrong: Counts, tokens: Counts) -> float:
    """Variance of a rate over its sessions, no less than independent tokens would have."""
    rate, total = float(wrong.sum() / tokens.sum()), int(tokens.sum())
    return rate * (1 - rate) / total * statistics.design_effect(wrong, tokens)


def _needed_tok(compared: _Compared, stock: Run, tests: Sequence[EventTest], limits: Limits) -> int | None:
    """How many more tokens would decide if rates stay as they are."""
    have, excess = int(compared.tokens.sum()), compared.excess
    if len(tests) == 1 and tests[0].rejects:
        return max(have, limits.tokens)
    wanted = wanted_tok(stock, limits)
    if wanted is None or excess is None or have < wanted:
        return None if wanted is None else max(1, wanted - have)
    sessions = min(compared.sessions, int((stock.tokens.sum(axis=(1, 2)) > 0).sum()))
    width = statistics.student(_CONFIDENCE, sessions - 1) + statistics.normal(_NEED_POWER)
    room = ((LIMIT - excess.value) / width) ** 2 - _variance(*stock.placed)
    if room <= 0:
        return None
    return max(1, math.ceil(_variance(compared.wrong, compared.tokens) * have / room) - have)
