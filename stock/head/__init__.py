"""The seam `head`: chooses a token from a hidden state.

    build(target, options, prepared) -> make(product) -> Head

A head may have `counters() -> {name: number}`, which the protocol's `stats` tells beside the engine's own, and
`tensors()`, as a linear module has.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from stock.linear import Linear, Norm
from stock.sampling import Noise, Sampling

__all__ = ["Chosen", "Head", "MakeHead", "Product", "Wanted"]


@dataclass(frozen=True)
class Product:
    """The plain matrix product of the head: hidden [n, hidden] before the final norm -> logits [n, vocabulary].

    linear: what multiplies in the engine's mode, under the name `head`, after the norm.
    """

    linear: Linear
    norm: Norm

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.linear("head", hidden, norm=self.norm)


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
