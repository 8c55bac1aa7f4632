"""Dense weights, as they are in the checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stock.linear import Linear, Norm
from stock.ops import has_kernels, wide
from stock.ops.gemv import gemv
from stock.ops.rms_norm import rms_norm
from stock.ops.silu_mul import silu_mul as silu_product
from stock.target import Target

__all__ = ["Dense", "Float32Head", "build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> Linear:
    """Products with the target's weights."""
    return Dense(target.weights)


class Dense:
    """Products with dense weights [out, in]; one row on a GPU goes through one fused kernel."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights

    def __call__(
        self, name: str, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None, silu_mul: bool = False
    ) -> Tensor:
        weight, bias = self.weights[name], self.weights.get(name + ".bias")
        if has_kernels(x) and len(x) == 1:
            return gemv(x, weight, bias, norm, residual, silu_mul)
        if norm is not None:
            x = rms_norm(x, norm.weight, norm.eps)
        if residual is not None and bias is None and not silu_mul and x.is_cuda:
            return residual.addmm_(x, weight.t())  # the library adds into the residual: one kernel less
        y = F.linear(x, weight, bias)
        if silu_mul:
            y = silu_product(y)
        return y if residual is None else torch.add(residual, y)

    def tensors(self) -> list[Tensor]:
        return []


class Float32Head:
    """The product with weights `head`, summed and returned in float32, for scoring.

    Operands stay in the model's type; products of BF16 numbers are exact in float32, so only the order of sums differs
    between implementations.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weight = weights["head"]
        # A CPU has no product of BF16 operands with a float32 result: there the operands are widened, which is exact.
        self.wide = None if has_kernels(self.weight) else wide(self.weight)

    def __call__(
        self, name: str, x: Tensor, *, norm: Norm | None = None, residual: Tensor | None = None, silu_mul: bool = False
    ) -> Tensor:
        if norm is not None:
            x = rms_norm(x, norm.weight, norm.eps)
        if self.wide is not None:
            return x.to(self.wide.dtype) @ self.wide.t()
        if x.dtype == torch.float32:
            return x @ self.weight.t()
        return torch.mm(x, self.weight.t(), out_dtype=torch.float32)

    def tensors(self) -> list[Tensor]:
        return [self.weight] if self.wide is None else [self.weight, self.wide]
