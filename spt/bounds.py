"""Bounds on tau where a tree wants ranks that were not stored.

An unstored rank is no more probable than the last stored one.  So the accepted length at an anchor has a least value,
where all unstored ranks are as probable as that one, stand before what came true, and never come true themselves; and a
most one, where what came true is an unstored rank of that probability.  Tau lies between the least and the most that
steps of such lengths come to: a longer step may lead to a worse anchor, so that all ways through an answer count.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spt.errors import Usage
from spt.growth import grow
from spt.policy import Policy, Tree
from spt.walk import Walker, held

__all__ = ["Bounds", "bounds"]


@dataclass(frozen=True)
class Bounds:
    """Tau of a tree lies between these; both are None where no step is left."""

    tree: Tree
    low: float | None
    high: float | None

    def as_json(self) -> dict[str, Any]:
        return {"policy": str(self.tree), "tau_at_least": self.low, "tau_at_most": self.high}


def bounds(walker: Walker, tree: Policy) -> Bounds:
    """Between which values the tau of a tree lies, whatever the unstored ranks hold; Usage for other policies."""
    if not isinstance(tree, Tree):
        raise Usage(f"'{tree}': bounds are of trees", "for instance `tree:63:15:64`")
    depths = walker.positions_of(tree, tree.positions)
    if min(tree.width, tree.nodes) <= walker.ranks or walker.ranks == walker.vocabulary:
        tau = walker.walk(tree).tau
        return Bounds(tree, tau, tau)
    least = _least(walker, tree, depths)
    most = np.maximum(_most(walker, tree, depths), least)
    return Bounds(tree, _extreme(walker, least, most, -1), _extreme(walker, least, most, 1))


def _least(walker: Walker, tree: Tree, depths: int) -> NDArray[np.int64]:
    """int64 [anchor]: what is accepted where each unstored rank is as good as the last stored one, and wrong."""
    stored = walker.logprobs[:, :depths]
    missing = min(tree.width, walker.vocabulary) - walker.ranks
    ranks = np.concatenate((stored, np.repeat(stored[:, :, -1:], missing, axis=2)), axis=2)
    return held(grow(ranks, walker.truth[:, :depths], tree.nodes).row, tree.nodes)


def _most(walker: Walker, tree: Tree, depths: int) -> NDArray[np.int64]:
    """int64 [anchor]: what is accepted where unstored ranks take no room but for what came true."""
    stored, truth = walker.logprobs[:, :depths], walker.truth[:, :depths]
    grown = grow(stored, truth, tree.nodes, want_scores=True)
    assert grown.scores is not None
    enough = grown.scores.shape[1] >= tree.nodes
    worst = grown.scores[:, tree.nodes - 1] if enough else np.full(len(truth), -np.inf)
    rank = np.where(truth >= 0, truth, walker.ranks - 1).astype(np.int64)
    best = np.take_along_axis(stored, rank[:, :, None], 2)[:, :, 0].astype(np.float64).cumsum(axis=1)
    surely = (grown.row > 0) & (grown.row <= tree.nodes)
    known = np.logical_and.accumulate(truth >= 0, axis=1)
    possible = np.where(known, surely, best >= worst[:, None]) & walker.inside[:, :depths]
    most: NDArray[np.int64] = np.logical_and.accumulate(possible, axis=1).sum(axis=1)
    return np.minimum(most, tree.nodes)


def _extreme(walker: Walker, least: NDArray[np.int64], most: NDArray[np.int64], sign: int) -> float | None:
    """The greatest (sign 1) or smallest (-1) ratio of kept tokens to kept steps, by Dinkelbach's method."""
    parts = [slice(first, first + size) for first, size in zip(walker.firsts, walker.sizes, strict=False)]
    own = [
        (least[part].tolist(), most[part].tolist(), kept.tolist())
        for part, kept in zip(parts, walker.kept, strict=True)
    ]
    ratio: float | None = None
    while True:
        found = [_best_way(*each, ratio or 0.0, sign) for each in own]
        tokens, steps = (sum(counts) for counts in zip(*found, strict=True))
        if not steps or (ratio is not None and sign * (tokens / steps - ratio) <= 1e-12):
            return ratio
        ratio = tokens / steps


def _best_way(least: list[int], most: list[int], kept: list[bool], ratio: float, sign: int) -> tuple[int, int]:
    """Kept tokens and steps of the steps through an answer whose tokens - ratio * steps are extreme."""
    size = len(least)
    ways: list[tuple[float, int, int]] = [(0.0, 0, 0)] * (size + 1)
    for anchor in range(size - 1, -1, -1):
        options = []
        for accepted in range(least[anchor], most[anchor] + 1):
            end = min(anchor + accepted + 1, size)
            value, tokens, steps = ways[end]
            if kept[anchor]:
                value, tokens, steps = value + sign * (end - anchor - ratio), tokens + end - anchor, steps + 1
            options.append((value, tokens, steps))
        ways[anchor] = max(options)
    return ways[0][1:]
