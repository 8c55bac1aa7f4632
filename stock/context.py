"""What the engine knows of one open request, on the device."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from stock.cache import Cache
from stock.sampling import Noise, Sampling

if TYPE_CHECKING:
    from stock.prefill import Prefill

__all__ = ["Context", "Pending"]


@dataclass
class Pending:
    """Target taps of rows that were accepted since the last draft: the first `count` of taps [rows, width].

    count: int32 [1].  offsets: int64 [rows], 0, 1, 2, ...
    """

    taps: Tensor
    count: Tensor
    offsets: Tensor

    def position(self, drafted: Tensor) -> Tensor:
        """Positions int64 [rows] when the drafter has taken in `drafted` int32 [1] rows before."""
        return drafted + self.offsets

    def put(self, taps: Tensor, path: Tensor, count: Tensor) -> None:
        """Takes over the taps of an accepted path int32 [depth_limit + 1], of which `count` rows are real."""
        self.taps[: len(path)] = taps[path.long()]
        self.count.copy_(count)


@dataclass
class Context:
    """One sequence: its anchor (the last token, whose keys are not yet in the cache), caches, taps and settings.

    anchor: int64 [1].  prefill: runs prompts behind what the caches hold.  All tensors keep their place, so that
    captured passes can be replayed.
    """

    anchor: Tensor
    cache: Cache
    pending: Pending
    sampling: Sampling
    noise: Noise
    prefill: "Prefill"
    draft_cache: Cache | None = None

    @property
    def start(self) -> Tensor:
        """The anchor's position, int32 [1]: the committed rows before it."""
        return self.cache.start
