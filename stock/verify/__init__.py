"""The seam `verify`: runs the target over draft trees.

build(target, options, prepared) -> make(linear, taps, exact) -> Verify
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from stock.cache import Cache
from stock.linear import Linear
from stock.tree import DraftTree

__all__ = ["MakeVerify", "Verified", "Verify"]

Verified = tuple[Tensor, Tensor]


class Verify(Protocol):
    """hidden [rows, hidden] and taps [rows, taps * tap_width] of each tree, and the rows in each cache, uncommitted.

    Row positions are start + depth.
    """

    def __call__(self, trees: Sequence[DraftTree], caches: Sequence[Cache]) -> list[Verified]: ...


class MakeVerify(Protocol):
    def __call__(self, linear: Linear, taps: Sequence[int], exact: bool) -> Verify: ...
