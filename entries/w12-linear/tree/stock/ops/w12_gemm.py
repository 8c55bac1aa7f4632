"""Products with packed weights: a kernel that reads packed bytes, and a twin that decodes and multiplies as stock does.

The kernel is for BF16 on a GPU.  Everywhere else, exact mode among it, the twin gives stock's own bits.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernels.w12 import Packed, decode
from stock.linear import Norm
from stock.linear.dense import Dense
from stock.ops.rms_norm import rms_norm

__all__ = ["ROWS", "Ready", "dense_product", "product", "ready", "shape_of", "tensors_of", "unpacked"]

ROWS = 128  # that the kernel takes at most

Ready: TypeAlias = Any  # a Packed, or what the kernel has made of it


def ready(packed: Packed, dtype: torch.dtype, *, silu_mul: bool = False) -> Ready:
    """A record in the order in which products with x of that type will read it.

    silu_mul: whether those products are gated, all of them or none.
    """
    if packed.high.device.type != "cuda" or dtype != torch.bfloat16:
        return packed
    from kernels.w12_gemm import arrange

    return arrange(packed, paired=silu_mul)


def product(
    x: Tensor, weight: Ready, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, silu_mul: bool
) -> Tensor:
    """The product that `stock.linear.Linear` describes, for x [1..ROWS, features]."""
    if isinstance(weight, Packed):
        return dense_product(x, unpacked(weight), bias, norm, residual, silu_mul)
    from kernels.w12_gemm import w12_gemm

    if silu_mul != weight.paired:  # exact mode gates by itself
        return dense_product(x, unpacked(weight), bias, norm, residual, silu_mul)
    if norm is not None:
        x = rms_norm(x, norm.weight, norm.eps)
    return w12_gemm(x.contiguous(), weight, bias=bias, residual=residual)


def unpacked(weight: Ready, out: Tensor | None = None) -> Tensor:
    """The matrix in bfloat16, written into `out` where it is given."""
    if isinstance(weight, Packed):
        return decode(weight, out=out)
    from kernels.w12_decode import w12_decode

    return w12_decode(weight, weight.base.new_empty(shape_of(weight), dtype=torch.bfloat16) if out is None else out)


def dense_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, silu_mul: bool
) -> Tensor:
    """Stock's own product with a bfloat16 matrix, in x's type."""
    weights = {"w": weight.to(x.dtype)} | ({} if bias is None else {"w.bias": bias})
    return Dense(weights)("w", x, norm=norm, residual=residual, silu_mul=silu_mul)


def shape_of(weight: Ready) -> tuple[int, int]:
    """n and k of a packed matrix."""
    n, k = weight.shape if isinstance(weight, Packed) else (weight.n, weight.k)
    return n, k


def tensors_of(weight: Ready) -> list[Tensor]:
    """Every tensor that stands for a packed matrix."""
    return [each for each in vars(weight).values() if isinstance(each, Tensor)]
