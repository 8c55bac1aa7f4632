"""The seam `head`: chooses a token from a hidden state.

    build(target, options, prepared) -> make(product) -> Head

`product(hidden) -> logits` is the plain matrix product of the head in the engine's mode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from stock.sampling import Noise, Sampling

__all__ = ["Chosen", "Head", "MakeHead", "Product", "Wanted"]

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Wanted:
    """What a request asks for beside the token."""

    logprobs: bool = False
    logits: bool = False


@dataclass
class Chosen:
    """token: int64 [n]; on request logprob: float32 [n] under softmax(logits), and logits [n, vocabulary]."""

    token: Tensor
    logprob: Tensor | None = None
    logits: Tensor | None = None


class Head(Protocol):
    """The token of each row of hidden [n, hidden], before the final norm, chosen at position int64 [n]."""

    def __call__(
        self, hidden: Tensor, position: Tensor, sampling: Sampling, noise: Noise, wanted: Wanted
    ) -> Chosen: ...


class MakeHead(Protocol):
    def __call__(self, product: Product) -> Head: ...
