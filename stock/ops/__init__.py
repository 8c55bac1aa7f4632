"""Operations that have a kernel on a GPU: plain torch here for a CPU, `kernels/` for CUDA.

This folder is the only place of the engine that imports kernels, and it does so on first use, so that a CPU needs
no Triton.  A kernel that is missing on a GPU is an error, never a slower path.  Float64 has no kernels: it is there
for comparison, and runs on plain torch everywhere.
"""

import torch
from torch import Tensor

__all__ = ["has_kernels", "wide"]


def has_kernels(x: Tensor) -> bool:
    """Whether tensors of x's type and device go through kernels."""
    return x.is_cuda and x.dtype != torch.float64


def wide(x: Tensor) -> Tensor:
    """x in the type in which sums are made: float32, or float64 for float64."""
    return x if x.dtype == torch.float64 else x.float()
