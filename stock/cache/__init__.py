"""The seam `cache`: keys and values of the context.

build(target, options, prepared) -> make(layers, keys, dim, slots, like) -> Cache
"""

from typing import Protocol

from torch import Tensor

from stock.ops.accept import Accepted
from stock.tree import DraftTree

__all__ = ["Cache", "MakeCache"]


class Cache(Protocol):
    """One sequence.  Rows of a pass lie behind the committed ones until `commit` keeps a path of them.

    start: int32 [1], committed rows.
    """

    start: Tensor

    def layer(self, index: int) -> Tensor:
        """[2, slots, keys, dim], keys and values of a layer."""
        ...

    def commit(self, tree: DraftTree, accepted: Accepted) -> None:
        """Keeps the accepted path of the last pass."""
        ...

    def append(self, rows: int | Tensor) -> None:
        """Keeps the first `rows` rows of the last pass, a prefill; a number, or int32 [1]."""
        ...

    def rollback(self) -> None:
        """Forgets the last pass."""
        ...

    def reset(self) -> None:
        """Forgets the sequence."""
        ...

    def resident_bytes(self) -> int: ...


class MakeCache(Protocol):
    def __call__(self, layers: int, keys: int, dim: int, slots: int, like: Tensor) -> Cache: ...
