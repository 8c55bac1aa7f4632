"""The whole matrix of a W12 weight, in bfloat16: what prefill multiplies with.

Integers in, integers out: the bits of the checkpoint, whatever they are.
"""

import torch
from torch import Tensor

from kernels.portable import tl, triton
from kernels.w12 import decode, put_escapes
from kernels.w12_gemm import Weight, restore

__all__ = ["w12_decode", "w12_decode_reference"]


def w12_decode(weight: Weight, out: Tensor) -> Tensor:
    """Writes the matrix into `out`, bfloat16 [n, k], contiguous; does not wait for the device."""
    if out.dtype != torch.bfloat16 or out.shape != (weight.n, weight.k) or not out.is_contiguous():
        raise ValueError(f"out is bfloat16 {[weight.n, weight.k]}, got {out.dtype} {list(out.shape)}")
    tiles, groups, _, block_n, half = weight.high.shape
    bits = out.view(torch.int16)
    w12_decode_kernel[(tiles, groups)](
        weight.high,
        weight.low,
        weight.base,
        bits,
        weight.n,
        weight.k,
        GROUPS=groups,
        BLOCK_N=block_n,
        HALF=half,
        PAIRED=weight.paired,
        num_warps=8,
    )
    put_escapes(bits, weight.starts, weight.columns, weight.values)
    return out


def w12_decode_reference(weight: Weight) -> Tensor:
    """The same through the record itself."""
    return decode(restore(weight))


@triton.jit
def w12_decode_kernel(
    high_ptr,
    low_ptr,
    base_ptr,
    bits_ptr,
    n,
    k,
    GROUPS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HALF: tl.constexpr,
    PAIRED: tl.constexpr,
):
    tile, group = tl.program_id(0), tl.program_id(1)
    lane, column = tl.arange(0, BLOCK_N), tl.arange(0, HALF)
    if PAIRED:  # a tile holds gates, then the rows that they are gates of
        row = tile * (BLOCK_N // 2) + lane % (BLOCK_N // 2)
        inside = row < n // 2
        row += lane // (BLOCK_N // 2) * (n // 2)
    else:
        row = tile * BLOCK_N + lane
        inside = row < n
    base = tl.load(base_ptr + row, mask=inside, other=0).to(tl.int32)[:, None]
    within = lane[:, None] * HALF + column[None, :]
    block = (tile * GROUPS + group).to(tl.int64) * (BLOCK_N * HALF)
    low = tl.load(low_ptr + block + within).to(tl.int32)
    for part in tl.static_range(2):
        high = tl.load(high_ptr + 2 * block + part * (BLOCK_N * HALF) + within).to(tl.int32)
        code = ((high & 0x7F) << 4) | ((low >> (4 * part)) & 15)
        magnitude = tl.where(code >= 128, code + (base << 7), 0)
        value = (((high & 0x80) << 8) | magnitude).to(tl.int16)
        at = group * (2 * HALF) + part * HALF + column[None, :]
        tl.store(bits_ptr + row[:, None].to(tl.int64) * k + at, value, mask=inside[:, None] & (at < k))
