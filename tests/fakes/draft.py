"""A draft module whose proposals are scripted: a known continuation, with errors where the script wants them."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from stock.context import Context
from stock.tree import Lattice

__all__ = ["ScriptedDraft"]


class ScriptedDraft:
    """Implements `stock.draft.Draft` without a drafter.

    ids: what the target is going to say, prompt included; behind its end the fake proposes id 0.  depths: how many
    positions it proposes.  wrong: absolute positions at which it proposes another id instead.  ranks beyond the first
    hold the ids that follow the first, modulo the vocabulary; with `right_rank` the true id is at that rank instead.
    """

    taps: tuple[int, ...] = ()

    def __init__(
        self,
        ids: Sequence[int],
        depths: int,
        vocabulary: int,
        *,
        wrong: Collection[int] = (),
        right_rank: int = 0,
    ) -> None:
        self.ids, self.depths, self.vocabulary = list(ids), depths, vocabulary
        self.wrong, self.right_rank = frozenset(wrong), right_rank

    def open(self, context: Context) -> None:
        """There is no draft state."""

    def prefill(self, context: Context, taps: Tensor, position: Tensor, count: Tensor | None) -> None:
        """Nobody reads taps."""

    def __call__(self, contexts: Sequence[Context], ranks: int) -> list[Lattice]:
        return [self._lattice(context, ranks) for context in contexts]

    def _lattice(self, context: Context, ranks: int) -> Lattice:
        first = int(context.start) + 1
        ids = torch.tensor([self._ranked(at, ranks) for at in range(first, first + self.depths)], dtype=torch.int64)
        logprobs = -torch.arange(1.0, ranks + 1).expand(self.depths, ranks)
        return Lattice(context.anchor, ids.view(self.depths, ranks), logprobs)

    def _ranked(self, position: int, ranks: int) -> list[int]:
        right = self.ids[position] if position < len(self.ids) else 0
        first = right + 1 if position in self.wrong else right - min(self.right_rank, ranks - 1)
        return [(first + rank) % self.vocabulary for rank in range(ranks)]
