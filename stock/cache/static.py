"""One block of memory a sequence, allocated once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.cache import MakeCache
from stock.ops.accept import Accepted
from stock.ops.compact import compact
from stock.target import Target
from stock.tree import DraftTree

__all__ = ["StaticCache", "build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> MakeCache:
    """Static caches."""
    return StaticCache


class StaticCache:
    """Keys and values [layers, 2, slots, keys, dim], in the type and on the device of `like`."""

    def __init__(self, layers: int, keys: int, dim: int, slots: int, like: Tensor) -> None:
        self.kv = torch.zeros(layers, 2, slots, keys, dim, dtype=like.dtype, device=like.device)
        self.start = torch.zeros(1, dtype=torch.int32, device=like.device)

    def layer(self, index: int) -> Tensor:
        return self.kv[index]

    def commit(self, tree: DraftTree, accepted: Accepted) -> None:
        if not tree.chain:
            compact(self.kv, self.start, accepted.path, accepted.count)
        self.start += accepted.count

    def append(self, rows: int | Tensor) -> None:
        self.start += rows

    def rollback(self) -> None:
        """Nothing to undo: the next pass writes over the rows that were not committed."""

    def reset(self) -> None:
        self.start.zero_()

    def resident_bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()
