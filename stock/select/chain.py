"""The drafter's best token at each position: a chain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stock.select import Select
from stock.target import Target
from stock.tree import DraftTree, Lattice, TreeLimits, chain_tree

__all__ = ["build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> Select:
    """Chains of `chain_positions` drafted tokens, 0 for all."""
    return Chain(options["chain_positions"])


class Chain:
    """Anchor and the best-ranked id of each depth."""

    ranks = 1

    def __init__(self, positions: int) -> None:
        self.positions = positions

    def limits(self, depths: int) -> TreeLimits:
        used = min(depths, self.positions) if self.positions else depths
        return TreeLimits(rows=used + 1, depth=used)

    def __call__(self, lattices: Sequence[Lattice]) -> list[DraftTree]:
        return [self._chain(lattice) for lattice in lattices]

    def _chain(self, lattice: Lattice) -> DraftTree:
        depths = self.limits(len(lattice.ids)).depth
        token = torch.cat((lattice.anchor, lattice.ids[:depths, 0]))
        return chain_tree(token, torch.arange(len(token), device=token.device))
