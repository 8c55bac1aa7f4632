"""The rule `paired-1`: noise, threshold, screen, confirmation (docs/judge.md), and the small rule `demo`.

`decide` is the rule on numbers, and what simulations run; `next_step` applies it to samples, and is what a campaign
asks what to measure next.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness import statistics
from harness.errors import plain
from harness.rules import DEMO, PAIRED, rule_named
from harness.samples import Samples, Void
from harness.units import Reading, reading, valid_units

__all__ = [
    "BOUND",
    "CALIBRATE_UNITS",
    "LOOKS",
    "RULE",
    "SCREEN_UNITS",
    "Measure",
    "Outcome",
    "decide",
    "decide_demo",
    "ended",
    "next_step",
    "noise_of",
    "threshold_of",
    "used_readings",
]

RULE = PAIRED.name
CALIBRATE_UNITS = PAIRED.calibrate
SCREEN_UNITS = PAIRED.screen
LOOKS = PAIRED.looks
PUBLISHED = 0.95  # the confidence of the published rule
_NOISE_CONFIDENCE = 0.8
_NOISE_LIMIT = 0.005
_SCREEN_CONFIDENCE = 0.95
BOUND = 0.995  # the confidence of the bound that promotes
_DECLINE_CONFIDENCE = 0.95
_MARGIN = 0.01
_DIVERGED_MARGIN = 0.03
_BUSY_LIMIT = 3
_VOID_SHARE = 5  # at most one in so many
_TIMED = ("calibrate", "screen", "confirm")
_FAULTS = {"crash": "crashed", "hang": "hung", "violation": "broke the protocol", "load": "took too long to load"}


@dataclass(frozen=True)
class Measure:
    """What a campaign measures next."""

    phase: str
    unit: int


@dataclass(frozen=True)
class Outcome:
    """A finished campaign; figures are ln-ratios, None where the campaign did not get so far."""

    answer: str  # promote, decline, undecided, refused
    reason: str
    phase: str = "calibrate"  # whose units the figures are of
    units: int = 0
    gain: float | None = None
    lower: float | None = None  # one-sided, at 99.5 %, as is `upper`
    upper: float | None = None
    spread: float | None = None  # SD of the candidate's own units
    noise: float | None = None  # the bound that the threshold uses
    threshold: float | None = None
    published_lower: float | None = None  # the published rule's bound, against the same threshold


def noise_of(calibrate: Sequence[float]) -> float:
    """The SD of an A/A unit, at its upper 80 % bound."""
    return float(statistics.deviation_upper(calibrate, _NOISE_CONFIDENCE))


def threshold_of(noise: float, diverged: bool) -> float:
    """What a gain must exceed: 1 % + 2 noise, and 3 % at least where outputs differ."""
    return max(_DIVERGED_MARGIN if diverged else 0.0, _MARGIN + 2 * noise)


def decide(
    calibrate: Sequence[float],
    screen: Sequence[Reading],
    confirm: Sequence[Reading],
    refuse_noise: bool = True,
) -> str | Outcome:
    """The phase that needs another unit, or the outcome; units are in the order in which they were measured.

    `refuse_noise` false leaves out the refusal of a noisy machine, so that a simulation can show what it is for.
    """
    if len(calibrate) < CALIBRATE_UNITS:
        return "calibrate"
    spread, noise = float(statistics.deviation(calibrate)), noise_of(calibrate)
    if refuse_noise and spread > _NOISE_LIMIT:
        return Outcome("refused", f"noise {spread:.2%} exceeds {_NOISE_LIMIT:.1%}", units=len(calibrate), noise=noise)
    if len(screen) < SCREEN_UNITS:
        return "screen"
    screened = _screen(screen[:SCREEN_UNITS], noise)
    if screened is not None:
        return screened
    for look in LOOKS:
        if len(confirm) < look:
            return "confirm"
        diverged = any(each.diverged for each in (*screen[:SCREEN_UNITS], *confirm[:look]))
        outcome = _confirm([each.value for each in confirm[:look]], noise, threshold_of(noise, diverged))
        if outcome.answer == "promote" or look == LOOKS[-1]:
            return outcome
    raise AssertionError("the last look decides")


def decide_demo(calibrate: Sequence[float], confirm: Sequence[Reading]) -> str | Outcome:
    """The rule `demo`: 3 % and twice the SD of the A/A units, whatever that is, against the mean of as many units."""
    if len(calibrate) < DEMO.calibrate:
        return "calibrate"
    if len(confirm) < DEMO.looks[-1]:
        return "confirm"
    values, noise = [each.value for each in confirm], float(statistics.deviation(calibrate))
    gain, threshold = sum(values) / len(values), _DIVERGED_MARGIN + 2 * noise
    answer = "promote" if gain > threshold else "decline"
    than = "above" if gain > threshold else "not above"
    reason = f"rule demo: the raw ratio's gain {_read(gain)} is {than} {_read(threshold)}, with noise {noise:.2%}"
    return _outcome(answer, reason, "confirm", values, noise, threshold)


def _screen(readings: Sequence[Reading], noise: float) -> Outcome | None:
    """The decline of a candidate that does not pass the screen."""
    values = [each.value for each in readings]
    threshold = threshold_of(noise, any(each.diverged for each in readings))
    gain, lower = sum(values) / len(values), statistics.mean_lower(values, _SCREEN_CONFIDENCE)
    if gain <= threshold:
        reason = f"screen: the gain {_read(gain)} is not above {_read(threshold)}"
    elif lower <= 0:
        reason = f"screen: the lower bound {_read(lower)} is not above 0"
    else:
        return None
    return _outcome("decline", reason, "screen", values, noise, threshold)


def _confirm(values: Sequence[float], noise: float, threshold: float) -> Outcome:
    """The answer of one look."""
    lower = statistics.mean_lower(values, BOUND)
    upper = statistics.mean_upper(values, _DECLINE_CONFIDENCE)
    if lower > threshold:
        answer, reason = "promote", f"the lower bound {_read(lower)} is above {_read(threshold)}"
    elif upper < threshold:
        answer, reason = "decline", f"the upper bound {_read(upper)} is below {_read(threshold)}"
    else:
        answer, reason = "undecided", f"{_read(threshold)} lies between the bounds {_read(lower)} and {_read(upper)}"
    return _outcome(answer, reason, "confirm", values, noise, threshold)


def _outcome(answer: str, reason: str, phase: str, values: Sequence[float], noise: float, threshold: float) -> Outcome:
    return Outcome(
        answer,
        reason,
        phase=phase,
        units=len(values),
        gain=sum(values) / len(values),
        lower=float(statistics.mean_lower(values, BOUND)),
        upper=float(statistics.mean_upper(values, BOUND)),
        spread=float(statistics.deviation(values)),
        noise=noise,
        threshold=threshold,
        published_lower=float(statistics.mean_lower(values, PUBLISHED)),
    )


def _read(gain: float) -> str:
    """A ln-ratio as people read it."""
    return f"{math.expm1(gain):.2%}"


def next_step(samples: Samples) -> Measure | Outcome:
    """The unit to measure next, or how the campaign ended."""
    if (end := ended(samples, _TIMED)) is not None:
        return end if _met_candidate(samples) else replace(end, answer="refused")
    calibrate = [reading(unit).value for unit in samples.of("calibrate")]
    confirm = used_readings(samples, "confirm")
    if rule_named(samples.campaign["rule"]) is DEMO:
        step = decide_demo(calibrate, confirm)
    else:
        step = decide(calibrate, used_readings(samples, "screen"), confirm)
    if isinstance(step, Outcome):
        return step
    return Measure(step, max((unit.number + 1 for unit in samples.of(step)), default=0))


def _met_candidate(samples: Samples) -> bool:
    """Whether a unit was tried with the candidate: a machine that fails before that says nothing of it."""
    phases = [*(unit.phase for unit in samples.units), *(void.phase for void in samples.voids)]
    return any(phase in phases for phase in ("screen", "confirm"))


def ended(samples: Samples, timed: Sequence[str]) -> Outcome | None:
    """How voids end a campaign that times these phases: a fault of one arm, or too many of them."""
    return _fault(samples.voids) or _too_many_voids(samples, timed)


def used_readings(samples: Samples, phase: str) -> list[Reading]:
    """What the rule reads of the valid units of `phase`; the chart comes before any time of arm a."""
    valid, _ = valid_units(samples, phase)
    return [reading(unit) for unit in valid]


def _fault(voids: Sequence[Void]) -> Outcome | None:
    """The end by a fault of one arm: the candidate's declines it, the current best's leaves it undecided."""
    for void in voids:
        if _is_candidate(void) and void.cause in _FAULTS:
            return Outcome("decline", f"the candidate {_FAULTS[void.cause]}: {_words(void.reason)}", phase=void.phase)
    for candidate, answer in ((True, "decline"), (False, "undecided")):
        busy = [void for void in voids if void.cause == "busy" and void.arm and _is_candidate(void) is candidate]
        if len(busy) >= _BUSY_LIMIT:
            system = "candidate" if candidate else "current best"
            reason = f"the {system} left the device busy {len(busy)} times: {_words(busy[-1].reason)}"
            return Outcome(answer, reason, phase=busy[-1].phase)
    return None


def _is_candidate(void: Void) -> bool:
    """Whether the arm at fault is the candidate; while the noise is measured both arms are the current best."""
    return void.arm == "a" and void.phase != "calibrate"


def _too_many_voids(samples: Samples, timed: Sequence[str]) -> Outcome | None:
    """The end past one void in five; an arm that leaves the device busy has a limit of its own."""
    lines = [void for void in samples.voids if void.phase in timed and not (void.cause == "busy" and void.arm)]
    charted = [unit for phase in timed for unit in valid_units(samples, phase)[1]]
    voids, tried = len(lines) + len(charted), len(lines) + len(samples.of(*timed))
    if voids * _VOID_SHARE <= max(tried, _VOID_SHARE):
        return None
    causes = sorted({void.cause for void in lines} | ({"chart"} if charted else set()))
    return Outcome("undecided", f"{voids} of {tried} units are void ({', '.join(causes)})")


def _words(reason: str) -> str:
    """An engine's words, as many as a verdict has room for."""
    return plain(reason)[:200]
