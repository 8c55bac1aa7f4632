"""Best-first draft trees on the marginals of one drafter pass.

A node's score is the product of the drafter's probabilities on its path.  Under independent positions the sum of the
scores is the expected number of accepted drafts, so the tree of N nodes that is best in expectation holds the N paths
of the highest scores; a parent never scores below its child, so that set is a tree (Ringel and Romano,
arXiv 2604.12989).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from stock.ops.best_first import grow
from stock.select import Select
from stock.target import Target
from stock.tree import DraftTree, Lattice, TreeLimits, chain_tree

__all__ = ["BestFirst", "build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> Select:
    """Trees of `best_first_nodes` nodes within `best_first_positions` positions and `best_first_width` ranks."""
    width = min(options["best_first_width"], target.config.vocabulary)
    return BestFirst(options["best_first_nodes"], width, options["best_first_positions"])


class BestFirst:
    """Selects the highest-scoring paths of a lattice."""

    def __init__(self, nodes: int, width: int, positions: int = 0) -> None:
        self.nodes, self.ranks, self.positions = nodes, width, positions

    def limits(self, depths: int) -> TreeLimits:
        return self._limits(depths, self.ranks)

    def _limits(self, depths: int, ranks: int) -> TreeLimits:
        depths = min(depths, self.positions) if self.positions else depths
        nodes = min(self.nodes, _paths(ranks, depths, self.nodes))
        return TreeLimits(rows=nodes + 1, depth=min(depths, nodes))

    def __call__(self, lattices: Sequence[Lattice]) -> list[DraftTree]:
        return [self.grow(lattice)[0] for lattice in lattices]

    def grow(self, lattice: Lattice) -> tuple[DraftTree, Tensor]:
        """The tree, its nodes in the order of their scores, and those scores: float64 [rows], log-probabilities."""
        # A drafter with a vocabulary of its own may have fewer ids than the ranks that are asked for.
        limits = self._limits(len(lattice.ids), min(self.ranks, lattice.ids.shape[1]))
        ids, logprobs = (part[:, : self.ranks].contiguous() for part in (lattice.ids, lattice.logprobs))
        token, parent, depth, score = grow(lattice.anchor, ids, logprobs, limits.rows, limits.depth)
        if self.ranks == 1:  # a spine: no row has to move when a path is accepted
            return chain_tree(token, depth), score
        return DraftTree(token, parent, depth, chain=False, depth_limit=limits.depth), score


def _paths(ranks: int, depths: int, enough: int) -> int:
    """How many paths a lattice of `ranks` x `depths` has; counting stops at `enough`."""
    total, level = 0, 1
    for _ in range(depths):
        level *= ranks
        total += level
        if total >= enough:
            break
    return total
