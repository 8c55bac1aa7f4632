"""Drafts with a DFlash block drafter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from stock.cache import MakeCache
from stock.context import Context
from stock.draft import Draft, MakeDraft
from stock.drafter import Drafter
from stock.errors import EngineError
from stock.noise import gumbel
from stock.ops.top_ranks import top_ranks
from stock.target import Target
from stock.tree import Lattice

__all__ = ["BlockDraft", "build"]

_PROBES = 64  # the most that the kernel ranks; what lies behind them is rarely drawn at temperatures that people use


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> MakeDraft:
    """Drafts of one block."""

    def make(drafter: Drafter | None, make_cache: MakeCache, slots: int) -> Draft:
        if drafter is None:
            raise EngineError("bad_option", "option 'draft' is 'dflash', but no drafter is loaded")
        return BlockDraft(drafter, make_cache, slots)

    return make


class BlockDraft:
    """One drafter pass a lattice, over the context that was accepted so far."""

    def __init__(self, drafter: Drafter, make_cache: MakeCache, slots: int) -> None:
        self.drafter, self.make_cache, self.slots = drafter, make_cache, slots
        self.depths = drafter.config.depths
        self.taps = drafter.config.taps

    def open(self, context: Context) -> None:
        if context.draft_cache is None:
            context.draft_cache = self.drafter.new_cache(self.make_cache, self.slots)
        context.draft_cache.reset()

    def prefill(self, context: Context, taps: Tensor, position: Tensor, count: Tensor | None) -> None:
        assert context.draft_cache is not None
        self.drafter.append(taps, position, count, context.draft_cache)
        context.draft_cache.append(len(position) if count is None else count)

    def __call__(self, contexts: Sequence[Context], ranks: int) -> list[Lattice]:
        return [self._lattice(context, ranks) for context in contexts]

    def _lattice(self, context: Context, ranks: int) -> Lattice:
        cache, pending = context.draft_cache, context.pending
        assert cache is not None
        self.drafter.append(pending.taps, pending.position(cache.start), pending.count, cache)
        cache.start += pending.count
        pending.count.zero_()
        logits = self.drafter.draft(context.anchor, cache)
        ids, logprobs = self._ranks(logits, context, ranks)
        logprobs = logprobs.half().float()  # as lattices are stored, so that a walk meets the same numbers
        if self.drafter.to_target is not None:
            ids = self.drafter.to_target[ids]
        return Lattice(context.anchor, ids, logprobs)

    def _ranks(self, logits: Tensor, context: Context, ranks: int) -> tuple[Tensor, Tensor]:
        """The best ranks; at temperature T those of logit + T g among the best logits, by a softmax over these.

        A draft that shares the target's noise is the best guess of the target's choice, and T -> 0 gives the order of
        the plain lattice.  Noise for a whole vocabulary at every depth would cost more than the drafter's pass.
        """
        if context.sampling.greedy:
            return top_ranks(logits, ranks)
        noise, names = context.noise, self.drafter.to_target
        ids, logprobs = top_ranks(logits, min(max(ranks, _PROBES), logits.shape[1]))
        position = context.start + 1 + self.drafter.offsets[: len(logits)]
        noisy = logprobs + noise.temperature * gumbel(
            noise.seed, position[:, None], ids if names is None else names[ids]
        )
        best = noisy.sort(dim=1, descending=True, stable=True)
        return ids.gather(1, best.indices)[:, :ranks], noisy.log_softmax(1).gather(1, best.indices)[:, :ranks]
