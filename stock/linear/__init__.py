"""The seam `linear`: weight formats and matrix products of the target.

    build(target, options, prepared) -> Linear

A module may keep `target.weights[name]` in a form of its own and drop the original, `head` included: of a tied target
`embed`, which is looked up and not multiplied with, is an entry of its own that stays, as do the norms.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

__all__ = ["Linear", "Norm"]


@dataclass(frozen=True)
class Norm:
    """An RMSNorm: weight [features] and epsilon."""

    weight: Tensor
    eps: float


class Linear(Protocol):
    """y = W x + bias by the weight's name, with what stands right before and after it, so that a GPU can fuse it.

    x: [rows, features].  `norm` is applied to x first; with `silu_mul` the product's first half, through SiLU, is
    multiplied by its second half; `residual` [rows, out] is added last and may be overwritten.
    """

    def __call__(
        self, name: str, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None, silu_mul: bool = False
    ) -> Tensor: ...

    def tensors(self) -> list[Tensor]:
        """What it holds of weights beside the target's own, packed ones say."""
