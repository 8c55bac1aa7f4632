"""Best-first draft trees at many positions at once.

A tree grows as the engine's does: a candidate is taken, its next sibling and its first child become candidates, and the
best is the one of the highest score, ties by depth, parent and rank.  Here each round takes one node of every
position's tree.  A score is a sum of float16 log-probabilities, hence a whole number of 2^-24, and it is exact in the
engine's float64 and in int64 alike; so score, depth, parent and rank fit in one integer whose minimum is the next node.
A parent never has more than one candidate child, so that a candidate's slot is its parent's row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spt.errors import Usage

__all__ = ["Grown", "grow", "paths"]

_UNIT = 24  # float16 is a whole number of 2^-24
_NOBODY = 1 << 62  # added to a key it is behind all others; keys have 61 bits, so that the sum fits
_LANES = 2048  # positions that grow together: their candidates stay in the cache of a core


@dataclass(frozen=True)
class Grown:
    """Trees of up to `nodes` rows behind the anchor at each of n positions.

    row: int16 [n, depth], the row that holds the true path's node of each depth, 0 where none does.
    scores: float64 [n, nodes], log-probabilities of the paths in the order in which they were taken; None unless asked
    for.
    """

    row: NDArray[np.int16]
    scores: NDArray[np.float64] | None


def grow(logprobs: NDArray[np.float16], truth: NDArray[np.int16], nodes: int, want_scores: bool = False) -> Grown:
    """Trees over lattices `logprobs` [n, depth, rank]; truth [n, depth] is the rank of what came true, or -1.

    A smaller tree over the same lattice is a prefix of a larger one, so one call serves all smaller budgets.
    """
    count, depths, ranks = logprobs.shape
    nodes = min(nodes, paths(ranks, depths, nodes))
    row = np.zeros((count, depths), np.int16)
    scores = np.zeros((count, nodes)) if want_scores else None
    if not nodes:
        return Grown(row, scores)
    # A position whose first token is no candidate accepts nothing, whatever its tree is.
    lanes = np.arange(count) if want_scores else np.flatnonzero(truth[:, 0] >= 0)
    for first in range(0, len(lanes), _LANES):
        some = lanes[first : first + _LANES]
        row[some], taken = _grow(logprobs[some], truth[some], nodes, want_scores)
        if scores is not None:
            scores[some] = taken.T
    return Grown(row, scores)


def paths(ranks: int, depths: int, enough: int) -> int:
    """How many paths a lattice of `ranks` x `depths` has; counting stops at `enough`."""
    total, level = 0, 1
    for _ in range(depths):
        level *= ranks
        total += level
        if total >= enough:
            break
    return total


def _grow(
    logprobs: NDArray[np.float16], truth: NDArray[np.int16], nodes: int, want_scores: bool
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    lanes, depths, ranks = logprobs.shape
    rank_bits, parent_bits, depth_bits = ((most).bit_length() for most in (ranks - 1, nodes, depths))
    depth_at, score_at = rank_bits + parent_bits, rank_bits + parent_bits + depth_bits
    rank_mask, parent_mask, depth_mask = (1 << rank_bits) - 1, (1 << parent_bits) - 1, (1 << depth_bits) - 1
    costs = _costs(logprobs, 61 - score_at) << score_at
    # What a candidate's key becomes when its next sibling takes its place, and when its first child opens a slot.
    sibling = np.full((lanes, depths, ranks), _NOBODY)
    sibling[:, :, :-1] = np.diff(costs, axis=2) + 1
    child = np.full((lanes, depths + 1), _NOBODY)
    child[:, :-1] = costs[:, :, 0] + (np.arange(1, depths + 1) << depth_at)
    next_sibling, first_child, wanted = sibling.reshape(-1), child.reshape(-1), truth.reshape(-1)
    at = np.arange(lanes)
    keys = np.empty((nodes + 1, lanes), np.int64)
    keys[0] = child[:, 0]
    row = np.zeros(lanes * depths, np.int16)
    scores = np.empty((nodes if want_scores else 0, lanes))
    last = np.zeros(lanes, np.int64)  # the row of the deepest node that came true
    for taken in range(1, nodes + 1):
        best = keys[:taken].min(axis=0)
        rank, parent = best & rank_mask, (best >> rank_bits) & parent_mask
        depth = (best >> depth_at) & depth_mask
        score = best >> score_at
        level = at * depths + depth - 1
        true = (parent == last) & (rank == wanted[level])
        row[level[true]] = taken
        last[true] = taken
        keys[parent, at] = best + next_sibling[level * ranks + rank]
        keys[taken] = (score << score_at) + first_child[level + at + 1] + (taken << rank_bits)
        if want_scores:
            scores[taken - 1] = score * -(2.0**-_UNIT)
    return row.reshape(lanes, depths), scores


def _costs(logprobs: NDArray[np.float16], bits: int) -> NDArray[np.int64]:
    """Minus log-probabilities in units of 2^-24; raises where a sum along a path might need more than `bits`."""
    wide = logprobs.astype(np.float64)
    if not np.isfinite(wide).all():
        raise Usage("a log-probability of the lattice is not finite", "make the lattice again")
    costs = (wide * -(2.0**_UNIT)).astype(np.int64)
    if costs.size and int(np.abs(costs).max(axis=2).sum(axis=1).max()) >> bits:
        raise Usage("log-probabilities of the lattice are too low to be added exactly", "ask for fewer positions")
    return costs
