"""Figures of measured rows: functions of numbers, which load nothing and time nothing.

A round is one request answered by every setting, one after the other in one run; ratios are made within rounds.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.tau import Tally, tally_of

__all__ = ["Ratio", "complete_rounds", "first_difference", "ratio", "summary"]

Row = dict[str, Any]


def complete_rounds(rows: Iterable[Row], settings: Iterable[str]) -> dict[tuple[int, str], dict[str, Row]]:
    """For each (repeat, request id) the newest run's answers of all the settings, by setting.

    A round that a stop cut off lacks a setting and is left out: times of two runs are never paired.
    """
    wanted, found = set(settings), {}
    runs: dict[tuple[int, str, int], dict[str, Row]] = {}
    for row in rows:
        if row["setting"] in wanted:
            runs.setdefault((row["repeat"], row["id"], row["run"]), {})[row["setting"]] = row
    for (repeat, name, _), answers in sorted(runs.items(), key=lambda item: item[0][2]):
        if answers.keys() == wanted:
            found[repeat, name] = answers
    return found


def token_s(row: Row) -> float | None:
    """Seconds a decoded token, prefill and what came with it left out; None where nothing was decoded."""
    tokens = sum(row["lines"][1:])
    return row["decode_s"] / tokens if tokens else None


@dataclass(frozen=True)
class Ratio:
    """A baseline's seconds a token over a setting's, a request; repeats of a request count as one.

    mean: geometric, with its 95 % interval (Student's t over the requests' logarithms; None for one request).
    least, most: of the requests.  whole: of all tokens and seconds together.  left_out: requests where either
    decoded nothing.
    """

    requests: int
    left_out: int
    median: float
    mean: float
    interval: tuple[float, float] | None
    least: float
    most: float
    whole: float

    def __str__(self) -> str:
        interval = "" if self.interval is None else f" [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"
        return (
            f"median {self.median:.3f}, mean {self.mean:.3f}{interval}, "
            f"{self.least:.2f} to {self.most:.2f}, all together {self.whole:.3f} ({self.requests} requests)"
        )


def ratio(pairs: Sequence[tuple[Row, Row]]) -> Ratio | None:
    """Of (baseline's row, setting's row) pairs of the same rounds; None where no pair has a decoded token."""
    logs: dict[str, list[float]] = {}
    for before, after in pairs:
        one, other = token_s(before), token_s(after)
        if one and other:
            logs.setdefault(after["id"], []).append(math.log(one / other))
    if not logs:
        return None
    units = [statistics.fmean(values) for values in logs.values()]
    kept = [pair for pair in pairs if all(token_s(row) for row in pair)]
    (before_s, before_tok), (after_s, after_tok) = (
        (sum(row["decode_s"] for row in part), sum(sum(row["lines"][1:]) for row in part))
        for part in zip(*kept, strict=True)
    )
    return Ratio(
        requests=len(units),
        left_out=len({after["id"] for _, after in pairs}) - len(units),
        median=math.exp(statistics.median(units)),
        mean=math.exp(statistics.fmean(units)),
        interval=_interval(units),
        least=math.exp(min(units)),
        most=math.exp(max(units)),
        whole=(before_s / before_tok) / (after_s / after_tok),
    )


def _interval(logs: Sequence[float]) -> tuple[float, float] | None:
    if len(logs) < 2:
        return None
    from scipy.stats import t as student

    mean, half = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    half *= float(student.ppf(0.975, len(logs) - 1))
    return math.exp(mean - half), math.exp(mean + half)


@dataclass(frozen=True)
class Summary:
    """One setting's answers: counts with loops apart, and its speed over all decoded tokens."""

    counts: Tally
    tok_s: float | None
    step_ms: float | None
    prefill_ms: float

    def __str__(self) -> str:
        counts = self.counts
        tau = "    -" if counts.tau is None else f"{counts.tau:5.2f}"
        every = "-" if counts.tau_all is None else f"{counts.tau_all:.2f}"
        speed = "" if self.tok_s is None else f"{self.tok_s:8.1f} tok/s {self.step_ms:7.3f} ms a step"
        return (
            f"tau {tau} ({every} with loops; {counts.answers} answers, {counts.kept_tokens} tokens in "
            f"{counts.kept_steps} steps kept, {counts.looped_tokens} of {counts.tokens} tokens looped) {speed}, "
            f"prefill {self.prefill_ms:.1f} ms"
        )


def summary(rows: Sequence[Row]) -> Summary:
    """Of one setting's answers; prefill is the median."""
    counts = tally_of(rows)
    seconds = sum(row["decode_s"] for row in rows)
    steps, tokens = counts.steps, counts.step_tokens
    return Summary(
        counts=counts,
        tok_s=tokens / seconds if tokens else None,
        step_ms=1e3 * seconds / steps if steps else None,
        prefill_ms=1e3 * statistics.median(row["prefill_s"] for row in rows),
    )


def first_difference(ids: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two answers part (the length of the shorter where one goes on); None where they are equal."""
    pairs = enumerate(zip(ids, other, strict=False))
    common = next((index for index, (one, two) in pairs if one != two), min(len(ids), len(other)))
    return None if common == len(ids) == len(other) else common
