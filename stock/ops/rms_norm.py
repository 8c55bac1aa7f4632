"""RMSNorm (Zhang and Sennrich, arXiv 1910.07467)."""

import torch
from torch import Tensor

from stock.ops import has_kernels, wide

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., d] over the root mean square of its last dimension, times weight [d].

    Summed in float32 (float64 for float64); the normalised value is rounded to x's type before the weight.
    """
    if has_kernels(x) and x.dim() == 2:
        from kernels.rms_norm import rms_norm as kernel

        return kernel(x, weight, eps)
    scale = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)
    return (wide(x) * scale).to(x.dtype) * weight
