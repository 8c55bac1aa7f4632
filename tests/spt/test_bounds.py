"""Bounds hold whatever the ranks were that are not stored any more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spt.bounds import bounds
from spt.errors import Usage
from spt.policy import Chain, Tree
from spt.walk import Walker, walk
from tests.spt.walks import RANKS, lattice, request, some


def cut(made, ranks):
    """The same lattice as if fewer ranks had been stored."""
    requests = (replace(each, ids=each.ids[..., :ranks], half=each.half[..., :ranks]) for each in made.requests)
    return replace(made, ranks=ranks, requests=tuple(requests))


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, RANKS - 1), st.integers(1, 60), st.sampled_from([0, 2, 5])
)
def test_what_all_ranks_say_lies_between(seed, ties, stored, nodes, positions):
    """The tau of the whole lattice is within what a part of its ranks bounds, and exact where the part is enough."""
    made, tree = some(seed, ties), Tree(nodes, positions, RANKS)
    found, tau = bounds(Walker([cut(made, stored)]), tree), walk([made], tree).tau
    assert found.low <= tau + 1e-12
    assert found.high >= tau - 1e-12
    if nodes <= stored:
        assert found.low == tau == found.high


def test_bounds_are_worth_something():
    """They are apart where a rank matters, and narrower with every rank that is stored."""
    made = some()
    widths = [bounds(Walker([cut(made, stored)]), Tree(40, 0, RANKS)) for stored in (1, 3, 5)]
    spans = [each.high - each.low for each in widths]
    assert spans[0] > spans[1] > spans[2] > 0
    assert 1 < widths[2].low < widths[2].high < 6


def test_the_extremes_are_those_of_all_ways():
    """For a short answer the bounds are the best and the worst of every sequence of steps that may be."""
    made = cut(lattice(request("a#0", 9, seed=3)), 2)
    walker, tree = Walker([made]), Tree(20, 0, RANKS)
    found = bounds(walker, tree)

    from spt import bounds as module

    least = module._least(walker, tree, 5)
    most = np.maximum(module._most(walker, tree, 5), least)

    def ways(anchor):
        if anchor >= 8:
            return [0]
        return [1 + rest for length in range(least[anchor], most[anchor] + 1) for rest in ways(anchor + length + 1)]

    assert (found.low, found.high) == (8 / max(ways(0)), 8 / min(ways(0)))
    assert found.low < found.high


def test_no_step_has_no_bounds():
    """One token is prefill's: there is no tau, and so are its bounds."""
    found = bounds(Walker([cut(lattice(request("a#0", 1)), 2)]), Tree(20, 0, RANKS))
    assert (found.low, found.high) == (None, None)


def test_bounds_of_other_policies_are_refused():
    """Only trees have bounds."""
    with pytest.raises(Usage, match="'chain:0': bounds are of trees"):
        bounds(Walker([some()]), Chain(0))
