"""Best-first draft trees on a GPU: one warp keeps the candidates in registers and takes the best, again and again.

A tree of N nodes needs N rounds, and never more than one candidate a node: when a node is taken, its next sibling
takes over its slot and its first child opens a new one.
"""

import torch
from torch import Tensor

from kernels.portable import next_power_of_2, tl, triton

__all__ = ["best_first", "best_first_reference"]

# A candidate's place as one number, so that ties are broken by (depth, parent, rank) with one minimum.
_DEPTH, _PARENT = 40, 20
_NOBODY = (1 << 62) - 1


def best_first(
    anchor: Tensor, ids: Tensor, logprobs: Tensor, rows: int, depth_limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The `rows` - 1 highest-scoring paths of a lattice below the anchor.

    anchor: int64 [1].  ids: int64 [depth, rank].  logprobs: float32 [depth, rank], best first; contiguous, on a GPU.
    Returns token, parent, depth: int64 [rows], and score: float64 [rows].
    """
    token = torch.empty(rows, dtype=torch.int64, device=ids.device)
    parent, depth = torch.empty_like(token), torch.empty_like(token)
    score = torch.empty(rows, dtype=torch.float64, device=ids.device)
    best_first_kernel[(1,)](
        anchor,
        ids,
        logprobs,
        token,
        parent,
        depth,
        score,
        ids.shape[1],
        depth_limit,
        rows,
        SLOTS=next_power_of_2(max(rows, 32)),
        DEPTH=_DEPTH,
        PARENT=_PARENT,
        NOBODY=_NOBODY,
        num_warps=1,
    )
    return token, parent, depth, score


def best_first_reference(
    anchor: Tensor, ids: Tensor, logprobs: Tensor, rows: int, depth_limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by listing candidates and sorting them all, level by level."""
    width = ids.shape[1]
    taken = [(0.0, 0, -1, 0)]
    pool = [(-float(logprobs[0, rank]), 1, 0, rank) for rank in range(width)] if depth_limit else []
    while len(taken) < rows:
        best = min(pool)
        pool.remove(best)
        if best[1] < depth_limit:
            below = logprobs[best[1]].double().tolist()
            pool += [(best[0] - below[rank], best[1] + 1, len(taken), rank) for rank in range(width)]
        taken.append(best)
    token = [int(anchor)] + [int(ids[depth - 1, rank]) for _, depth, _, rank in taken[1:]]
    return (
        torch.tensor(token, device=ids.device),
        torch.tensor([parent for _, _, parent, _ in taken], device=ids.device),
        torch.tensor([depth for _, depth, _, _ in taken], device=ids.device),
        torch.tensor([-score for score, _, _, _ in taken], dtype=torch.float64, device=ids.device),
    )


@triton.jit
def best_first_kernel(
    anchor_ptr,
    ids_ptr,
    logprobs_ptr,
    token_ptr,
    parent_ptr,
    depth_ptr,
    score_ptr,
    width,
    depth_limit,
    rows,
    SLOTS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARENT: tl.constexpr,
    NOBODY: tl.constexpr,
):
    slot = tl.arange(0, SLOTS)
    first = tl.load(logprobs_ptr).to(tl.float64)
    score = tl.where(slot == 0, first, float("-inf"))
    above = tl.where(slot == 0, 0.0, float("-inf")).to(tl.float64)
    place = tl.where(slot == 0, 1 << DEPTH, NOBODY).to(tl.int64)
    tl.store(token_ptr, tl.load(anchor_ptr))
    tl.store(parent_ptr, -1)
    tl.store(depth_ptr, 0)
    tl.store(score_ptr, 0.0)
    for row in range(1, rows):
        best = tl.max(score, 0)
        key = tl.min(tl.where(score == best, place, NOBODY), 0)
        hit = place == key
        base = tl.max(tl.where(hit, above, float("-inf")), 0)
        depth = (key >> DEPTH).to(tl.int32)
        parent = ((key >> PARENT) & ((1 << (DEPTH - PARENT)) - 1)).to(tl.int32)
        rank = (key & ((1 << PARENT) - 1)).to(tl.int32)
        at = (depth - 1) * width + rank
        tl.store(token_ptr + row, tl.load(ids_ptr + at))
        tl.store(parent_ptr + row, parent)
        tl.store(depth_ptr + row, depth)
        tl.store(score_ptr + row, best)
        # The next sibling takes over the slot.
        more = rank + 1 < width
        sibling = base + tl.load(logprobs_ptr + at + 1, mask=more, other=float("-inf")).to(tl.float64)
        score = tl.where(hit, sibling, score)
        place = tl.where(hit, tl.where(more, key + 1, NOBODY), place)
        # The first child opens a slot of its own.
        deeper = depth < depth_limit
        child = best + tl.load(logprobs_ptr + depth * width, mask=deeper, other=float("-inf")).to(tl.float64)
        child_place = ((depth + 1).to(tl.int64) << DEPTH) | (slot.to(tl.int64) << PARENT)
        new = slot == row
        score = tl.where(new, child, score)
        above = tl.where(new, best, above)
        place = tl.where(new, tl.where(deeper, child_place, NOBODY), place)
