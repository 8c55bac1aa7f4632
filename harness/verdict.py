"""A verdict from samples: the same samples, the same verdict (docs/records.md, `verdict`)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import promotion
from harness.errors import HarnessError, Usage
from harness.forced import Report, judge
from harness.forcing import STANDARD, Bucket, Limits
from harness.job import canonical_digest
from harness.machine import COMPARED
from harness.promotion import Measure, Outcome
from harness.rules import rule_named
from harness.samples import Samples, Unit, comparable, read
from harness.statistics import Bounds
from harness.units import between_requests, gain_without_divergence, request_times, valid_units

__all__ = [
    "BETWEEN_CONFIDENCE",
    "Verdict",
    "check_samples",
    "ends_of",
    "forced_of",
    "forcing_verdict",
    "head_of",
    "identity_of",
    "judged_units",
    "key_of",
    "named",
    "outcome_of",
    "ratio_of",
    "said_tok",
    "timing_verdict",
    "verdict",
]

BETWEEN_CONFIDENCE = 0.975  # each end, so 95 % between them

Verdict = dict[str, Any]


def verdict(what: str, path: Path, reference: Path | None = None) -> Verdict:
    """The verdict on the samples in `path`: `what` is `timing`, `forcing` or `final`.

    Stock's calibration may lie in a file of its own, `reference`.
    """
    samples = read(path)
    if what == "final":
        from harness.final_verdict import final_verdict  # it is made of what stands here

        return final_verdict(samples)
    if what == "timing":
        return timing_verdict(samples)
    return forcing_verdict(samples, None if reference is None else read(reference))


def identity_of(campaign: Mapping[str, Any], card: Mapping[str, Any], timed: str | None = None) -> dict[str, Any]:
    """What a verdict is of: two systems, the deployment's digest, the compared fields of a card, harness and rule.

    timed: of a forcing that begins with the tokens that were timed, the digest of the samples that hold them.
    """
    return {
        **({} if timed is None else {"timed": timed}),
        **{arm: campaign["arms"][arm] for arm in "ab"},
        "deployment": campaign["deployment"],
        "card": {name: card[name] for name in COMPARED if name != "harness"},
        "harness": card["harness"],
        "rule": campaign["rule"],
    }


def named(identity: Mapping[str, Any]) -> str:
    """The key: the sha256 of the identity's canonical JSON."""
    return canonical_digest(identity)


def key_of(samples: Samples) -> str:
    """The key of what the samples are of: the same key gets its old verdict."""
    return named(_identity(samples))


def _identity(samples: Samples) -> dict[str, Any]:
    return identity_of(samples.campaign, samples.cards[-1], _timed(samples))


def _timed(samples: Samples) -> str | None:
    return None if samples.timed is None else str(samples.timed["samples"])


def timing_verdict(samples: Samples) -> Verdict:
    """Promote, decline, undecided or refused; an unfinished campaign has no verdict and is an error."""
    if samples.timed is not None:
        raise Usage("these samples force the tokens that were timed", "'forcing' is what they are judged for")
    outcome = outcome_of(samples)
    units = judged_units(samples, outcome)
    times = [each for unit in units for each in request_times(unit)]
    between = between_requests(times, BETWEEN_CONFIDENCE)
    gain_same = gain_without_divergence(times)
    looks = rule_named(samples.campaign["rule"]).looks
    return {
        **head_of(samples, "timing", outcome.answer, outcome.reason),
        "units": outcome.units,
        "look": looks.index(outcome.units) + 1 if outcome.phase == "confirm" and outcome.units in looks else 0,
        "gain": ratio_of(outcome.gain),
        "interval": ends_of(outcome.lower, outcome.upper),
        "noise": outcome.noise,
        "spread": outcome.spread,
        "threshold": ratio_of(outcome.threshold),
        "published": _published(outcome),
        "between": None if between is None else ends_of(between.lower, between.upper),
        "gain_same": ratio_of(gain_same),
        "diverged": sum(not each.same for each in times),
        "voids": len(samples.voids) + sum(len(valid_units(samples, phase)[1]) for phase in ("screen", "confirm")),
        "mismatch": None,
        "events": None,
        "tokens": said_tok(units),
    }


def outcome_of(samples: Samples) -> Outcome:
    """What a finished campaign came to; an unfinished one is an error."""
    check_samples(samples)
    outcome = promotion.next_step(samples)
    if isinstance(outcome, Measure):
        raise HarnessError(
            f"the campaign is not finished: unit {outcome.unit} of '{outcome.phase}' comes next",
            "the command that started it goes on from there",
        )
    return outcome


def judged_units(samples: Samples, outcome: Outcome) -> list[Unit]:
    """The units that the outcome's gain is of."""
    if outcome.gain is None:
        return []
    return valid_units(samples, outcome.phase)[0][: outcome.units]


def _published(outcome: Outcome) -> dict[str, Any] | None:
    """What the published rule, one bound at 95 %, says of the same units."""
    if outcome.published_lower is None or outcome.threshold is None:
        return None
    passes = outcome.published_lower > outcome.threshold
    return {"answer": "promote" if passes else "decline", "lower": ratio_of(outcome.published_lower)}


def forcing_verdict(samples: Samples, reference: Samples | None = None, limits: Limits | None = None) -> Verdict:
    """Accept, reject, undecided, smoke or malformed."""
    check_samples(samples)
    _check_timed(samples)
    if reference is not None:
        check_samples(reference)
        _check_reference(samples, reference)
    report = judge(samples, reference, limits or STANDARD)
    decision = report.decision
    return {
        **head_of(samples, "forcing", decision.answer, decision.reason),
        "units": len(samples.of("confirm", "force")),
        "look": decision.look,
        "final": decision.final,
        "gain": None,
        "interval": None,
        "noise": None,
        "threshold": None,
        "timed": _timed(samples),
        "timed_tok": _timed_tok(samples),
        "needed_tok": decision.needed_tok,
        "reference": None if reference is None else reference.digest,
        **forced_of(report),
    }


def forced_of(report: Report) -> Verdict:
    """What forcing found, and what is printed beside it and decides nothing."""
    decision = report.decision
    return {
        "mismatch": decision.mismatch,
        "stock_mismatch": decision.stock_mismatch,
        "excess": _bounds(decision.excess),
        "compared_tok": decision.compared_tok,
        "events": sum(test.events for test in decision.events),
        "event_tests": [test._asdict() for test in decision.events],
        "tokens": decision.tokens,
        "sessions": decision.sessions,
        "buckets": [_bucket(bucket) for bucket in decision.buckets],
        "uncovered": decision.uncovered,
        "looped_tok": report.looped_tok,
        "delta_logit": list(report.delta_logit),
        "margin_logit": report.margin_logit,
        "families": report.families,
        "audit": [asdict(event) for event in report.audit],
        "malformed": list(report.malformed),
    }


def _bucket(bucket: Bucket) -> Verdict:
    """One bucket's figures."""
    return {
        "axis": bucket.axis,
        "low": bucket.low,
        "high": bucket.high,
        "tokens": bucket.tokens,
        "sessions": bucket.sessions,
        "mismatch": bucket.mismatch,
        "stock_mismatch": bucket.stock_mismatch,
        "excess": _bounds(bucket.excess),
        "covered": bucket.covered,
        "rejects": bucket.rejects,
        **({"events": [test._asdict() for test in bucket.events]} if bucket.events else {}),
    }


def head_of(samples: Samples, what: str, answer: str, reason: str) -> Verdict:
    """What all verdicts begin with."""
    return {
        "v": 1,
        "kind": "verdict",
        "key": key_of(samples),
        "rule": samples.campaign["rule"],
        "what": what,
        "answer": answer,
        "reason": reason,
        "samples": samples.digest,
        "date": samples.cards[-1].get("date", ""),
        "of": _identity(samples),
        "stock": samples.campaign["arms"]["stock"],
        "sandbox": samples.cards[-1].get("sandbox", ""),
    }


def check_samples(samples: Samples) -> None:
    """Refuses samples of a rule that this judge does not know, and of machines that cannot be compared."""
    rule_named(samples.campaign["rule"])
    _check_cards(samples.cards)


def _timed_tok(samples: Samples) -> int:
    """The tokens of arm a that were timed, if the samples begin with them."""
    return said_tok(samples.of("confirm")) if samples.timed is not None else 0


def said_tok(units: Iterable[Unit]) -> int:
    """The tokens of arm a in units."""
    return sum(len(said["ids"]) for unit in units for said in unit.said("a"))


def _check_timed(samples: Samples) -> None:
    """Refuses samples that hold a part of what was timed."""
    if samples.timed is not None and _timed_tok(samples) != samples.timed["tokens"]:
        raise Usage(
            f"{_timed_tok(samples)} of {samples.timed['tokens']} timed tokens are here",
            "the command that forces them goes on from there",
        )


def _check_cards(cards: Sequence[dict[str, Any]]) -> None:
    for card in cards[1:]:
        if not comparable(cards[0], card):
            name = next(name for name in COMPARED if card[name] != cards[0][name])
            raise Usage(
                f"machines that cannot be compared: '{name}' is {cards[0][name]!r} and {card[name]!r}",
                "measure the whole campaign on one machine",
            )


def _check_reference(samples: Samples, reference: Samples) -> None:
    """A calibration belongs to a deployment, a stock tree, a card and a harness."""
    _check_cards((*samples.cards, *reference.cards))
    if samples.campaign["deployment"] != reference.campaign["deployment"]:
        raise Usage("the calibration is of another deployment")
    if samples.campaign["arms"]["stock"] != reference.campaign["arms"]["stock"]:
        raise Usage("the calibration is of another stock")


def ratio_of(gain: float | None) -> float | None:
    """A ln-ratio as people read it: 0.02 is 2 % faster."""
    return None if gain is None else math.expm1(gain)


def ends_of(lower: float | None, upper: float | None) -> list[float] | None:
    """Two bounds on a ln-ratio as people read them."""
    return None if lower is None or upper is None else [math.expm1(lower), math.expm1(upper)]


def _bounds(bounds: Bounds | None) -> dict[str, float] | None:
    """Bounds as a record."""
    return None if bounds is None else asdict(bounds)
