"""ancestors: bit words of root paths for any tree."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.ancestors import ancestors, ancestors_reference

TREES = st.integers(1, 150).flatmap(
    lambda n: st.tuples(st.just(-1), *(st.integers(-1, node - 1) for node in range(1, n)))
)


@given(TREES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_words_equal_the_twin(device, parents):
    """Every forest, padding nodes without a parent included, gives the twin's words."""
    for dtype in (torch.int32, torch.int64):
        parent = torch.tensor(parents, dtype=dtype, device=device)
        assert torch.equal(ancestors(parent), ancestors_reference(parent))


def test_a_chain_of_1024_nodes(device):
    """The deepest tree: node i has the bits 0 .. i, the sign bit of each word included."""
    parent = torch.arange(-1, 1023, device=device)
    words = ancestors(parent)
    assert words.shape == (1024, 16)
    assert (words[1023] == -1).all() and words[62].tolist() == [2**63 - 1] + [0] * 15
    assert words[64].tolist() == [-1, 1] + [0] * 14


def test_twin_on_a_small_tree(device):
    """Root 0, children 1 and 2, and 3 below 1."""
    parent = torch.tensor([-1, 0, 0, 1], device=device)
    assert ancestors_reference(parent).flatten().tolist() == [0b0001, 0b0011, 0b0101, 0b1011]
