"""Best-first trees without the nodes that the drafter hardly believes in.

A node is worth its row only if its path probability pays for it; where the drafter is unsure, the tail of a tree is
wasted work.  The nodes of a best-first tree stand in the order of their path probabilities, so those below a floor
are its tail, and what is left is a tree.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.select import Select
from stock.select.best_first import BestFirst
from stock.select.best_first import build as build_best_first
from stock.target import Target
from stock.tree import DraftTree, Lattice, TreeLimits

__all__ = ["Confident", "build", "padded"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> Select:
    """Best-first trees down to the path probability `confident_floor`."""
    inner = build_best_first(target, options, prepared)
    assert isinstance(inner, BestFirst)
    return Confident(inner, options["confident_floor"])


class Confident:
    """Cuts the tail of another selection's trees."""

    def __init__(self, inner: BestFirst, floor: float) -> None:
        self.inner, self.ranks = inner, inner.ranks
        self.floor = math.log(floor) if floor > 0 else -math.inf

    def limits(self, depths: int) -> TreeLimits:
        return self.inner.limits(depths)

    def __call__(self, lattices: Sequence[Lattice]) -> list[DraftTree]:
        return [self._cut(*self.inner.grow(lattice)) for lattice in lattices]

    def _cut(self, tree: DraftTree, score: Tensor) -> DraftTree:
        keep = score >= self.floor
        if tree.token.is_cuda:
            return padded(tree, keep)
        rows = int(keep.sum())
        return DraftTree(tree.token[:rows], tree.parent[:rows], tree.depth[:rows], tree.chain, tree.depth_limit)


def padded(tree: DraftTree, keep: Tensor) -> DraftTree:
    """A captured pass has one number of rows: there the tail becomes padding, which nobody sees and nobody accepts."""
    return DraftTree(
        torch.where(keep, tree.token, tree.token[:1]),
        torch.where(keep, tree.parent, -1),
        torch.where(keep, tree.depth, 0),
        chain=False,
        depth_limit=tree.depth_limit,
    )
