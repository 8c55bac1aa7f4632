"""harness/statistics.py: known values, and what must hold for any numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betaincinv

from harness import statistics

VALUES = st.lists(st.floats(-1, 1), min_size=2, max_size=20)
CONFIDENCE = st.sampled_from([0.8, 0.95, 0.975, 0.995])
TRIALS = st.integers(1, 10_000)


@st.composite
def clusters(draw):
    trials = draw(st.lists(st.integers(1, 400), min_size=2, max_size=30))
    hits = [draw(st.integers(0, tried)) for tried in trials]
    return np.array(hits), np.array(trials)


@given(values=VALUES, confidence=CONFIDENCE)
def test_bounds_of_a_mean_mirror(values, confidence):
    """The lower bound of a sample is minus the upper bound of the negated one, and the mean lies between."""
    lower, upper = statistics.mean_lower(values, confidence), statistics.mean_upper(values, confidence)

    assert lower == pytest.approx(-statistics.mean_upper(np.negative(values), confidence))
    assert lower <= np.mean(values) + 1e-12
    assert upper >= np.mean(values) - 1e-12


@given(values=VALUES)
def test_bound_of_a_mean_is_students(values):
    """The bound is scipy's one-sided interval of a t-test."""
    if np.ptp(values) > 1e-3:
        low = stats.ttest_1samp(values, 0, alternative="greater").confidence_interval(0.95).low

        assert statistics.mean_lower(values, 0.95) == pytest.approx(low)


def test_many_samples_are_judged_as_one_is():
    """Bounds of an array of samples are the bounds of its rows."""
    rows = np.random.default_rng(0).normal(size=(7, 5))

    for bound in (statistics.mean_lower, statistics.mean_upper, statistics.deviation_upper):
        assert bound(rows, 0.95) == pytest.approx([bound(row, 0.95) for row in rows])


@pytest.mark.parametrize(("n", "width"), [(5, 0.095), (10, 0.058), (20, 0.039)])
def test_half_width_of_a_mean(n, width):
    """Half-widths of a one-sided 95 % bound at an SD of 0.1 %: 0.095, 0.058 and 0.039 % at 5, 10 and 20 units."""
    values = np.concatenate([np.ones(n // 2), -np.ones(n // 2), np.zeros(n % 2)])
    values *= 0.1 / values.std(ddof=1)

    assert -statistics.mean_lower(values, 0.95) == pytest.approx(width, abs=5e-4)


def test_deviation_is_bounded_as_often_as_stated():
    """The 80 % upper bound of an SD holds in 80 % of normal samples."""
    samples = np.random.default_rng(1).normal(size=(20_000, 8))

    assert np.mean(statistics.deviation_upper(samples, 0.8) >= 1) == pytest.approx(0.8, abs=0.01)


def test_spread_of_a_deviation():
    """The SD of 5 values lies between 0.42 and 1.54 of the true one in 90 of 100 samples."""
    samples = np.random.default_rng(2).normal(size=(20_000, 5))

    assert np.quantile(statistics.deviation(samples), [0.05, 0.95]) == pytest.approx([0.42, 1.54], abs=0.02)


@given(hits1=TRIALS, trials1=TRIALS, hits0=TRIALS, trials0=TRIALS, confidence=CONFIDENCE)
def test_newcombe_mirrors(hits1, trials1, hits0, trials0, confidence):
    """Exchanging the sides negates the difference and swaps its bounds."""
    first, second = (min(hits1, trials1), trials1), (min(hits0, trials0), trials0)
    one, other = statistics.newcombe(*first, *second, confidence), statistics.newcombe(*second, *first, confidence)

    assert (one.value, one.lower, one.upper) == pytest.approx((-other.value, -other.upper, -other.lower))
    assert one.lower <= one.value <= one.upper


def test_newcombe_of_the_paper():
    """56/70 against 48/80 is 0.2 from 0.0524 to 0.3339 at two-sided 95 % (Newcombe 1998, table II, example a)."""
    found = statistics.newcombe(56, 70, 48, 80, 0.975)

    assert (found.value, found.lower, found.upper) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


@given(one=clusters(), other=clusters(), confidence=CONFIDENCE)
def test_clustered_excess_mirrors(one, other, confidence):
    """Exchanging the sides negates the excess and swaps its bounds."""
    found = statistics.clustered_excess(*one, *other, confidence)
    mirrored = statistics.clustered_excess(*other, *one, confidence)

    assert (found.value, found.lower, found.upper) == pytest.approx(
        (-mirrored.value, -mirrored.upper, -mirrored.lower), abs=1e-12
    )


@given(one=clusters(), other=clusters(), data=st.data())
def test_clusters_have_no_order(one, other, data):
    """Neither the order of clusters nor clusters without a trial change a bound."""
    order = np.array(data.draw(st.permutations(range(len(one[0])))))
    shuffled = [np.append(each[order], 0) for each in one]

    found = statistics.clustered_excess(*one, *other, 0.975)
    again = statistics.clustered_excess(*shuffled, *other, 0.975)
    assert (again.value, again.lower, again.upper) == pytest.approx((found.value, found.lower, found.upper), abs=1e-12)


@given(one=clusters(), other=clusters(), confidence=CONFIDENCE)
def test_clusters_never_sharpen(one, other, confidence):
    """A clustered bound is never closer than the one of independent trials."""
    found = statistics.clustered_excess(*one, *other, confidence)
    free = statistics.newcombe(*(int(each.sum()) for each in (*one, *other)), confidence)

    assert found.lower <= free.lower
    assert found.upper >= free.upper


@given(one=clusters(), other=clusters(), data=st.data())
def test_strata_that_tell_nothing_change_nothing(one, other, data):
    """Clusters split into strata of the same rates and mixes have the excess of the whole, as have empty strata."""
    whole = statistics.clustered_excess(*one, *other, 0.975)
    doubled = [np.stack([each, np.zeros_like(each)], axis=1) for each in (*one, *other)]
    doubled[data.draw(st.sampled_from([2, 3]))][:, 1] = 0
    assert statistics.clustered_excess(*doubled, 0.975) == whole
    halves = [np.stack([each, each], axis=1) for each in (*one, *other)]
    split = statistics.clustered_excess(*halves, 0.975)
    twice = statistics.clustered_excess(*(2 * each for each in (*one, *other)), 0.975)
    assert (split.value, split.lower, split.upper) == pytest.approx((twice.value, twice.lower, twice.upper), abs=1e-12)


def test_a_standardised_bound_holds_as_often_as_stated():
    """Other mixes of two strata on both sides: the bound on what is equal fails as often as stated, the pooled always.

    Sessions span both strata, and their luck goes through both.
    """
    random = np.random.default_rng(5)
    rates, spread = np.array([0.005, 0.03]), 1 / 0.004 - 1
    early, late = np.array([400, 100]), np.array([100, 400])

    def draw(trials, sessions, excess=0.0):
        luck = random.uniform(size=sessions)
        means = rates + excess
        chances = np.stack([betaincinv(mean * spread, (1 - mean) * spread, luck) for mean in means], axis=1)
        return random.binomial(trials, chances), np.tile(trials, (sessions, 1))

    standard = pooled = 0
    for _ in range(600):
        system, stock = draw(late, 60, 0.005), draw(early, 120)
        standard += statistics.clustered_excess(*system, *stock, 0.95).lower > 0.005
        sums = [each.sum(axis=1) for each in (*system, *stock)]
        pooled += statistics.clustered_excess(*sums, 0.95).lower > 0.005

    assert standard / 600 < 0.08
    assert pooled / 600 > 0.99
    with pytest.raises(ValueError, match="one side only"):
        statistics.clustered_excess(*draw(late, 5), *draw(np.array([400, 0]), 5), 0.95)


def test_equal_clusters_do_not_pretend_certainty():
    """Three clusters with one hit in 40 each have no variance between them, and still no sharp bound."""
    hits, none, trials = np.array([1, 1, 1]), np.array([0, 0, 0]), np.array([40, 40, 40])

    assert statistics.clustered_excess(hits, trials, none, trials, 0.975).lower < 0.005


def test_clustered_bound_holds_as_often_as_stated():
    """At design effect 3 and 50 sessions of 500 tokens a 95 % bound fails in 5 of 100; Newcombe's in 17 of 100."""
    random = np.random.default_rng(3)
    trials, mean = np.full(50, 500), 0.0065 + 0.005

    def draw(rate):
        spread = 1 / 0.004 - 1
        return random.binomial(trials, random.beta(rate * spread, (1 - rate) * spread, size=50))

    clustered, free = 0, 0
    for _ in range(1500):
        system, stock = draw(mean), draw(0.0065)
        clustered += statistics.clustered_excess(system, trials, stock, trials, 0.95).lower > 0.005
        free += statistics.newcombe(system.sum(), 25_000, stock.sum(), 25_000, 0.95).lower > 0.005

    assert clustered / 1500 < 0.07
    assert free / 1500 > 0.12


def test_design_effect_of_a_beta_binomial():
    """Sessions of 500 tokens with correlation 0.004 between them have design effect 1 + 499 * 0.004."""
    random = np.random.default_rng(4)
    trials, spread = np.full(20_000, 500), 1 / 0.004 - 1
    hits = random.binomial(trials, random.beta(0.01 * spread, 0.99 * spread, size=20_000))

    assert statistics.design_effect(hits, trials) == pytest.approx(3, abs=0.15)


@pytest.mark.parametrize(("stock", "least"), [(0, 3), (1, 4), (2, 5), (5, 7), (10, 9)])
def test_events_that_reject(stock, least):
    """Against 0, 1, 2, 5, 10 events in 100,000 of stock's tokens, 3, 4, 5, 7, 9 in 25,000 are too many at 1 %."""
    assert statistics.event_p(least, 25_000, stock, 100_000) <= 0.01
    assert statistics.event_p(least - 1, 25_000, stock, 100_000) > 0.01


@given(events1=st.integers(0, 30), trials1=TRIALS, events0=st.integers(0, 30), trials0=TRIALS)
def test_event_test_is_the_binomial_one(events1, trials1, events0, trials0):
    """The p value is scipy's exact binomial test of one side's share of all events."""
    expected = 1.0
    if events1 + events0:
        share = trials1 / (trials1 + trials0)
        expected = stats.binomtest(events1, events1 + events0, share, alternative="greater").pvalue

    assert statistics.event_p(events1, trials1, events0, trials0) == pytest.approx(expected)


@given(values=st.lists(st.floats(-9, 9), min_size=1, max_size=50), share=st.floats(0.01, 1))
def test_quantile_equals_its_definition(values, share):
    """The smallest value of the sample that at least `share` of it does not exceed."""
    found = statistics.quantile(values, share)
    reached = [value for value in values if sum(other <= value for other in values) >= share * len(values) - 1e-9]

    assert found == min(reached)


@given(pairs=st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=2, max_size=30))
def test_log_ratio_mirrors(pairs):
    """Exchanging numerator and denominator negates the ratio and swaps its bounds."""
    above, below = zip(*pairs, strict=True)
    one, other = statistics.log_ratio(above, below, 0.975), statistics.log_ratio(below, above, 0.975)

    assert one.value == pytest.approx(math.log(sum(above) / sum(below)))
    assert (one.value, one.lower, one.upper) == pytest.approx((-other.value, -other.upper, -other.lower), abs=1e-12)


@pytest.mark.parametrize("bound", [statistics.mean_lower, statistics.mean_upper, statistics.deviation_upper])
def test_one_value_has_no_bound(bound):
    """A spread needs two values."""
    with pytest.raises(ValueError, match="two values"):
        bound([1.0], 0.95)
