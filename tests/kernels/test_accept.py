"""accept: the root path that the target agrees with."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.accept import accept, accept_reference


@st.composite
def verified_trees(draw):
    """(token, parent, choice) over a small vocabulary, so that paths are often taken and siblings often equal."""
    count = draw(st.integers(1, 70))
    token = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    parent = [-1] + [draw(st.integers(-1, node - 1)) for node in range(1, count)]
    return token, parent, draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))


@given(verified_trees(), st.none() | st.integers(1, 9))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_walk_equals_the_twin(device, tree, length):
    """Path, count and next token equal the twin's on any tree, padding nodes and short paths included."""
    token, parent, choice = (torch.tensor(values, device=device) for values in tree)
    parent = parent.int()
    for actual, wanted in zip(
        accept(token, parent, choice, length), accept_reference(token, parent, choice, length), strict=True
    ):
        assert actual.dtype == wanted.dtype and torch.equal(actual, wanted)


@pytest.mark.parametrize("call", [accept, accept_reference])
def test_a_walk_by_hand(device, call):
    """Root 0 with children 1 (token 5) and 2 (token 7), 3 (token 8) below 2; the target chose 7, then 8, then 1."""
    token = torch.tensor([4, 5, 7, 8], device=device)
    parent = torch.tensor([-1, 0, 0, 2], dtype=torch.int32, device=device)
    choice = torch.tensor([7, 0, 8, 1], device=device)
    path, count, following = call(token, parent, choice)
    assert (path.tolist(), count.tolist(), following.tolist()) == ([0, 2, 3, 3], [3], [1])


def test_a_matching_node_below_a_rejected_one_is_rejected(device):
    """Agreement counts only along the whole path from the root."""
    token, parent = torch.tensor([0, 1, 2], device=device), torch.tensor([-1, 0, 1], device=device)
    path, count, following = accept(token, parent, torch.tensor([9, 2, 3], device=device))
    assert (path.tolist(), count.tolist(), following.tolist()) == ([0, 0, 0], [1], [9])


@pytest.mark.parametrize("call", [accept, accept_reference])
def test_of_equal_siblings_the_first_goes_on(device, call):
    """Two children with the same token are one acceptance: no token is emitted twice."""
    token = torch.tensor([9, 5, 5, 7], device=device)
    parent = torch.tensor([-1, 0, 0, 2], dtype=torch.int32, device=device)
    choice = torch.tensor([5, 1, 7, 3], device=device)
    path, count, following = call(token, parent, choice)
    assert (path.tolist(), count.tolist(), following.tolist()) == ([0, 1, 1, 1], [2], [1])


def test_a_chain_of_1024_accepted_nodes(device):
    """The longest path is accepted whole."""
    parent = torch.arange(-1, 1023, device=device)
    token, choice = torch.arange(1024, device=device), torch.arange(1, 1025, device=device)
    path, count, following = accept(token, parent, choice)
    assert torch.equal(path, torch.arange(1024, dtype=torch.int32, device=device))
    assert (count.item(), following.item()) == (1024, 1024)
