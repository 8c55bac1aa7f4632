"""The seam `verify`: runs the target over draft trees.

build(target, options, prepared) -> make(linear, taps, exact) -> Verify
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from stock.cache import Cache
from stock.linear import Linear
from stock.tree import DraftTree

__all__ = ["MakeVerify", "Verified", "Verify"]


class Verified(NamedTuple):
    """hidden [rows, hidden] before the final norm, and taps [rows, taps * tap_width]."""

    hidden: Tensor
    taps: Tensor


class Verify(Protocol):
    """Runs each tree's rows, which it leaves in each cache, uncommitted.

    Row positions are start + depth.
    """

    def __call__(self, trees: Sequence[DraftTree], caches: Sequence[Cache]) -> list[Verified]: ...


class MakeVerify(Protocol):
    def __call__(self, linear: Linear, taps: Sequence[int], exact: bool) -> Verify: ...
