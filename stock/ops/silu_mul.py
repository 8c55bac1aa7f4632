"""The gated activation of SwiGLU (Shazeer, arXiv 2002.05202)."""

import torch.nn.functional as F
from torch import Tensor

from stock.ops import has_kernels

__all__ = ["silu_mul"]


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [n, 2 * width]: gate is the first half."""
    if has_kernels(gate_up):
        from kernels.silu_mul import silu_mul as kernel

        return kernel(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up
