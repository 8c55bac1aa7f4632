"""A select module that builds any legal draft tree: what an entry might select, good or bad."""

import random
from collections.abc import Sequence

import torch

from stock.tree import DraftTree, Lattice, TreeLimits

__all__ = ["RandomTree"]


class RandomTree:
    """Trees of at most `nodes` drafted rows over the first `ranks` ranks, another one for each call.

    spine: only the first rank of each depth, so that the tree is a chain that does not say so.
    """

    def __init__(self, seed: int, nodes: int, ranks: int, *, spine: bool = False) -> None:
        self.random, self.nodes, self.ranks, self.spine = random.Random(seed), nodes, ranks, spine

    def limits(self, depths: int) -> TreeLimits:
        return TreeLimits(rows=self.nodes + 1, depth=depths)

    def __call__(self, lattices: Sequence[Lattice]) -> list[DraftTree]:
        return [self._tree(lattice) for lattice in lattices]

    def _tree(self, lattice: Lattice) -> DraftTree:
        ids = lattice.ids.tolist()
        token, parent, depth = [int(lattice.anchor)], [-1], [0]
        used: set[tuple[int, int]] = set()
        for _ in range(self.nodes):
            open_rows = [row for row in range(len(token)) if depth[row] < len(ids)]
            row = len(token) - 1 if self.spine else self.random.choice(open_rows or [0])
            rank = 0 if self.spine else self.random.randrange(self.ranks)
            if row not in open_rows or (row, rank) in used:
                continue
            used.add((row, rank))
            token.append(ids[depth[row]][rank])
            parent.append(row)
            depth.append(depth[row] + 1)
        rows = (torch.tensor(each, dtype=torch.int64) for each in (token, parent, depth))
        return DraftTree(*rows, chain=False, depth_limit=len(ids))
