"""The gate of a Llama MLP: silu(gate) * up."""

import torch.nn.functional as F
from torch import Tensor

from kernels.portable import cdiv, check_tensors, f32, narrow, tl, triton, wide

__all__ = ["silu_mul", "silu_mul_reference"]


@triton.jit
def silu_mul_kernel(gate_up_ptr, y_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < WIDTH
    gate = f32(tl.load(gate_up_ptr + row * (2 * WIDTH) + cols, mask=inside, other=0.0))
    up = f32(tl.load(gate_up_ptr + row * (2 * WIDTH) + WIDTH + cols, mask=inside, other=0.0))
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * WIDTH + cols, narrow(y, y_ptr.dtype.element_ty), mask=inside)


def silu_mul(
    gate_up: Tensor,  # [n, 2i] bfloat16 or float32, contiguous: gate in the first half, up in the second
) -> Tensor:
    """silu(gate) * up, [n, i] of gate_up's type: float32 inside, rounded once."""
    check_tensors(gate_up)
    n, width = gate_up.shape
    y = gate_up.new_empty(n, width // 2)
    block = 1024
    silu_mul_kernel[(n, cdiv(width // 2, block))](gate_up, y, WIDTH=width // 2, BLOCK=block, num_warps=4)
    return y


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The twin of `silu_mul` in plain torch."""
    gate, up = wide(gate_up).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
