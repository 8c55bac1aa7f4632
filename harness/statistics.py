"""Bounds and tests: functions of numbers, each with its formula and where it comes from.

All bounds are one-sided; `confidence` is the chance that the bound holds, such as 0.95.
Arrays of samples lie along the last axis, so a simulation judges many at once with the code that judges one.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Bounds",
    "clustered_excess",
    "design_effect",
    "deviation",
    "deviation_upper",
    "event_p",
    "log_ratio",
    "mean_lower",
    "mean_upper",
    "newcombe",
    "normal",
    "quantile",
    "student",
    "wilson",
]

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Bounds:
    """An estimate with a lower and an upper bound, each one-sided."""

    value: float
    lower: float
    upper: float


def student(confidence: float, freedom: float) -> float:
    """The `confidence` quantile of Student's t with `freedom` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, confidence))


def normal(confidence: float) -> float:
    """The `confidence` quantile of the normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(confidence))


def deviation(values: npt.ArrayLike) -> Any:
    """The sample SD, sqrt(sum (x - mean)^2 / (n - 1)), of values [..., n] with n >= 2."""
    return np.std(_several(values), axis=-1, ddof=1)


def deviation_upper(values: npt.ArrayLike, confidence: float) -> Any:
    """Upper bound of a normal population's SD: s * sqrt((n - 1) / chi2_{1 - confidence, n - 1}).

    (n - 1) s^2 / sigma^2 is chi-square with n - 1 degrees of freedom (Cochran 1934).
    """
    from scipy.special import chdtri

    values = _several(values)
    freedom = values.shape[-1] - 1
    return deviation(values) * math.sqrt(freedom / chdtri(freedom, confidence))


def mean_lower(values: npt.ArrayLike, confidence: float) -> Any:
    """Lower bound of the mean of values [..., n]: m - t_{confidence, n - 1} * s / sqrt(n) (Student 1908)."""
    values = _several(values)
    return values.mean(axis=-1) - _half_width(values, confidence)


def mean_upper(values: npt.ArrayLike, confidence: float) -> Any:
    """Upper bound of the mean of values [..., n]: m + t_{confidence, n - 1} * s / sqrt(n)."""
    values = _several(values)
    return values.mean(axis=-1) + _half_width(values, confidence)


def _half_width(values: Floats, confidence: float) -> Any:
    n = values.shape[-1]
    return student(confidence, n - 1) * deviation(values) / math.sqrt(n)


def _several(values: npt.ArrayLike) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] < 2:
        raise ValueError("a bound needs two values")
    return values


def log_ratio(above: npt.ArrayLike, below: npt.ArrayLike, confidence: float) -> Bounds:
    """ln(sum(above) / sum(below)) of paired values [n], with bounds over the n pairs.

    Delta method: v = n / (n - 1) * sum_j (above_j / sum(above) - below_j / sum(below))^2, Student's t with n - 1
    degrees of freedom (Cochran, Sampling Techniques, 1977, 6.3, for the logarithm of a ratio of totals).
    """
    above, below = _several(above), _several(below)
    n = len(above)
    value = math.log(above.sum() / below.sum())
    variance = n / (n - 1) * float(((above / above.sum() - below / below.sum()) ** 2).sum())
    half = student(confidence, n - 1) * math.sqrt(variance)
    return Bounds(value, value - half, value + half)


def wilson(hits: int, trials: int, confidence: float) -> tuple[float, float]:
    """One-sided lower and upper bounds of a proportion from independent trials (Wilson 1927)."""
    return _wilson(hits / trials, trials, normal(confidence))


def _wilson(rate: float, trials: float, z: float) -> tuple[float, float]:
    scale = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def newcombe(hits1: int, trials1: int, hits0: int, trials0: int, confidence: float) -> Bounds:
    """p1 - p0 of independent trials, by the hybrid of two Wilson intervals (Newcombe 1998, method 10).

    lower = d - sqrt((p1 - l1)^2 + (u0 - p0)^2), upper = d + sqrt((u1 - p1)^2 + (p0 - l0)^2).
    """
    return _newcombe(hits1 / trials1, trials1, hits0 / trials0, trials0, normal(confidence))


def _newcombe(p1: float, trials1: float, p0: float, trials0: float, z: float) -> Bounds:
    (low1, high1), (low0, high0) = _wilson(p1, trials1, z), _wilson(p0, trials0, z)
    d = p1 - p0
    return Bounds(d, d - math.hypot(p1 - low1, high0 - p0), d + math.hypot(high1 - p1, p0 - low0))


def clustered_excess(hits1: Counts, trials1: Counts, hits0: Counts, trials0: Counts, confidence: float) -> Bounds:
    """p1 - p0 from clusters of trials, int64 arrays [clusters] or [clusters, strata], two clusters at least a side.

    p0 is what side 0 would have with side 1's mix of strata, sum_s w_s p0_s with w_s the share of stratum s in side 1's
    trials (direct standardisation); a stratum that side 1 has and side 0 has not is a ValueError.
    d -+ t sqrt(v1 + v0), each v the variance of linearised residuals between clusters, c / (c - 1) sum_j r_j^2, and
    Student's t with min(c1, c0) - 1 degrees of freedom (Cochran 1977, 9A.1; Rao and Scott 1992 for a binary outcome):
    r1_j = (k_j - sum_s p0_s m_js - d m_j) / M1, r0_j = sum_s w_s (k_js - p0_s m_js) / M0_s; with one stratum these are
    the ratio estimators' own.
    And never closer than Newcombe's interval with the same t and each side's trials divided by its design effect
    (effective sample sizes, Korn and Graubard 1998); side 0 has 1 / sum_s (w_s^2 / M0_s) of them, so that a stratum
    of which little is known is no sharper than its few trials.
    Rare hits in clusters are skewed: alone, the first passes 3.2 % of excesses at its limit where 2.5 % are stated, the
    second 2.6 % (72 clusters of 500, 0.65 %); and with few clusters, or none hit, v may be zero.
    """
    hits1, trials1, hits0, trials0 = _shared(hits1, trials1, hits0, trials0)
    all1, all0 = int(trials1.sum()), trials0.sum(axis=0)
    weights, rates0 = trials1.sum(axis=0) / all1, hits0.sum(axis=0) / all0
    p1, p0 = float(hits1.sum() / all1), float(weights @ rates0)
    v1 = _between((hits1.sum(axis=1) - trials1 @ rates0 - (p1 - p0) * trials1.sum(axis=1)) / all1)
    v0 = _between((hits0 - rates0 * trials0) @ (weights / all0))
    t = student(confidence, min(len(trials1), len(trials0)) - 1)
    half = t * math.sqrt(v1 + v0)
    effective1, effective0 = _effective(p1, all1, v1), _effective(p0, float(1 / (weights**2 / all0).sum()), v0)
    skewed = _newcombe(p1, effective1, p0, effective0, t)
    return Bounds(skewed.value, min(skewed.value - half, skewed.lower), max(skewed.value + half, skewed.upper))


def _between(residuals: Floats) -> float:
    """The variance of a sum over clusters, from its parts [clusters]."""
    clusters = len(residuals)
    return float((residuals**2).sum() * clusters / (clusters - 1))


def _effective(rate: float, trials: float, variance: float) -> float:
    """How many independent trials tell as much; no more than there are."""
    free = rate * (1 - rate) / trials
    return trials / max(1.0, variance / free) if free else trials


def _shared(hits1: Counts, trials1: Counts, hits0: Counts, trials0: Counts) -> tuple[Counts, Counts, Counts, Counts]:
    """All counts as [clusters, strata], with the strata that side 1 has, and clusters that have trials in them."""
    hits1, trials1, hits0, trials0 = (
        each[:, None] if each.ndim == 1 else each for each in (hits1, trials1, hits0, trials0)
    )
    used = trials1.sum(axis=0) > 0
    if (trials0.sum(axis=0)[used] == 0).any():
        raise ValueError("a stratum has trials on one side only")
    return (*_filled(hits1[:, used], trials1[:, used]), *_filled(hits0[:, used], trials0[:, used]))


def _filled(hits: Counts, trials: Counts) -> tuple[Counts, Counts]:
    """The clusters [clusters, strata] that have trials."""
    some = trials.sum(axis=1) > 0
    if some.sum() < 2:
        raise ValueError("a clustered bound needs two clusters")
    return hits[some], trials[some]


def design_effect(hits: Counts, trials: Counts) -> float:
    """How many times larger clusters make the variance of a rate than independent trials would; at least 1 (Kish).

    Counts [clusters] or [clusters, strata]: what strata differ in is no variance between clusters.
    """
    hits, trials, *_ = _shared(hits, trials, hits, trials)
    total, rates = int(trials.sum()), hits.sum(axis=0) / trials.sum(axis=0)
    rate = float(hits.sum()) / total
    variance = _between((hits.sum(axis=1) - trials @ rates) / total)
    return total / _effective(rate, total, variance)


def event_p(events1: int, trials1: int, events0: int, trials0: int) -> float:
    """P(K1 >= events1) when both sides have one rate: given their sum, K1 is binomial with share t1 / (t1 + t0).

    The exact conditional test of two Poisson rates (Przyborowski and Wilenski 1940).
    """
    from scipy.special import bdtrc

    return float(bdtrc(events1 - 1, events1 + events0, trials1 / (trials1 + trials0))) if events1 else 1.0


def quantile(values: npt.ArrayLike, share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; values [n], n >= 1."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), share, method="inverted_cdf"))
