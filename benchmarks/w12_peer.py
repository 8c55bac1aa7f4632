"""A product with a BF16 matrix that differs from `w12_gemm` in nothing but the decoding: what packed bytes are worth.

It shares the storage, the loop and the pieces of `w12_gemm`; escapes, gates and residuals it has not.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.portable import dot
from kernels.w12_gemm import (  # type: ignore[import-not-found]
    Plan,
    _input,
    _kept,
    _plane,
    _stored,
    _total,
    _zeros,
)

__all__ = ["bf16_arranged", "bf16_gemm"]


def bf16_arranged(weight: Tensor, block_n: int) -> Tensor:
    """A bfloat16 matrix [n, k] as [tiles, groups, 2, block_n, 64], filled up with zeros."""
    n, k = weight.shape
    whole = F.pad(weight, (0, -k % 128, 0, -n % block_n))
    return whole.view(-1, block_n, (k + 127) // 128, 2, 64).permute(0, 2, 3, 1, 4).contiguous()


def bf16_gemm(x: Tensor, weight: Tensor, plan: Plan) -> Tensor:
    """x [t, k] @ weight.T as bfloat16 [t, n]; weight is `bf16_arranged`, plan one of `w12_gemm`, of whole pieces."""
    rows = len(x)
    y = x.new_empty(rows, plan.n)
    work = x.new_empty((plan.tiles * plan.slices, plan.block_t, plan.block_n), dtype=torch.float32)
    bf16_gemm_kernel[(plan.programs,)](x, weight, work, y, rows, P=plan, num_warps=4)
    if plan.split:
        bf16_finish_kernel[(plan.tiles, triton.cdiv(rows, 16))](work, y, rows, P=plan)
    return y


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def bf16_gemm_kernel(x_ptr, weight_ptr, work_ptr, y_ptr, rows, P: tl.constexpr):  # type: ignore[no-untyped-def]
    CHUNKS: tl.constexpr = P.chunks
    UNIT: tl.constexpr = P.unit
    first = tl.program_id(0) * P.units // P.programs
    end = (tl.program_id(0) + 1) * P.units // P.programs
    sums = _zeros(P)
    for unit in tl.range(first, end, num_stages=P.stages):
        for half in tl.static_range(2 * UNIT):
            block = unit * (2 * UNIT) + half
            weight = _plane(weight_ptr, block * P.block_n, P)
            added = ()
            for chunk in tl.static_range(CHUNKS):
                values = _input(x_ptr, rows, chunk * P.chunk, block % (2 * P.groups) * 64, P)
                if P.wgmma:
                    added += (dot(weight, tl.trans(values), sums[chunk]),)  # type: ignore[assignment]
                else:
                    added += (dot(values, tl.trans(weight), sums[chunk]),)  # type: ignore[assignment]
            sums = added
    tile = first // P.per_tile
    if P.split:
        _kept(sums, tile, work_ptr, P)
    else:
        column = tile * P.block_n + tl.arange(0, P.block_n)
        for chunk in tl.static_range(CHUNKS):
            token = chunk * P.chunk + tl.arange(0, P.chunk)
            _stored(tl.trans(sums[chunk]) if P.wgmma else sums[chunk], column, token, y_ptr, y_ptr, rows, P)


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def bf16_finish_kernel(work_ptr, y_ptr, rows, P: tl.constexpr):  # type: ignore[no-untyped-def]
    tile, token = tl.program_id(0), tl.program_id(1) * 16 + tl.arange(0, 16)
    row = tl.arange(0, P.block_n)
    _stored(_total(work_ptr, tile, row, token, P), tile * P.block_n + row, token, y_ptr, y_ptr, rows, P)
