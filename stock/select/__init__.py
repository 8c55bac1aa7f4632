"""The seam `select`: from the drafter's lattices to draft trees.

    build(target, options, prepared) -> Select

`ranks` says how many ranks a depth the selection reads; `limits(depths)` how large its trees get when the drafter
proposes `depths` positions, so that buffers can be sized before the first step.
"""

from collections.abc import Sequence
from typing import Protocol

from stock.tree import DraftTree, Lattice, TreeLimits

__all__ = ["Select"]


class Select(Protocol):
    ranks: int

    def limits(self, depths: int) -> TreeLimits: ...

    def __call__(self, lattices: Sequence[Lattice]) -> list[DraftTree]: ...
