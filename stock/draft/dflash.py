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
from stock.sampling import Noise, Sampling
from stock.target import Target
from stock.tree import Lattice

__all__ = ["BlockDraft", "build", "ranked"]

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
        ids, logprobs = ranked(self.drafter, logits, context.start, context.sampling, context.noise, ranks)
        return Lattice(context.anchor, ids, logprobs)


def ranked(
    drafter: Drafter, logits: Tensor, start: Tensor, sampling: Sampling, noise: Noise, ranks: int
) -> tuple[Tensor, Tensor]:
    """The best ranks of a block's logits [depths, draft vocabulary], in the target's ids: what a `Lattice` holds.

    start: int32 [1], the anchor's position.  At temperature T the ranks are those of logit + T g among the best logits,
    by a softmax over these.  A draft that shares the target's noise is the best guess of the target's choice, and
    T -> 0 gives the order of the plain lattice.  Noise for a whole vocabulary at every depth would cost more than the
    drafter's pass.
    """
    names = drafter.to_target
    if sampling.greedy:
        ids, logprobs = top_ranks(logits, ranks)
    else:
        probes, logprobs = top_ranks(logits, min(max(ranks, _PROBES), logits.shape[1]))
        position = start + 1 + drafter.offsets[: len(logits)]
        drawn = gumbel(noise.seed, position[:, None], probes if names is None else names[probes])
        noisy = logprobs + noise.temperature * drawn
        best = noisy.sort(dim=1, descending=True, stable=True)
        ids = probes.gather(1, best.indices)[:, :ranks]
        logprobs = noisy.log_softmax(1).gather(1, best.indices)[:, :ranks]
    logprobs = logprobs.half().float()  # as lattices are stored, so that a walk meets the same numbers
    return ids if names is None else names[ids], logprobs
