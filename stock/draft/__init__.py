"""The seam `draft`: proposes the next tokens of each request.

build(target, options, prepared) -> make(drafter, make_cache, slots) -> Draft
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from stock.cache import MakeCache
from stock.context import Context
from stock.drafter import Drafter
from stock.tree import Lattice

__all__ = ["Draft", "MakeDraft"]


class Draft(Protocol):
    """Lattices of `ranks` ranks for the contexts.

    depths: positions of a lattice.  taps: target layers whose outputs it wants.
    """

    depths: int
    taps: tuple[int, ...]

    def open(self, context: Context) -> None:
        """Prepares a context's draft state, for a new sequence."""
        ...

    def prefill(self, context: Context, taps: Tensor, position: Tensor, count: Tensor | None) -> None:
        """Takes in the taps [n, width] of prompt rows at positions int64 [n].

        count: int32 [1], how many of the rows are real (None: all).
        """
        ...

    def __call__(self, contexts: Sequence[Context], ranks: int) -> list[Lattice]: ...


class MakeDraft(Protocol):
    def __call__(self, drafter: Drafter | None, make_cache: MakeCache, slots: int) -> Draft: ...
