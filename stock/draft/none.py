"""No drafts: autoregressive decoding."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.cache import MakeCache
from stock.context import Context
from stock.draft import Draft, MakeDraft
from stock.drafter import Drafter
from stock.target import Target
from stock.tree import Lattice

__all__ = ["build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> MakeDraft:
    """Empty lattices."""

    def make(drafter: Drafter | None, make_cache: MakeCache, slots: int) -> Draft:
        return NoDraft()

    return make


class NoDraft:
    """Lattices of depth 0."""

    depths = 0
    taps: tuple[int, ...] = ()

    def open(self, context: Context) -> None:
        """There is no draft state."""

    def prefill(self, context: Context, taps: Tensor, position: Tensor, count: Tensor | None) -> None:
        """Nobody reads taps."""

    def __call__(self, contexts: Sequence[Context], ranks: int) -> list[Lattice]:
        return [
            Lattice(
                context.anchor,
                context.anchor.new_empty(0, ranks),
                torch.empty(0, ranks, device=context.anchor.device),
            )
            for context in contexts
        ]
