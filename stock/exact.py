"""Exact mode: a row has the same bits whatever its neighbours, so that speculation equals AR bit for bit.

Matrix libraries choose their order of sums by the number of rows; so every product has PAD rows here, no more and
no less.  Sums over a row (norms) and functions with a scalar tail (SiLU) are called for each row by itself.
Additions and multiplications of single numbers are exact whatever the shape.
"""

import torch
from torch import Tensor

from stock.linear import Linear, Norm
from stock.ops.rms_norm import rms_norm
from stock.ops.silu_mul import silu_mul as silu_product

__all__ = ["PAD", "PaddedLinear", "padded", "rows_of"]

PAD = 64


def padded(x: Tensor) -> Tensor:
    """x [n, d] with zero rows up to PAD; n is at most PAD."""
    out = x.new_zeros(PAD, x.shape[1])
    out[: len(x)] = x
    return out


def rows_of(x: Tensor) -> list[Tensor]:
    """The rows of x [n, ...], each [1, ...]."""
    return list(x.split(1))


class PaddedLinear:
    """A linear whose products always have PAD rows."""

    def __init__(self, inner: Linear) -> None:
        self.inner = inner

    def __call__(
        self, name: str, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None, silu_mul: bool = False
    ) -> Tensor:
        if norm is not None:
            x = torch.cat([rms_norm(row, norm.weight, norm.eps) for row in rows_of(x)])
        y = torch.cat([self.inner(name, padded(piece))[: len(piece)] for piece in x.split(PAD)])
        if silu_mul:
            y = torch.cat([silu_product(row) for row in rows_of(y)])
        return y if residual is None else residual + y

    def tensors(self) -> list[Tensor]:
        return self.inner.tensors()
