"""harness/forcing.py: the decision on counts, part by part."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import forcing
from harness.forcing import Limits, Run, decide, wanted_tok


def run(wrong, tokens, name="a", bucket=0, output=0, **counts):
    """One session for each pair of mismatches and tokens, all in one bucket of positions and one of output."""
    made = [np.zeros((len(tokens), 4, 4), dtype=np.int64) for _ in range(2)]
    for each, filled in zip(made, (wrong, tokens), strict=True):
        each[:, bucket, output] = filled
    return Run(tuple(f"{name}{index}" for index in range(len(tokens))), *made, **counts)


def even(rate, sessions=100, tokens=500, name="a", **counts):
    """Sessions that alternate a little around `rate`, so that their spread is that of independent tokens or less."""
    hits = np.full(sessions, rate * tokens)
    return run(np.floor(hits).astype(int) + (np.arange(sessions) % 2) * 2 - 1, [tokens] * sessions, name, **counts)


STOCK = even(0.01, 200, name="s")


def test_accepts_rejects_and_knows_when_it_does_not_know():
    """An equal system is accepted, one a point worse rejected, one half a point worse neither."""
    same, worse, between = (decide([even(rate)], STOCK) for rate in (0.01, 0.02, 0.015))

    assert (same.answer, worse.answer, between.answer) == ("accept", "reject", "undecided")
    assert same.excess.upper < 0.005 < worse.excess.lower
    assert between.excess.lower < 0.005 < between.excess.upper
    assert (same.final, worse.final, between.final) == (True, True, False)
    assert (same.needed_tok, worse.needed_tok) == (0, 0)
    assert same.mismatch == same.stock_mismatch == pytest.approx(0.01)


def test_a_second_look_is_the_last():
    """Fresh tokens may settle what the first look did not; after two looks undecided is final, a third is ignored."""
    open_ = even(0.014, 60)
    assert decide([open_], STOCK).answer == "undecided"
    settled = decide([open_, even(0.009, 400, name="b")], STOCK)
    unsettled = decide([open_, even(0.015, 40, name="b")], STOCK)

    assert (settled.answer, settled.look) == ("accept", 2)
    assert (unsettled.answer, unsettled.final) == ("undecided", True)
    assert decide([open_, even(0.015, 40, name="b"), even(0.5, 400, name="c")], STOCK) == unsettled


def test_a_first_look_that_decides_stays():
    """What comes after an answer does not change it."""
    assert decide([even(0.01), even(0.5, name="b")], STOCK) == decide([even(0.01)], STOCK)


@pytest.mark.parametrize(("sessions", "tokens"), [(49, 1000), (100, 249)])
def test_smoke_can_only_reject(sessions, tokens):
    """Fewer than 50 sessions or 25,000 tokens never accept; what is bad enough is rejected all the same."""
    assert decide([even(0.02, sessions, tokens)], even(0.02, 400, name="s")).answer == "smoke"
    assert decide([even(0.2, sessions, tokens)], STOCK).answer == "reject"


def test_calibration_must_be_large():
    """Against fewer than 100,000 of stock's tokens nothing is accepted."""
    assert decide([even(0.01)], even(0.01, 199, name="s")).answer == "smoke"
    assert decide([even(0.01)], even(0.01, 199, name="s"), Limits(reference_tokens=99_000)).answer == "accept"


def test_bucket_rejects_what_the_pool_hides():
    """A fault of 2 points in a tenth of the tokens passes the pooled rule, and is rejected by its bucket."""
    late = {"bucket": 2, "name": "l"}
    system = even(0.01, 900) + even(0.03, 100, **late)
    stock = even(0.01, 900, name="s") + even(0.01, 100, **late)
    whole, pooled = decide([system], stock), decide([system], stock, by_bucket=False)

    assert pooled.answer == "accept"
    assert whole.answer == "reject"
    assert "position 2048-4096" in whole.reason


def test_output_is_an_axis_of_its_own():
    """A fault after 2,048 tokens of output is seen where positions alone would mix it."""
    early, late = {"sessions": 400, "bucket": 3}, {"sessions": 100, "bucket": 3, "output": 2}
    stock = even(0.01, name="s", **early) + even(0.01, name="l", **late)
    assert decide([even(0.01, **early) + even(0.01, name="l", **late)], stock).answer == "accept"
    system = even(0.01, **early) + even(0.03, name="l", **late)
    decision = decide([system], stock)

    assert decision.answer == "reject"
    assert "output 2048-4096" in decision.reason
    assert decide([system], stock, by_bucket=False).answer == "accept"


def test_buckets_say_whether_they_are_covered():
    """A bucket needs 50 sessions and 10,000 tokens on both sides; below that its silence means nothing."""
    decision = decide([even(0.01) + even(0.01, 49, name="l", bucket=1)], STOCK + even(0.01, name="l", bucket=1))

    assert decision.answer == "accept"
    assert decision.uncovered == ["position 512-2048"]
    assert decision.compared_tok == decision.tokens
    assert [bucket.name for bucket in decision.buckets] == ["position 0-512", "position 512-2048", "output 0-512"]
    alone = decide([even(0.01) + even(0.01, name="l", bucket=3)], STOCK)
    assert alone.uncovered == ["position 4096-"]
    assert alone.buckets[1].excess is None
    assert (alone.compared_tok, alone.tokens) == (50_000, 100_000)


def test_clusters_are_what_stops_a_lucky_look():
    """Mismatches that come in sessions together reject as if independent, and leave the clustered rule undecided."""
    hits = np.zeros(60, dtype=int)
    hits[:6] = 100
    system = run(hits, [500] * 60)

    assert decide([system], STOCK, clustered=False).answer == "reject"
    assert decide([system], STOCK).answer == "undecided"


def test_events_reject_when_both_runs_say_so():
    """Events in excess of stock's ask for a second run, and reject only when that one has them too."""
    stock = dataclasses.replace(STOCK, events=1)
    hit, clean = even(0.01, events=6), even(0.01, name="b", events=1)
    again = even(0.01, name="b", events=6)
    first = decide([hit], stock)

    assert first.answer == "undecided"
    assert "second run" in first.reason
    assert first.needed_tok == first.tokens
    assert decide([hit, clean], stock).answer == "accept"
    assert decide([hit, again], stock).answer == "reject"
    assert "events: 6 in" in decide([hit, again], stock).reason
    assert decide([even(0.01, events=4)], stock).answer == "accept"  # p = 4.5 %


def test_looped_tokens_count_for_events_alone():
    """Looped tokens are no part of a rate; they are of the tokens that events are counted in."""
    hidden = even(0.01, looped_tok=10**6, looped_wrong=10**6)
    decision = decide([hidden], STOCK)

    assert decision.answer == "accept"
    assert decision.tokens == 50_000
    assert decision.events[0].tokens == 10**6 + 50_000


COUNTS = st.lists(st.tuples(st.integers(0, 40), st.integers(40, 600)), min_size=2, max_size=12)


@settings(deadline=None, max_examples=40)
@given(counts=COUNTS, data=st.data())
def test_order_and_split_of_sessions_do_not_matter(counts, data):
    """Sessions in another order, or one session's tokens in two pieces, are the same counts."""
    one = run(*zip(*counts, strict=True))
    order = data.draw(st.permutations(range(len(counts))))
    other = Run(tuple(one.sessions[at] for at in order), one.wrong[order], one.tokens[order])
    half = Run(one.sessions, one.wrong // 2, one.tokens // 2)
    rest = Run(one.sessions, one.wrong - half.wrong, one.tokens - half.tokens)

    expected = decide([one], STOCK)
    for same in (other, half + rest):
        found = decide([same], STOCK)
        assert found.answer == expected.answer
        assert found.sessions == expected.sessions
        assert dataclasses.astuple(found.excess) == pytest.approx(dataclasses.astuple(expected.excess), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(counts=COUNTS, more=st.integers(1, 100))
def test_more_mismatches_are_never_better(counts, more):
    """A system that is rejected is rejected still when every session has more mismatches, alike in all."""
    wrong, tokens = (np.array(each) for each in zip(*counts, strict=True))
    limits = Limits(sessions=2, tokens=1)
    before = decide([run(wrong, [1000] * len(tokens))], STOCK, limits)
    after = decide([run(wrong + more, [1000] * len(tokens))], STOCK, limits)

    assert after.excess.value > before.excess.value
    if before.answer == "reject":
        assert after.answer == "reject"
    if after.answer == "accept":
        assert before.answer == "accept"


HARD = {"bucket": 2, "name": "l"}


def test_mixes_of_positions_are_compared_alike():
    """Where stock errs more late in a context, neither more nor fewer late tokens make a system worse or better."""
    stock = even(0.005, 200, name="s") + even(0.03, 200, **HARD)
    late, early = even(0.005, 40) + even(0.03, 160, **HARD), even(0.005, 300)

    assert decide([late], stock, standard=False).answer == "reject"
    assert decide([late], stock).answer == "accept"
    bad = even(0.015, 300)
    assert decide([bad], stock, standard=False, by_bucket=False).answer == "accept"
    assert decide([bad], stock, by_bucket=False).answer == "reject"
    found = decide([early], stock)
    assert found.stock_mismatch == pytest.approx(0.004)  # 2 of 500
    assert found.excess.value == pytest.approx(found.mismatch - found.stock_mismatch)


def test_what_the_calibration_has_not_is_not_compared():
    """Tokens where stock has none, or one session, accept nothing and are named; what is left must be enough."""
    for stock in (STOCK, STOCK + even(0.01, 1, name="t", bucket=3)):
        system = even(0.01) + even(0.2, 300, name="b", bucket=3)
        found = decide([system], stock)
        assert (found.answer, found.compared_tok, found.mismatch) == ("accept", 50_000, pytest.approx(0.01))
        assert "position 4096-" in found.uncovered
        small = decide([even(0.01, 40) + even(0.01, 300, name="b", bucket=3)], stock)
        assert (small.answer, small.reason) == ("smoke", "40 sessions to compare, fewer than 50")
    assert decide([even(0.01, bucket=3)], STOCK).answer == "smoke"


def test_little_of_a_bucket_is_no_sharp_comparison():
    """A bucket of which stock has a few tokens widens the bounds by what is not known of it."""
    system = even(0.01, 100) + even(0.01, 100, **HARD)
    much, little = (STOCK + run([0] * sessions, [50] * sessions, **HARD) for sessions in (400, 2))

    wide, sharp = decide([system], little, by_bucket=False), decide([system], much, by_bucket=False)
    assert wide.answer == "undecided"
    assert wide.excess.upper - wide.excess.lower > 2 * (sharp.excess.upper - sharp.excess.lower)


def test_timed_tokens_alone_can_reject():
    """Two points more where it was timed are no less for many honest tokens beside them."""
    timed, honest = even(0.03, 100, 128), even(0.01, 400, name="h")
    whole = decide([timed + honest], STOCK)
    found = decide([timed + honest], STOCK, timed=timed)

    assert whole.answer == "accept"
    assert found.answer == "reject"
    assert found.reason.startswith("at the timed tokens the mismatch exceeds")
    assert decide([timed + honest], STOCK, timed=even(0.01, 100, 128)).answer == "accept"


MIX = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=4, unique_by=lambda each: each[0])


@settings(deadline=None, max_examples=40)
@given(mix=MIX, other=MIX, scale=st.integers(1, 5))
def test_an_equal_system_has_no_excess_whatever_its_mix(mix, other, scale):
    """With stock's own rate in every bucket the excess is zero, for any mix of buckets on either side."""

    def mixed(cells, name):
        each = [
            run([bucket + 1] * 10 * count, [100 * scale] * 10 * count, f"{name}{bucket}-", bucket)
            for bucket, count in cells
        ]
        return functools.reduce(Run.__add__, each)

    shared = {bucket for bucket, _ in mix} & {bucket for bucket, _ in other}
    found = decide([mixed(mix, "a")], mixed(other, "s"))

    if shared:
        assert found.excess.value == pytest.approx(0, abs=1e-12)
        assert found.excess.lower <= 0 <= found.excess.upper
        assert found.answer != "reject"
    assert (found.excess is None) == (not shared)
    assert found.compared_tok == sum(1000 * scale * count for bucket, count in mix if bucket in shared)


def clustered(random, rate, sessions, name):
    """Sessions of 500 tokens, design effect 3."""
    spread = 1 / 0.004 - 1
    return run(random.binomial(500, random.beta(rate * spread, (1 - rate) * spread, sessions)), [500] * sessions, name)


def test_first_look_has_the_size_that_is_asked_for():
    """At a stock rate of 1 % and design effect 3 some 50,000 tokens are asked for, none where stock knows little."""
    random = np.random.default_rng(0)
    asked = [wanted_tok(clustered(random, 0.01, 200, "s")) for _ in range(50)]

    assert 42_000 < np.median(asked) < 55_000
    assert wanted_tok(clustered(random, 0.01, 20, "s")) is None
    assert wanted_tok(even(0.001, 4000, 2000)) == Limits().tokens


def test_undecided_says_how_many_tokens_decide():
    """With the tokens that an undecided answer asks for, the same rates decide."""
    first, stock = even(0.014), even(0.01, 1000, name="s")
    decision = decide([first], stock)
    assert decision.answer == "undecided"
    more = -(-decision.needed_tok // 500)

    assert more > 50
    assert decide([first, even(0.014, more, name="b")], stock).answer == "accept"
    assert decide([even(0.015)], STOCK).needed_tok is None


@pytest.mark.parametrize(("excess", "answer", "least"), [(0.0, "accept", 0.99), (0.01, "reject", 0.95)])
def test_decides_rightly_as_often_as_stated(excess, answer, least):
    """At design effect 3 an honest system is accepted and one a point worse rejected (small simulation)."""
    random, hits = np.random.default_rng(2), 0
    for _ in range(200):
        stock = clustered(random, 0.01, 200, "s")
        hits += decide([clustered(random, 0.01 + excess, -(-wanted_tok(stock) // 500), "a")], stock).answer == answer

    assert hits >= least * 200


def test_no_look_is_no_answer():
    """Without a run there is nothing to decide."""
    with pytest.raises(ValueError, match="no look"):
        decide([], STOCK)


def test_buckets_are_those_of_the_contract():
    """The edges are 512, 2048 and 4096, on positions and on output."""
    assert forcing.EDGES == (512, 2048, 4096)
    assert forcing.AXES == ("position", "output")
