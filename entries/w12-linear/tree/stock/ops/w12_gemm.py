"""Products with packed weights: kernels that read packed bytes, and a twin that decodes and multiplies as stock does.

The kernels are for BF16 on a GPU.  Everywhere else, exact mode among it, the twin gives stock's own bits.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernels.w12 import Packed, decode
from stock.errors import EngineError
from stock.linear import Norm
from stock.linear.dense import Dense
from stock.ops.rms_norm import rms_norm

__all__ = ["ROWS", "Ready", "dense_product", "product", "ready", "shape_of", "tensors_of", "tiled", "unpacked"]

ROWS = 128  # that the kernels take at most

Ready: TypeAlias = Any  # a Packed, or what a kernel has made of it: Strips of `w12_mma`, a Weight of `w12_gemm`


def ready(packed: Packed, dtype: torch.dtype, *, silu_mul: bool = False) -> Ready:
    """A record in the order in which products with x of that type will read it.

    silu_mul: whether those products are gated, all of them or none.  EngineError `no_device` where the GPU is too old.
    """
    device = packed.high.device
    if device.type != "cuda" or dtype != torch.bfloat16:
        return packed
    from kernels.w12_cuda import device as machine
    from kernels.w12_mma import strips

    try:
        machine(device.index)
    except RuntimeError as error:
        raise EngineError("no_device", str(error)) from error
    return strips(packed, paired=silu_mul)


def tiled(weight: Ready) -> Ready:
    """The same weight in the order in which `w12_gemm` on Triton reads it; a Packed stays what it is."""
    if isinstance(weight, Packed):
        return weight
    from kernels.w12_gemm import Weight, arrange
    from kernels.w12_mma import restore

    return weight if isinstance(weight, Weight) else arrange(restore(weight), paired=weight.paired)


def product(
    x: Tensor, weight: Ready, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, silu_mul: bool
) -> Tensor:
    """The product that `stock.linear.Linear` describes, for x [1..ROWS, features]."""
    if isinstance(weight, Packed) or silu_mul != weight.paired:  # exact mode gates by itself
        return dense_product(x, unpacked(weight), bias, norm, residual, silu_mul)
    from kernels.w12_gemm import Weight, w12_gemm
    from kernels.w12_mma import w12_mma

    if norm is not None:
        x = rms_norm(x, norm.weight, norm.eps)
    multiply = w12_gemm if isinstance(weight, Weight) else w12_mma
    return multiply(x.contiguous(), weight, bias=bias, residual=residual)


def unpacked(weight: Ready, out: Tensor | None = None) -> Tensor:
    """The matrix in bfloat16, written into `out` where it is given."""
    if isinstance(weight, Packed):
        return decode(weight, out=out)
    from kernels.w12_decode import w12_decode
    from kernels.w12_gemm import Weight
    from kernels.w12_mma import w12_mma_decode

    room = weight.base.new_empty(shape_of(weight), dtype=torch.bfloat16) if out is None else out
    return w12_decode(weight, room) if isinstance(weight, Weight) else w12_mma_decode(weight, room)


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
