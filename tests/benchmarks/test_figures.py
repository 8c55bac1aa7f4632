"""Figures of rows, on numbers whose results are known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import complete_rounds, first_difference, ratio, summary
from benchmarks.speed import check_floor, copy_share, planned


def row(setting, name="a", *, lines=(1, 4), decode_s=1.0, repeat=0, run=1, ids=None):
    ids = list(range(sum(lines))) if ids is None else ids
    where = {"kind": "answer", "setting": setting, "id": name, "repeat": repeat, "run": run}
    return where | {"ids": ids, "lines": list(lines), "decode_s": decode_s, "prefill_s": 0.5}


def test_times_of_two_runs_are_never_paired():
    """A round counts when one run holds all of it, and the newest such run is taken."""
    rows = [row("ar"), row("chain", run=2), row("ar", "b"), row("chain", "b", decode_s=2.0)]
    rows += [row("ar", "b", run=3), row("chain", "b", run=3, decode_s=3.0)]
    rounds = complete_rounds(rows, ["ar", "chain"])

    assert list(rounds) == [(0, "b")]
    assert rounds[0, "b"]["chain"]["decode_s"] == 3.0


def test_ratio_is_of_seconds_a_token():
    """Answers of other lengths compare by the time of a token; prefill's tokens count nowhere."""
    pairs = [
        (row("ar", "a", lines=(1,) * 9, decode_s=8.0), row("t", "a", lines=(1, 4), decode_s=2.0)),
        (row("ar", "b", lines=(1,) * 5, decode_s=4.0), row("t", "b", lines=(3, 4), decode_s=1.0)),
        (row("ar", "c", lines=(1,), decode_s=0.0), row("t", "c", lines=(1,), decode_s=0.0)),
    ]
    found = ratio(pairs)

    assert (found.requests, found.left_out) == (2, 1)
    assert found.least == pytest.approx(2.0) and found.most == pytest.approx(4.0)
    assert found.median == found.mean == pytest.approx(math.sqrt(8))
    assert found.whole == pytest.approx((12 / 12) / (3 / 8))
    assert found.interval[0] < found.mean < found.interval[1]
    assert ratio(pairs[2:]) is None


def test_repeats_of_a_request_are_one_unit():
    """More passes over one request make no narrower interval."""
    pairs = [(row("ar", decode_s=2.0, repeat=n), row("t", repeat=n)) for n in range(5)]

    assert ratio(pairs).requests == 1
    assert ratio(pairs).interval is None


def test_looped_tokens_are_left_out_of_tau():
    """A run that the answer said before counts in the totals and not in tau."""
    ids = [*range(30), *range(30)]
    found = summary([row("t", ids=ids, lines=(1, 29, 15, 15))])

    assert found.counts.looped_tokens == 30
    assert found.counts.tau == 29 and found.counts.tau_all == pytest.approx(59 / 3)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_first_difference(one, other):
    """Equal up to there and not further."""
    at = first_difference(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at] and one[at : at + 1] != other[at : at + 1]


class Plan:
    """What `planned` reads of the command line."""

    settings, repeats, peer_every = ["ar", "chain", "transformers"], 2, 3


def test_no_setting_always_follows_the_same_one():
    """Over a few requests each setting stands first, and is preceded by each of the others."""
    orders = [order for *_, order in planned(Plan, [{"id": str(n), "ids": []} for n in range(6)])]

    assert {order[0] for order in orders if len(order) == 2} == {"ar", "chain"}
    assert {("ar", "chain"), ("chain", "ar")} <= {tuple(order[:2]) for order in orders if len(order) == 2}
    assert sum("transformers" in order for order in orders) == 4


class Held:
    """Rows of two runs whose copy rates differ."""

    def of(self, kind):
        return [{"run": run, "copy_bytes_s": rate, "target_bytes": 100} for run, rate in ((1, 1000.0), (2, 2000.0))]


@pytest.mark.parametrize(("decode_s", "code"), [(0.2, 0), (0.25, 1)])
def test_floor(decode_s, code):
    """A run's steps are held against that run's own copy rate, and below the floor the benchmark fails."""
    answers = [
        row("ar", lines=(1, 1), run=1, decode_s=decode_s / 2),
        row("ar", lines=(1, 1), run=2, decode_s=decode_s / 2),
    ]

    assert copy_share(Held(), answers) == pytest.approx(0.15 / decode_s)
    assert check_floor(0.7, Held(), answers) == code
    assert check_floor(0.7, Held(), []) == 1
