"""Passes over tokens that are known: a prompt, or an answer that is scored."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stock.cache import Cache
from stock.exact import PAD
from stock.system import System
from stock.tree import chain_tree

__all__ = ["Passed", "run_chain"]


@dataclass
class Passed:
    """Rows of one pass: position int64 [n], hidden [n, hidden], taps [n, width]."""

    position: Tensor
    hidden: Tensor
    taps: Tensor


def run_chain(system: System, token: Tensor, cache: Cache) -> Iterator[Passed]:
    """Runs token int64 [n] through the target in pieces, each committed to the cache before it is given out."""
    rows = PAD if system.settings.exact else system.options["prefill_rows"]
    for piece in token.split(rows):
        index = torch.arange(len(piece), device=piece.device)
        position = cache.start + index
        ((hidden, taps),) = system.verify([chain_tree(piece, index)], [cache])
        cache.append(len(piece))
        yield Passed(position, hidden, taps)
