"""The cost of recording is told with its interval, so that noise is not taken for a cost."""

import pytest

from benchmarks.record import cost


def test_cost_of_pairs():
    """The mean of the log-ratios, and an interval that holds it."""
    pairs = [{False: 1.0, True: 1.01}, {False: 2.0, True: 2.06}, {False: 1.0, True: 1.02}]
    found = cost(pairs, 30, 6000)
    assert found.share == pytest.approx(0.02, abs=1e-3)
    assert found.lower < found.share < found.upper
    assert (found.pairs, found.steps, found.bytes) == (3, 30, 6000)
    assert cost([{False: 2.0, True: 2.0}] * 3, 1, 1).share == 0


def test_order_of_a_pair_does_not_count():
    """Twice as slow one way is half as slow the other."""
    slow, fast = [{False: 1.0, True: 2.0}] * 2, [{False: 2.0, True: 1.0}] * 2
    assert 1 + cost(slow, 1, 1).share == pytest.approx(1 / (1 + cost(fast, 1, 1).share))
