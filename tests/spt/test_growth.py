"""Trees that grow at all positions at once are the trees of the entry best-first-tree, node for node."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spt.errors import Usage
from spt.growth import grow, paths

ENTRY = Path(__file__).parents[2] / "entries" / "best-first-tree" / "tree" / "stock" / "ops" / "best_first.py"


def engine_tree(logprobs, nodes):
    """[(parent, depth, rank)] and scores of the rows behind the anchor, from the entry's own code."""
    spec = importlib.util.spec_from_file_location("entry_best_first", ENTRY)
    entry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(entry)
    depths, ranks = logprobs.shape
    ids = torch.arange(ranks).expand(depths, ranks)
    anchor, table = torch.zeros(1, dtype=torch.int64), torch.from_numpy(logprobs).float()
    token, parent, depth, score = entry.grow(anchor, ids, table, nodes + 1, min(depths, nodes))
    return list(zip(parent.tolist(), depth.tolist(), token.tolist(), strict=True))[1:], score[1:].numpy()


def some_logprobs(depths, ranks, seed, how):
    """float16 [depth, rank] in order: apart, with many ties, with certain tokens, or as low as float16 goes."""
    random = np.random.default_rng(seed)
    drawn = -np.sort(random.exponential(3, (depths, ranks)), axis=1)
    if how == "ties":
        drawn = np.round(drawn)
    elif how == "certain":
        drawn = np.where(random.random((depths, 1)) < 0.6, drawn - drawn[:, :1], drawn)
    elif how == "low":
        drawn = np.maximum(drawn * 4000, -65504)
    return drawn.astype(np.float16)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 70),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["apart", "ties", "certain", "low"]),
)
def test_every_node_stands_in_the_engine_s_row(depths, ranks, nodes, seed, how):
    """Each path of the engine's tree is found in the very row that it has there, and no other path in any."""
    logprobs = some_logprobs(depths, ranks, seed, how)
    nodes = min(nodes, paths(ranks, depths, nodes))
    tree, score = engine_tree(logprobs, nodes)
    truths, wanted = [], []
    for row, (parent, depth, rank) in enumerate(tree, 1):
        above = truths[parent - 1][: depth - 1] if parent else []
        rows = wanted[parent - 1][: depth - 1] if parent else []
        truths.append([*above, rank] + [-1] * (depths - depth))
        wanted.append([*rows, row] + [0] * (depths - depth))
    lanes = np.broadcast_to(logprobs, (len(tree), depths, ranks))
    grown = grow(lanes, np.array(truths, np.int16), nodes, want_scores=True)
    assert grown.row.tolist() == wanted
    np.testing.assert_array_equal(grown.scores[0], score)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["apart", "ties", "certain"]))
@settings(max_examples=20, deadline=None)
def test_a_smaller_tree_is_a_prefix(seed, how):
    """Rows of a tree of 40 nodes are those of a tree of 11, as far as that goes; scores are not needed for it."""
    logprobs = np.stack([some_logprobs(5, 6, seed + lane, how) for lane in range(9)])
    truth = np.random.default_rng(seed).integers(-1, 3, (9, 5)).astype(np.int16)
    small, large = (grow(logprobs, truth, nodes).row for nodes in (11, 40))
    np.testing.assert_array_equal(small, np.where(large <= 11, large, 0))
    np.testing.assert_array_equal(large, grow(logprobs, truth, 40, want_scores=True).row)


@pytest.mark.parametrize("odd", [np.nan, -np.inf, np.inf])
def test_what_is_not_finite_is_refused(odd):
    """A log-probability that no sum can hold is an error, not a tree."""
    logprobs = some_logprobs(3, 4, 0, "apart")
    logprobs[1, 3] = odd
    with pytest.raises(Usage, match="not finite"):
        grow(logprobs[None], np.zeros((1, 3), np.int16), 5)


def test_sums_that_do_not_fit_are_refused():
    """Sixty-four of the lowest log-probabilities and the places of a thousand nodes need more than an integer has."""
    logprobs = np.full((1, 64, 64), -65504, np.float16)
    with pytest.raises(Usage, match="too low"):
        grow(logprobs, np.zeros((1, 64), np.int16), 1023)
    assert grow(logprobs[:, :15, :32], np.zeros((1, 15), np.int16), 255).row[0, 0] == 1
