"""Samples to unit log-ratios: quartets, units, and the control chart that voids a unit (docs/judge.md).

All gains here are ln(time of b / time of a): positive where arm a, the candidate, is faster.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness import statistics
from harness.errors import Usage
from harness.rules import rule_named
from harness.samples import Line, Samples, Unit

__all__ = [
    "CHARTED",
    "Chart",
    "Reading",
    "RequestTimes",
    "between_requests",
    "chart_of",
    "gain_without_divergence",
    "reading",
    "request_times",
    "stock_pace",
    "valid_units",
]

CHARTED = ("screen", "confirm")  # their arm b is the one of the A/A units
_SIGMAS = 3.0
_LEAST = 0.01  # a deviation of less than 1 % voids nothing, however steady the A/A units were


class Reading(NamedTuple):
    """What the rule reads of a unit."""

    value: float  # ln-ratio
    diverged: bool = False  # some request's ids differ between the arms


class RequestTimes(NamedTuple):
    """One timed request in both arms."""

    request: str
    a_s: float
    b_s: float
    same: bool  # ids equal


class Chart(NamedTuple):
    """Mean and SD of ln(decode seconds a token) of arm b in the A/A units."""

    mean: float
    deviation: float

    def fits(self, pace: float) -> bool:
        """Whether a unit whose arm b decodes at `pace` may stand beside them."""
        return abs(pace - self.mean) <= max(_SIGMAS * self.deviation, _LEAST)


def stock_pace(unit: Unit) -> float:
    """ln(decode seconds a token) of arm b; nothing of arm a is read."""
    groups = [group for group in unit.groups if group["arm"] == "b"]
    seconds = sum(sum(group["decode_seconds"]) for group in groups)
    tokens = sum(sum(group["tokens"]) for group in groups)
    if not seconds or not tokens:
        raise Usage(f"{unit.name} holds no time of arm b")
    return math.log(seconds / tokens)


def chart_of(samples: Samples) -> Chart | None:
    """The chart of a campaign's A/A units; None before there are two."""
    paces = [stock_pace(unit) for unit in samples.of("calibrate")]
    if len(paces) < 2:
        return None
    return Chart(sum(paces) / len(paces), float(statistics.deviation(paces)))


def valid_units(samples: Samples, phase: str) -> tuple[list[Unit], list[Unit]]:
    """The complete units of `phase` that count, and those that the chart voids; times of arm a are not read."""
    units = samples.of(phase)
    charted = phase in CHARTED and rule_named(samples.campaign["rule"]).charted
    chart = chart_of(samples) if charted else None
    if chart is None:
        return units, []
    fits = [chart.fits(stock_pace(unit)) for unit in units]
    return (
        [unit for unit, fit in zip(units, fits, strict=True) if fit],
        [unit for unit, fit in zip(units, fits, strict=True) if not fit],
    )


def reading(unit: Unit) -> Reading:
    """The unit's value, the mean of its halves, each the mean of its quartets; and whether outputs diverged."""
    quartets: dict[int, dict[int, list[Line]]] = {}
    for group in unit.groups:
        quartets.setdefault(group["half"], {}).setdefault(group["quartet"], []).append(group)
    if [sorted(quartets.get(half, ())) for half in range(len(unit.leads))] != [
        list(range(len(leads))) for leads in unit.leads
    ] or not all(unit.leads):
        raise Usage(f"{unit.name} lacks a quartet, or has one too many")
    halves = [_mean([_quartet(unit, lines) for lines in half.values()]) for half in quartets.values()]
    return Reading(_mean(halves), not all(times.same for times in request_times(unit)))


def _quartet(unit: Unit, lines: Sequence[Line]) -> float:
    """The mean over its two groups of ln(time of b / time of a)."""
    inner = sorted(lines, key=lambda line: int(line["slot"]))
    arms, groups = [line["arm"] for line in inner], [line["group"] for line in inner]
    slots, half, number = [line["slot"] for line in inner], inner[0]["half"], inner[0]["quartet"]
    leader = unit.leads[half][number]
    other = "b" if leader == "a" else "a"
    paired = slots == [0, 1, 2, 3] and groups[0] == groups[1] != groups[2] == groups[3]
    if not paired or arms != [leader, other, other, leader]:
        raise Usage(f"quartet {number} of {unit.name} is not A(g1) B(g1) B(g2) A(g2)")
    seconds = {(line["arm"], line["group"]): sum(line["seconds"]) for line in inner}
    if min(seconds.values()) <= 0:
        raise Usage(f"quartet {number} of {unit.name} took no time")
    return _mean([math.log(seconds["b", group] / seconds["a", group]) for group in (groups[0], groups[2])])


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def request_times(unit: Unit) -> list[RequestTimes]:
    """Each timed request of the unit in both arms."""
    seconds: dict[tuple[str, str], float] = {}
    for group in unit.groups:
        seconds |= {
            (group["arm"], request): second for request, second in zip(group["requests"], group["seconds"], strict=True)
        }
    ids: dict[tuple[str, str], Any] = {(said["arm"], said["request"]): said["ids"] for said in unit.answers}
    asked = {request for _, request in seconds}
    if any((arm, request) not in seconds for request in asked for arm in "ab"):
        raise Usage(f"{unit.name} timed a request in one arm only")
    return [
        RequestTimes(request, seconds["a", request], seconds["b", request], ids["a", request] == ids["b", request])
        for request in sorted(asked)
    ]


def between_requests(times: Sequence[RequestTimes], confidence: float) -> statistics.Bounds | None:
    """ln(all of b's time / all of a's) with bounds over requests, each one a cluster; None below two requests."""
    if len(times) < 2:
        return None
    return statistics.log_ratio([each.b_s for each in times], [each.a_s for each in times], confidence)


def gain_without_divergence(times: Sequence[RequestTimes]) -> float | None:
    """ln(time of b / time of a) over the requests whose ids are equal; None where there is none."""
    same = [each for each in times if each.same]
    if not same:
        return None
    return math.log(math.fsum(each.b_s for each in same) / math.fsum(each.a_s for each in same))
