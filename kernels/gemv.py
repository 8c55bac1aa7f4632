"""One row through a linear layer: the memory-bound product of autoregressive decoding.

A program owns `block_n` weight rows and walks K.  Its warps lie side by side along K, so the split of K happens
inside the program and is summed in a fixed order: no second kernel, no workspace, no atomics.  Weights are read once
and leave L2 first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.portable import (
    cdiv,
    check_tensors,
    f32,
    narrow,
    next_power_of_2,
    normalised,
    rms_normed,
    tl,
    triton,
    wide,
)

__all__ = ["CONFIGS", "Config", "config_for", "default_config", "gemv", "gemv_reference"]

MANY_ROWS = 16384  # from here on programs of 8 rows still come in many waves


@dataclass(frozen=True)
class Config:
    """How `gemv` cuts one (n, k); all powers of two.  Part of the numeric contract: it fixes the order of the sum."""

    block_n: int  # weight rows of a program, at least 2 with silu_mul
    block_k: int  # columns of a tile; 256 * num_warps gives each lane one 16-byte load a row
    num_warps: int
    num_stages: int = 1  # 1: the next tile waits in registers; more: that many tiles wait in shared memory


# (n, k) -> the best of 32 on an H200 (docs/measurements); what is missing takes default_config.
CONFIGS: dict[tuple[int, int], Config] = {
    (4608, 4608): Config(4, 512, 2, 4),
    (4608, 12288): Config(4, 512, 2, 3),
    (7680, 4608): Config(16, 512, 2, 3),
    (24576, 4608): Config(8, 512, 2, 4),
    (49152, 4608): Config(8, 512, 2, 4),
}


def default_config(n: int, k: int) -> Config:
    """Within 6 % of the best at every shape measured; narrow rows, which no memory waits for, take one tile."""
    if k < 2048:
        warps = min(4, next_power_of_2(cdiv(k, 256)))
        return Config(4, 256 * warps, warps)
    return Config(8 if n >= MANY_ROWS else 4, 512, 2, 4)


def config_for(n: int, k: int) -> Config:
    """What `gemv` takes for a weight of [n, k] when it is given no config."""
    return CONFIGS.get((n, k)) or default_config(n, k)


@triton.jit
def _tile(w_ptr, rows, k0, K: tl.constexpr, BLOCK_K: tl.constexpr):
    cols = k0 + tl.arange(0, BLOCK_K)
    inside = (k0 < K) if K % BLOCK_K == 0 else (cols < K)[None, :]
    pointers = w_ptr + rows[:, None].to(tl.int64) * K + cols[None, :]
    return tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def _input(x_ptr, norm_ptr, rstd, k0, K: tl.constexpr, BLOCK_K: tl.constexpr, NORM: tl.constexpr):
    cols = k0 + tl.arange(0, BLOCK_K)
    x = f32(tl.load(x_ptr + cols, mask=cols < K, other=0.0))
    if NORM:
        weight = f32(tl.load(norm_ptr + cols, mask=cols < K, other=0.0))
        x = normalised(x, rstd, weight, x_ptr.dtype.element_ty)
    return x


@triton.jit
def _rstd(x_ptr, eps, K: tl.constexpr, BLOCK_K: tl.constexpr):
    WIDE: tl.constexpr = 4 * BLOCK_K  # four loads at once, since every program waits for this sum
    squares = tl.zeros([WIDE], tl.float32)
    for k0 in range(0, K, WIDE):
        x = _input(x_ptr, x_ptr, 1.0, k0, K, WIDE, False)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 0) / K + eps)


@triton.jit
def gemv_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    norm_ptr,
    residual_ptr,
    y_ptr,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SILU_MUL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    # With SILU_MUL the rows of a tile are (gate j, up j, gate j + 1, ...); outputs are then half as many.
    HALVES: tl.constexpr = 2 if SILU_MUL else 1
    OUT_N: tl.constexpr = N // HALVES
    lane = tl.arange(0, BLOCK_N)
    out_row = tl.minimum(tl.program_id(0) * (BLOCK_N // HALVES) + lane // HALVES, OUT_N - 1)
    rows = out_row + lane % HALVES * OUT_N
    if STAGES == 1:
        tile = _tile(w_ptr, rows, 0, K, BLOCK_K)  # asked for before the norm's sum
    rstd = 1.0
    if NORM:
        rstd = _rstd(x_ptr, eps, K, BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    if STAGES == 1:
        for k0 in range(0, K, BLOCK_K):
            following = _tile(w_ptr, rows, k0 + BLOCK_K, K, BLOCK_K)
            acc += f32(tile) * _input(x_ptr, norm_ptr, rstd, k0, K, BLOCK_K, NORM)[None, :]
            tile = following
    else:
        for k0 in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            tile = _tile(w_ptr, rows, k0, K, BLOCK_K)
            acc += f32(tile) * _input(x_ptr, norm_ptr, rstd, k0, K, BLOCK_K, NORM)[None, :]
    y = tl.sum(acc, 1)
    if BIAS:
        y += f32(tl.load(bias_ptr + rows))
    if SILU_MUL:
        gate, up = tl.split(tl.reshape(y, [BLOCK_N // 2, 2]))
        y = gate / (1.0 + tl.exp(-gate)) * up
    out = tl.program_id(0) * (BLOCK_N // HALVES) + tl.arange(0, BLOCK_N // HALVES)
    if RESIDUAL:
        y += f32(tl.load(residual_ptr + out, mask=out < OUT_N, other=0.0))
    tl.store(y_ptr + out, narrow(y, y_ptr.dtype.element_ty), mask=out < OUT_N)


def gemv(
    x: Tensor,  # [1, k] bfloat16 or float32
    weight: Tensor,  # [n, k], contiguous; with silu_mul gate rows, then up rows
    *,
    bias: Tensor | None = None,  # [n]
    norm: Tensor | None = None,  # [k]: x goes through RMSNorm with this weight first
    eps: float = 0.0,
    residual: Tensor | None = None,  # [1, n], or [1, n / 2] with silu_mul
    silu_mul: bool = False,
    config: Config | None = None,  # overrides config_for(n, k)
) -> Tensor:
    """[1, n] (silu_mul: [1, n / 2]) of x's type: weight @ x + bias, gated, plus residual, in float32, rounded once.

    The norm's result is rounded to x's type as `rms_norm` rounds it.
    """
    check_tensors(x, weight, bias, norm, residual)
    n, k = weight.shape
    if x.shape != (1, k):
        raise ValueError(f"gemv takes one row of {k} values, got {list(x.shape)}")
    config = config or config_for(n, k)
    if silu_mul and (n % 2 or config.block_n < 2):
        raise ValueError(f"silu_mul pairs weight rows, got {n} rows in blocks of {config.block_n}")
    out_n = n // 2 if silu_mul else n
    y = x.new_empty(1, out_n)
    gemv_kernel[(cdiv(out_n, config.block_n // 2 if silu_mul else config.block_n),)](
        x,
        weight,
        x if bias is None else bias,
        x if norm is None else norm,
        x if residual is None else residual,
        y,
        eps,
        N=n,
        K=k,
        BIAS=bias is not None,
        NORM=norm is not None,
        RESIDUAL=residual is not None,
        SILU_MUL=silu_mul,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        STAGES=config.num_stages,
        num_warps=config.num_warps,
    )
    return y


def gemv_reference(
    x: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    silu_mul: bool = False,
) -> Tensor:
    """The twin of `gemv` in plain torch; takes any number of rows."""
    row = x if norm is None else rms_normed(x, norm, eps)
    y = wide(row) @ wide(weight).T
    if bias is not None:
        y = y + wide(bias)
    if silu_mul:
        gate, up = y.chunk(2, dim=-1)
        y = gate * torch.sigmoid(gate) * up
    if residual is not None:
        y = y + wide(residual)
    return y.to(x.dtype)
