"""Rotary positions and the cache append: what lies between the qkv product and attention.

`rope_append` takes a target's fused qkv rows and returns q; `rope_append_kv` takes rows that only feed a cache.
RoPE turns the pairs (i, i + d/2).  With `q_norm`, `k_norm` every head goes through RMSNorm first (Qwen3).
"""

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

__all__ = ["rope_append", "rope_append_kv", "rope_append_kv_reference", "rope_append_reference"]

HEADS = 8  # heads of one program


@triton.jit
def _place(
    from_ptr,  # [heads, D], the heads of one kind in one row
    to_ptr,  # [heads, D]
    block,  # which HEADS of them
    heads,
    norm_ptr,  # [D]
    eps,
    cos_ptr,  # [D / 2]
    sin_ptr,
    turned,  # whether the position has an angle; without one the result is zero
    kept,  # whether to store
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    ROPE: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    dtype: tl.constexpr = to_ptr.dtype.element_ty
    head, lane = block * HEADS + tl.arange(0, HEADS), tl.arange(0, BLOCK)
    low = head[:, None] * D + lane[None, :]
    inside = (head < heads)[:, None] & (lane < HALF)[None, :]
    x = f32(tl.load(from_ptr + low, mask=inside, other=0.0))
    y = f32(tl.load(from_ptr + low + HALF, mask=inside, other=0.0))
    if NORM:
        rstd = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / D + eps)[:, None]
        weight = f32(tl.load(norm_ptr + lane, mask=lane < HALF, other=0.0))
        x = normalised(x, rstd, weight[None, :], dtype)
        weight = f32(tl.load(norm_ptr + HALF + lane, mask=lane < HALF, other=0.0))
        y = normalised(y, rstd, weight[None, :], dtype)
    if ROPE:
        cos = tl.load(cos_ptr + lane, mask=(lane < HALF) & turned, other=0.0)[None, :]
        sin = tl.load(sin_ptr + lane, mask=(lane < HALF) & turned, other=0.0)[None, :]
        x, y = x * cos - y * sin, y * cos + x * sin
    tl.store(to_ptr + low, narrow(x, dtype), mask=inside & kept)
    tl.store(to_ptr + low + HALF, narrow(y, dtype), mask=inside & kept)


@triton.jit(do_not_specialize=["angles", "context"])
def rope_append_kernel(
    qkv_ptr,
    position_ptr,
    cos_ptr,
    sin_ptr,
    k_ptr,
    v_ptr,
    slot_ptr,
    q_ptr,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    angles,  # rows of cos and sin
    context,  # slots of the cache
    HQ: tl.constexpr,  # 0: rows hold k and v only
    HKV: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    EACH: tl.constexpr,  # whether slot holds every row's slot, or that of row 0 alone
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
):
    Q_BLOCKS: tl.constexpr = (HQ + HEADS - 1) // HEADS
    KV_BLOCKS: tl.constexpr = (HKV + HEADS - 1) // HEADS
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(position_ptr + row).to(tl.int64)
    if EACH:
        slot = tl.load(slot_ptr + row).to(tl.int64)
    else:
        slot = tl.load(slot_ptr).to(tl.int64) + row
    turned = (position >= 0) & (position < angles)
    kept = (slot >= 0) & (slot < context)
    cos_ptr += position * (D // 2)
    sin_ptr += position * (D // 2)
    q_from = qkv_ptr + row * (HQ + 2 * HKV) * D
    k_from, v_from = q_from + HQ * D, q_from + (HQ + HKV) * D
    if block < Q_BLOCKS:
        q_to = q_ptr + row * HQ * D
        _place(q_from, q_to, block, HQ, q_norm_ptr, eps, cos_ptr, sin_ptr, turned, True, D, BLOCK, HEADS, Q_NORM, True)
    elif block < Q_BLOCKS + KV_BLOCKS:
        block -= Q_BLOCKS
        k_to = k_ptr + slot * HKV * D
        _place(k_from, k_to, block, HKV, k_norm_ptr, eps, cos_ptr, sin_ptr, turned, kept, D, BLOCK, HEADS, K_NORM, True)
    else:
        block -= Q_BLOCKS + KV_BLOCKS
        v_to = v_ptr + slot * HKV * D
        _place(v_from, v_to, block, HKV, k_norm_ptr, eps, cos_ptr, sin_ptr, turned, kept, D, BLOCK, HEADS, False, False)


def _launch(qkv, position, cos, sin, k_cache, v_cache, slot, q, q_norm, k_norm, eps, each):
    check_tensors(qkv, position, cos, sin, k_cache, v_cache, slot, q_norm, k_norm)
    context, hkv, d = k_cache.shape
    hq = 0 if q is None else q.shape[1]
    rope_append_kernel[(qkv.shape[0], cdiv(hq, HEADS) + 2 * cdiv(hkv, HEADS))](
        qkv,
        position,
        cos,
        sin,
        k_cache,
        v_cache,
        slot,
        k_cache if q is None else q,
        cos if q_norm is None else q_norm,
        cos if k_norm is None else k_norm,
        eps,
        cos.shape[0],
        context,
        HQ=hq,
        HKV=hkv,
        D=d,
        BLOCK=next_power_of_2(d // 2),
        HEADS=HEADS,
        EACH=each,
        Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None,
        num_warps=2,
    )


def rope_append(
    qkv: Tensor,  # [n, (hq + 2 hkv) d] bfloat16 or float32, contiguous: heads of q, then k, then v
    position: Tensor,  # [n] int64 or int32
    cos: Tensor,  # [angles, d / 2] float32
    sin: Tensor,  # [angles, d / 2] float32
    k_cache: Tensor,  # [context, hkv, d] of qkv's type, contiguous; slots start .. start + n - 1 are written
    v_cache: Tensor,  # the same
    start: Tensor,  # [1] int32 or int64, on the device
    *,
    q_norm: Tensor | None = None,  # [d]
    k_norm: Tensor | None = None,  # [d]
    eps: float = 0.0,
) -> Tensor:
    """q [n, hq, d], normed and turned; k and v go into the caches.  Float32 inside, rounded once after the turn.

    A row whose slot lies outside the cache writes nothing there, and a position outside the angles gives zeros:
    rows that only pad a captured batch do no harm.
    """
    n, (_, hkv, d) = qkv.shape[0], k_cache.shape
    q = qkv.new_empty(n, qkv.shape[1] // d - 2 * hkv, d)
    _launch(qkv, position, cos, sin, k_cache, v_cache, start, q, q_norm, k_norm, eps, each=False)
    return q


def rope_append_kv(
    kv: Tensor,  # [n, 2 hkv d]: heads of k, then v
    position: Tensor,  # [n] int64 or int32
    cos: Tensor,  # [angles, d / 2] float32
    sin: Tensor,  # [angles, d / 2] float32
    k_cache: Tensor,  # [context, hkv, d]
    v_cache: Tensor,  # [context, hkv, d]
    slot: Tensor,  # [n] int32 or int64, each row's own; a negative one marks padding, which writes nothing
    *,
    k_norm: Tensor | None = None,  # [d]
    eps: float = 0.0,
) -> None:
    """`rope_append` for rows without q, at any slots: the context rows of a drafter."""
    _launch(kv, position, cos, sin, k_cache, v_cache, slot, None, None, k_norm, eps, each=True)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = wide(x).chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def rope_append_reference(
    qkv: Tensor,
    position: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    start: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """The twin of `rope_append` in plain torch."""
    (n, width), (_, hkv, d) = qkv.shape, k_cache.shape
    q, kv = qkv.split([width - 2 * hkv * d, 2 * hkv * d], dim=-1)
    slot = start + torch.arange(n, device=qkv.device)
    rope_append_kv_reference(kv, position, cos, sin, k_cache, v_cache, slot, k_norm=k_norm, eps=eps)
    q = q.reshape(n, -1, d)
    if q_norm is not None:
        q = rms_normed(q, q_norm, eps)
    angle = position.long()
    return _turn(q, cos[angle, None], sin[angle, None])


def rope_append_kv_reference(
    kv: Tensor,
    position: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot: Tensor,
    *,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """The twin of `rope_append_kv` in plain torch."""
    context, hkv, d = k_cache.shape
    k, v = kv.reshape(-1, 2, hkv, d).unbind(1)
    if k_norm is not None:
        k = rms_normed(k, k_norm, eps)
    angle = position.long()
    k = _turn(k, cos[angle, None], sin[angle, None])
    kept = (slot >= 0) & (slot < context)
    k_cache[slot[kept].long()] = k[kept]
    v_cache[slot[kept].long()] = v[kept]
