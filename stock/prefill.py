"""Passes over tokens that are known: a prompt, or an answer that is scored."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stock.cache import Cache
from stock.exact import PAD
from stock.graph import Phases
from stock.ops.attention import KERNEL_ROWS
from stock.system import System
from stock.tree import chain_tree

__all__ = ["Passed", "Prefill", "Take"]

SIZES = (16, 64, 128)  # rows of passes that kernels run, beside the longest

# take(taps [n, width], position int64 [n], count int32 [1] or None): what else a pass feeds; `count` rows are real,
# None: all.
Take = Callable[[Tensor, Tensor, Tensor | None], None]


@dataclass
class Passed:
    """Rows of one pass: position int64 [n], hidden [n, hidden].  Valid until the next pass."""

    position: Tensor
    hidden: Tensor


class Prefill:
    """Runs known tokens behind what a cache holds, in pieces that are committed before they are given out.

    Where kernels run, a piece is filled up to one of a few sizes, whose rows behind the real ones nobody sees: so a
    prompt of any length goes through passes that were captured before, and the host, which would need longer for the
    launches of a short pass than the device for the work, has nothing to do.
    """

    def __init__(self, system: System, cache: Cache, phases: Phases, take: Take | None = None) -> None:
        self.system, self.cache, self.phases, self.take = system, cache, phases, take
        self.longest = PAD if system.settings.exact else system.options["prefill_rows"]
        self.sizes: list[int] = []
        if system.has_kernels:
            self.longest = min(self.longest, KERNEL_ROWS)
            self.sizes = [*(size for size in SIZES if size < self.longest), self.longest]
            self._token = torch.zeros(self.longest, dtype=torch.int64, device=system.device)
            self._count = torch.zeros(1, dtype=torch.int32, device=system.device)

    def __call__(self, token: Tensor) -> Iterator[Passed]:
        """The passes over token int64 [n]."""
        for piece in token.split(self.longest):
            yield self._filled(piece) if self.sizes else self._pass(piece, None)

    def capture(self, reset: Callable[[], None]) -> None:
        """Captures a pass of each size; `reset` empties what passes fill, and is called before each."""
        for size in self.sizes if self.phases.graphs else ():
            for run in (_eagerly, _eagerly, self.phases.capture):
                reset()
                self._count.fill_(1)
                run(self._key(size), self._pass, self._token[:size], self._count)
        reset()

    def _filled(self, piece: Tensor) -> Passed:
        size = next(size for size in self.sizes if size >= len(piece))
        self._token[: len(piece)] = piece
        self._count.fill_(len(piece))
        passed: Passed = self.phases.run(self._key(size), self._pass, self._token[:size], self._count)
        return Passed(passed.position[: len(piece)], passed.hidden[: len(piece)])

    def _key(self, size: int) -> tuple[object, ...]:
        return "prefill", id(self.cache), size

    def _pass(self, token: Tensor, count: Tensor | None) -> Passed:
        index = torch.arange(len(token), device=token.device)
        position = self.cache.start + index
        ((hidden, taps),) = self.system.verify([chain_tree(token, index)], [self.cache])
        if self.take is not None:
            self.take(taps, position, count)
        self.cache.append(len(token) if count is None else count)
        return Passed(position, hidden)


def _eagerly(key: object, phase: Callable[..., Passed], *arguments: Tensor) -> Passed:
    return phase(*arguments)
