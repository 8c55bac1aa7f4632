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
from stock.ops.silu_mul import silu_mul as silu_product

__all__ = ["ROWS", "Ready", "dense_product", "product", "ready", "tensors_of", "unpacked"]

ROWS = 128  # that the kernel takes at most

Ready: TypeAlias = Any  # a Packed, or what the kernel has made of it


def ready(packed: Packed, dtype: torch.dtype) -> Ready:
    """A record in the order in which products with x of that type will read it; nothing of the record is kept."""
    if not _has_kernel(packed.high.device, dtype):
        return packed
    from kernels.w12_gemm import arrange

    return arrange(packed)


def product(
    x: Tensor, weight: Ready, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, silu_mul: bool
) -> Tensor:
    """The product that `stock.linear.Linear` describes, for x [1..ROWS, features]."""
    if isinstance(weight, Packed):
        return dense_product(x, decode(weight), bias, norm, residual, silu_mul)
    from kernels.w12_gemm import gemm

    if norm is not None:
        x = rms_norm(x, norm.weight, norm.eps)
    y = gemm(x.contiguous(), weight)
    if bias is not None:
        y = y + bias
    if silu_mul:
        y = silu_product(y)
    return y if residual is None else residual.add_(y)


def unpacked(weight: Ready, out: Tensor) -> Tensor:
    """The matrix in bfloat16, written into `out`."""
    if isinstance(weight, Packed):
        return decode(weight, out=out)
    from kernels.w12_gemm import unpack

    return unpack(weight, out)


def dense_product(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None, residual: Tensor | None, silu_mul: bool
) -> Tensor:
    """Stock's own product with a bfloat16 matrix, in x's type."""
    weights = {"w": weight.to(x.dtype)} | ({} if bias is None else {"w.bias": bias})
    return Dense(weights)("w", x, norm=norm, residual=residual, silu_mul=silu_mul)


def tensors_of(weight: Ready) -> list[Tensor]:
    """Every tensor that stands for a packed matrix."""
    return list(weight.tensors().values())


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype == torch.bfloat16
