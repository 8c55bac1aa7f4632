"""Lattices of a finished sequence: what the drafter would have proposed at every one of its positions.

The target runs the sequence once, and its taps fill the drafter's context.  A drafter pass then holds the blocks of
many anchors at once, each behind the context that it would have had in a step: the same numbers as a step's in exact
mode, and other orders of their sums in fast mode.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stock.cache import Cache
from stock.digest import content_digest
from stock.draft.dflash import ranked
from stock.errors import EngineError
from stock.graph import Phases
from stock.ops.attention import KERNEL_ROWS
from stock.prefill import Prefill
from stock.sampling import Noise, Sampling
from stock.system import System

__all__ = ["RANKS", "LatticePass"]

RANKS = 32


class LatticePass:
    """Ranks with two caches of its own, which it empties for each sequence.

    Beside them its memory holds one pass of the target and one of the drafter, however long the sequence is.
    depths, ranks: the shape of a position's lattice.  origin: what a file's header says of the models.
    """

    def __init__(self, system: System) -> None:
        """EngineError `unsupported` for a system that does not draft blocks."""
        if system.drafter is None or system.options["draft"] != "dflash":
            raise EngineError("unsupported", "a lattice is of a drafter of blocks, and option 'draft' is another")
        self.system, self.drafter = system, system.drafter
        self.depths = self.drafter.config.depths
        self.ranks = min(RANKS, len(self.drafter.ids))
        self.cache = system.new_cache()
        self.context: Cache = self.drafter.new_cache(system.make_cache, system.context + KERNEL_ROWS)
        self.prefill = Prefill(system, self.cache, Phases(system.device, graphs=False), self._take)
        self.origin = _origin(system)

    @torch.inference_mode()
    def __call__(self, ids: Sequence[int], start: int, sampling: Sampling) -> Iterator[tuple[Tensor, Tensor]]:
        """Ids int64 and log-probabilities float32 [n, depths, ranks] of the anchors from `start` on, n at a time.

        start: the index of the first anchor, at least 1.
        """
        device = self.system.device
        token, noise = torch.tensor(ids, device=device), Noise.of(sampling, device)
        self.cache.reset()
        self.context.reset()
        for _ in self.prefill(token[:-1]):
            pass
        for first in range(start, len(ids), self.drafter.most_blocks):
            yield self._blocks(token[first : first + self.drafter.most_blocks], first, sampling, noise)

    def _take(self, taps: Tensor, position: Tensor, count: Tensor | None) -> None:
        self.drafter.append(taps, position, count, self.context)

    def _blocks(self, anchor: Tensor, first: int, sampling: Sampling, noise: Noise) -> tuple[Tensor, Tensor]:
        """The lattices of consecutive anchors int64 [n], the first of which is at position `first`."""
        drafter, context = self.drafter, self.context
        rows = slice(first + len(anchor) - 1, first + len(anchor) - 1 + len(anchor) * drafter.config.block)
        layers = [context.layer(index) for index in range(drafter.config.layers)]
        kept = [layer[:, rows].clone() for layer in layers]  # the blocks lie where later anchors have their context
        context.start.fill_(first)
        logits = drafter.draft(anchor, context)
        for layer, before in zip(layers, kept, strict=True):
            layer[:, rows] = before
        position = context.start + torch.arange(len(anchor), device=anchor.device, dtype=torch.int32)
        # Block by block, so that exact mode makes the very calls of a step.
        blocks = zip(logits.split(self.depths), position.split(1), strict=True)
        made = [ranked(drafter, each, at, sampling, noise, self.ranks) for each, at in blocks]
        return torch.stack([ids for ids, _ in made]), torch.stack([logprobs for _, logprobs in made])


def _origin(system: System) -> dict[str, Any]:
    settings, config = system.settings, system.target.config
    assert settings.drafter is not None and system.drafter is not None
    target = {"digest": content_digest(settings.target), "widen": settings.widen, "jitter": settings.jitter}
    models = {"target": target, "drafter": content_digest(settings.drafter)}
    shape = {"block": system.drafter.config.block, "vocabulary": config.vocabulary}
    return {**models, "mode": settings.mode, "dtype": settings.dtype, **shape}
