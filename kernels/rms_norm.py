"""RMSNorm over rows."""

import torch
from torch import Tensor

from kernels.portable import check_tensors, f32, narrow, next_power_of_2, normalised, rms_normed, tl, triton

__all__ = ["rms_norm", "rms_norm_reference"]


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, y_ptr, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < D
    weight = f32(tl.load(weight_ptr + cols, mask=inside, other=0.0))
    x = f32(tl.load(x_ptr + row * D + cols, mask=inside, other=0.0))
    rstd = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
    dtype: tl.constexpr = y_ptr.dtype.element_ty
    tl.store(y_ptr + row * D + cols, narrow(normalised(x, rstd, weight, dtype), dtype), mask=inside)


def rms_norm(
    x: Tensor,  # [n, d] bfloat16 or float32, contiguous
    weight: Tensor,  # [d]
    eps: float,
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, [n, d] of x's type: float32 inside, rounded before and after the product."""
    check_tensors(x, weight)
    n, d = x.shape
    y = torch.empty_like(x)
    block = next_power_of_2(d)
    rms_norm_kernel[(n,)](x, weight, y, eps, D=d, BLOCK=block, num_warps=min(8, max(1, block // 512)))
    return y


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The twin of `rms_norm` in plain torch."""
    return rms_normed(x, weight, eps)
