"""Attention of a draft tree: every node sees the context and, of the tree, its own path.

Split-KV flash decoding.  The rows of an MMA are nodes x query heads of one KV head.  Split 0 attends to the tree, where
ancestor words mask; splits 1 .. `splits` stride over fixed blocks of the context, so the grid does not depend on its
length.  What unseen slots hold, NaN included, cannot reach a row.  A second kernel merges the splits in order.
"""

import torch
from torch import Tensor

from kernels.portable import cdiv, check_tensors, dot, f32, narrow, next_power_of_2, tl, triton, wide

__all__ = ["default_splits", "tree_attention", "tree_attention_reference"]

WORD = 64  # nodes of an ancestor word
PROGRAMS = 288  # for the context; near the best of all counts at 1 to 128 rows and 300 to 4,096 keys on an H200
LOG2_E = 1.4426950408889634


@triton.jit
def _attend(q, k, v, seen, scale, top, total, acc):
    """One block of keys: the running maximum, sum and weighted values of the softmax in base 2, all float32."""
    scores = dot(q, tl.trans(k), tl.zeros([q.shape[0], k.shape[0]], tl.float32)) * scale
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weight, 1)
    return higher, total, dot(narrow(weight, v.dtype), v, acc * shrink[:, None])


@triton.jit
def _finite(x):
    """x with zeros for what is not finite, since a weight of zero does not silence it."""
    return narrow(tl.where(tl.abs(f32(x)) < float("inf"), f32(x), 0.0), x.dtype)


@triton.jit(do_not_specialize=["n", "context", "splits"])
def tree_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    start_ptr,
    ancestors_ptr,
    position_ptr,
    top_ptr,
    total_ptr,
    acc_ptr,
    scale,
    window,
    n,
    context,
    splits,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WORD: tl.constexpr,
):
    words = tl.cdiv(n, WORD)
    member, head, split = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1), tl.program_id(2)
    row, dim = member // GROUP, tl.arange(0, BLOCK_D)
    out = row * (HKV * GROUP) + head * GROUP + member % GROUP
    live, inside = row < n, dim < D
    start = tl.load(start_ptr).to(tl.int32)
    q = tl.load(q_ptr + out[:, None] * D + dim[None, :], mask=live[:, None] & inside[None, :], other=0.0)
    if WINDOW:
        position = tl.load(position_ptr + row, mask=live, other=2147483647).to(tl.int32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    k_ptr += head * D
    v_ptr += head * D
    if split == 0:
        for block in tl.range(0, tl.cdiv(n, BLOCK_T), num_stages=1):
            node = block * BLOCK_T + tl.arange(0, BLOCK_T)
            there = (node < n) & (start + node < context)
            key = (start + node).to(tl.int64)[:, None] * (HKV * D) + dim[None, :]
            k = tl.load(k_ptr + key, mask=there[:, None] & inside[None, :], other=0.0)
            v = _finite(tl.load(v_ptr + key, mask=there[:, None] & inside[None, :], other=0.0))
            word = tl.load(ancestors_ptr + row * words + block * BLOCK_T // WORD, mask=live, other=0)
            seen = ((word[:, None] >> (node % WORD)[None, :]) & 1 != 0) & there[None, :]
            if WINDOW:
                place = tl.load(position_ptr + node, mask=there, other=0).to(tl.int32)
                seen &= position[:, None] - place[None, :] < window
            top, total, acc = _attend(q, k, v, seen, scale, top, total, acc)
    else:
        first = 0
        if WINDOW:
            first = tl.maximum(tl.min(position, 0) - window + 1, 0) // BLOCK_N
        mine = first + (split - 1 + splits - first % splits) % splits
        for block in range(mine, tl.cdiv(start, BLOCK_N), splits):
            slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
            there = slot < start
            key = slot.to(tl.int64)[:, None] * (HKV * D) + dim[None, :]
            k = tl.load(k_ptr + key, mask=there[:, None] & inside[None, :], other=0.0)
            v = tl.load(v_ptr + key, mask=there[:, None] & inside[None, :], other=0.0)
            seen = there[None, :]
            if WINDOW:
                seen = seen & (position[:, None] - slot[None, :] < window)
            top, total, acc = _attend(q, k, v, seen, scale, top, total, acc)
    out += split * (n * HKV * GROUP)
    tl.store(top_ptr + out, top, mask=live)
    tl.store(total_ptr + out, total, mask=live)
    reached = live & (top > float("-inf"))
    tl.store(acc_ptr + out.to(tl.int64)[:, None] * D + dim[None, :], acc, mask=reached[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_splits_kernel(
    top_ptr,
    total_ptr,
    acc_ptr,
    out_ptr,
    rows,
    splits,
    D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row, dim = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_D)
    live, inside = (row < rows)[None, :], (dim < D)[None, None, :]
    highest = tl.full([BLOCK_R], float("-inf"), tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = (first + tl.arange(0, BLOCK_S))[:, None]
        top = tl.load(top_ptr + split * rows + row[None, :], mask=(split < splits) & live, other=float("-inf"))
        highest = tl.maximum(highest, tl.max(top, 0))
    total = tl.zeros([BLOCK_S, BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_R, BLOCK_D], tl.float32)
    for first in range(0, splits, BLOCK_S):
        split = (first + tl.arange(0, BLOCK_S))[:, None]
        at = split * rows + row[None, :]
        top = tl.load(top_ptr + at, mask=(split < splits) & live, other=float("-inf"))
        reached = top > float("-inf")
        weight = tl.where(reached, tl.exp2(top - highest[None, :]), 0.0)
        total += weight * tl.load(total_ptr + at, mask=reached, other=0.0)
        values = acc_ptr + at.to(tl.int64)[:, :, None] * D + dim[None, None, :]
        acc += weight[:, :, None] * tl.load(values, mask=reached[:, :, None] & inside, other=0.0)
    sums = tl.sum(total, 0)[:, None]
    y = tl.sum(acc, 0) / tl.where(sums == 0.0, 1.0, sums)
    out = out_ptr + row[:, None] * D + dim[None, :]
    tl.store(out, narrow(y, out_ptr.dtype.element_ty), mask=(row < rows)[:, None] & (dim < D)[None, :])


def default_splits(heads: int, blocks: int) -> int:
    """Splits of a context of at most `blocks` blocks that fill the device with `heads` x tiles of rows beside them."""
    return max(1, min(PROGRAMS // heads, 127, blocks))


def tree_attention(
    q: Tensor,  # [n, hq, d] bfloat16 or float32
    k_cache: Tensor,  # [context, hkv, d] of q's type, contiguous
    v_cache: Tensor,  # the same
    start: Tensor,  # [1] int32 or int64, on the device: slots of the context that all rows see
    ancestors: Tensor,  # [n, ceil(n / 64)] int64: bit j % 64 of word j // 64 set where the row sees slot start + j
    *,
    scale: float,
    window: int | None = None,  # a row sees only keys less than this many positions before it
    position: Tensor | None = None,  # [n] int64 or int32, needed with a window; a context slot is its own position
    splits: int | None = None,  # programs that share a head's context: fixes the order of the sums
) -> Tensor:
    """softmax(q k^T scale) v over what each row sees, [n, hq d] of q's type; zeros where a row sees nothing.

    Scores, softmax and sums are float32; the weights are rounded to the type of v for the second product.
    """
    (n, hq, d), (context, hkv, _) = q.shape, k_cache.shape
    if window is not None and position is None:
        raise ValueError("a window needs the positions of the rows")
    check_tensors(q, k_cache, v_cache, ancestors, position)
    members, block_d = n * (hq // hkv), max(16, next_power_of_2(d))
    if q.dtype == torch.bfloat16:
        block_m, block_n, warps, stages = min(64, max(16, next_power_of_2(members))), min(128, 8192 // block_d), 4, 2
    else:
        block_m, block_n, warps, stages = 16, 32, 8, 1
    tiles = cdiv(members, block_m)
    splits = splits or default_splits(hkv * tiles, cdiv(context, block_n))
    top, total = (torch.empty(splits + 1, n * hq, dtype=torch.float32, device=q.device) for _ in range(2))
    acc = torch.empty(splits + 1, n * hq, d, dtype=torch.float32, device=q.device)
    out = q.new_empty(n, hq * d)
    tree_attention_kernel[(tiles, hkv, splits + 1)](
        q,
        k_cache,
        v_cache,
        start,
        ancestors,
        start if position is None else position,
        top,
        total,
        acc,
        scale * LOG2_E,
        window or 0,
        n,
        context,
        splits,
        HKV=hkv,
        GROUP=hq // hkv,
        D=d,
        WINDOW=window is not None,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_T=min(WORD, 4096 // block_d),
        BLOCK_D=block_d,
        WORD=WORD,
        num_warps=warps,
        num_stages=stages,
    )
    block_s = 4 if splits < 4 else 16
    block_r = 16 // block_s  # few splits leave a program room for several rows
    merge_splits_kernel[(cdiv(n * hq, block_r),)](
        top,
        total,
        acc,
        out,
        n * hq,
        splits + 1,
        D=d,
        BLOCK_R=block_r,
        BLOCK_S=block_s,
        BLOCK_D=block_d,
        num_warps=1 if d <= 128 else 2,
    )
    return out


def tree_attention_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    start: Tensor,
    ancestors: Tensor,
    *,
    scale: float,
    window: int | None = None,
    position: Tensor | None = None,
    splits: int | None = None,
) -> Tensor:
    """The twin of `tree_attention` in plain torch, row by row over exactly the keys that it sees; syncs the host."""
    (n, hq, d), hkv, length = q.shape, k_cache.shape[1], int(start)
    rows = []
    for row in range(n):
        nodes = [node for node in range(n) if int(ancestors[row, node // WORD]) >> node % WORD & 1]
        slots = torch.tensor([*range(length), *(length + node for node in nodes)], device=q.device)
        if window is not None and position is not None:
            places = torch.cat([torch.arange(length, device=q.device), position[nodes].long()])
            slots = slots[position[row] - places < window]
        keys, values = wide(k_cache[slots]), wide(v_cache[slots])  # [keys, hkv, d]
        heads = wide(q[row]).reshape(hkv, hq // hkv, d)
        weights = torch.softmax(torch.einsum("hgd,khd->hgk", heads, keys) * scale, dim=-1)
        rows.append(torch.einsum("hgk,khd->hgd", weights, values).reshape(hq * d))
    return torch.stack(rows).to(q.dtype)
