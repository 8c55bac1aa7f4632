"""What a final's samples come to: how fast a system is, and whether it is still stock, each with its figures.

Nothing is promoted or declined: both comparisons are intervals of as many units as the plan says, and all of it was
measured before any of it was read.
"""

from collections.abc import Iterator, Sequence

from harness import statistics
from harness.errors import HarnessError, Usage
from harness.forced import Report, fault_of, judge
from harness.forcing import STANDARD, Limits
from harness.promotion import BOUND, Measure, Outcome, ended
from harness.samples import Line, Samples, Unit
from harness.scored import SYSTEM_PHASES
from harness.tau import tally_of
from harness.units import between_requests, gain_without_divergence, reading, request_times
from harness.verdict import (
    BETWEEN_CONFIDENCE,
    Verdict,
    check_samples,
    ends_of,
    forced_of,
    head_of,
    named,
    ratio_of,
    said_tok,
)

__all__ = ["SORTS", "final_verdict", "next_unit", "sort_of"]

TIMED = ("stock", "ar")
SORTS = ("timed", "sessions", "sampled", "greedy")


def sort_of(*, session: bool, ignore_eos: bool, temperature: float) -> str:
    """Which of the four sorts a request of a final is of."""
    if session:
        return "sessions"
    if not ignore_eos:
        return "timed"
    return "sampled" if temperature else "greedy"


def next_unit(samples: Samples) -> Measure | Outcome | None:
    """The unit to time next, or how voids ended the final; None where all are there."""
    if (end := ended(samples, TIMED)) is not None:
        return end
    plan = _plan(samples)
    for phase in TIMED:
        numbers = [unit.number for unit in samples.of(phase)]
        if len(numbers) < plan[f"{phase}_units"]:
            return Measure(phase, max(numbers, default=-1) + 1)
    return None


def _plan(samples: Samples) -> Line:
    if samples.final is None:
        raise Usage("these are not the samples of a final", "'timing' and 'forcing' are what others are judged for")
    return samples.final


def final_verdict(samples: Samples, limits: Limits | None = None) -> Verdict:
    """Accept, reject, undecided, smoke or malformed; an unfinished final has no verdict and is an error."""
    check_samples(samples)
    plan, step = _plan(samples), next_unit(samples)
    if isinstance(step, Measure):
        raise _unfinished(f"unit {step.unit} of '{step.phase}' comes next")
    if isinstance(step, Outcome):
        return _told(samples, "reject" if step.answer == "decline" else "undecided", step.reason, None)
    if (fault := fault_of(samples)) is not None:
        return _told(samples, "reject", fault, None)
    for phase in ("force", "reference"):
        missing = plan[f"{phase}_units"] - len(samples.of(phase))
        if missing:
            raise _unfinished(f"{missing} of {plan[f'{phase}_units']} units of '{phase}' are not answered")
    report = judge(samples, None, limits or STANDARD, final=True)
    answer, reason = report.decision.answer, report.decision.reason
    if answer in ("accept", "undecided") and not plan["full"]:
        answer, reason = "smoke", "a small final, which can only reject"
    return _told(samples, answer, reason, report)


def _unfinished(what: str) -> HarnessError:
    return HarnessError(f"the final is not finished: {what}", "the command that started it goes on from there")


def _told(samples: Samples, answer: str, reason: str, report: Report | None) -> Verdict:
    head, plan = head_of(samples, "final", answer, reason), _plan(samples)
    of = {**head["of"], "seal": plan["commitment"], "requests": samples.campaign["requests"]}
    timing = {phase: _figure(samples.of(phase)) for phase in TIMED}
    return {
        **head,
        "key": named(of),
        "of": of,
        "full": plan["full"],
        "units": sum(len(samples.of(phase)) for phase in TIMED),
        "gain": timing["stock"]["gain"],
        "interval": timing["stock"]["interval"],
        "noise": None,
        "threshold": None,
        "timing": timing,
        "voids": len(samples.voids),
        "sorts": list(_sorts(samples)),
        **_forced(report),
    }


def _figure(units: Sequence[Unit]) -> Verdict:
    """One comparison: its mean with a 99.5 % bound at each end, and tau of both arms from the wire."""
    values = [reading(unit).value for unit in units]
    times = [each for unit in units for each in request_times(unit)]
    between = between_requests(times, BETWEEN_CONFIDENCE)
    several = len(values) > 1
    return {
        "units": len(values),
        "gain": ratio_of(sum(values) / len(values)) if values else None,
        "interval": ends_of(
            float(statistics.mean_lower(values, BOUND)) if several else None,
            float(statistics.mean_upper(values, BOUND)) if several else None,
        ),
        "spread": float(statistics.deviation(values)) if several else None,
        "between": None if between is None else ends_of(between.lower, between.upper),
        "gain_same": ratio_of(gain_without_divergence(times)),
        "diverged": sum(not each.same for each in times),
        "tokens": said_tok(units),
        "tau": {arm: tally_of(said for unit in units for said in unit.said(arm)).tau for arm in "ab"},
    }


def _sorts(samples: Samples) -> Iterator[Verdict]:
    """What the system said, by sort of request; tokens inside loops stay out of tau and are counted."""
    said: dict[str, list[Line]] = {sort: [] for sort in SORTS}
    for unit in samples.of(*SYSTEM_PHASES):
        for line in unit.said("a"):
            session = unit.phase not in TIMED and not line["ignore_eos"]
            temperature = line["sampling"]["temperature"]
            said[sort_of(session=session, ignore_eos=line["ignore_eos"], temperature=temperature)].append(line)
    for sort, lines in said.items():
        counts = tally_of(lines)
        yield {
            "sort": sort,
            "answers": counts.answers,
            "tokens": counts.tokens,
            "looped_tok": counts.looped_tokens,
            "tau": counts.tau,
        }


def _forced(report: Report | None) -> Verdict:
    """What forcing found; nothing where the system ended the final before that."""
    if report is None:
        numbers = dict.fromkeys(("mismatch", "stock_mismatch", "excess", "events"))
        lists: Verdict = {name: [] for name in ("event_tests", "buckets", "uncovered", "audit", "malformed")}
        return {**numbers, **lists, "tokens": 0, "compared_tok": 0, "sessions": 0, "looped_tok": 0}
    return forced_of(report)
