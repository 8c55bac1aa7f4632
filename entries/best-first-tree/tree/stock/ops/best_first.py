"""Grows best-first draft trees: a heap on a CPU, one small kernel on a GPU."""

import heapq

import torch
from torch import Tensor

__all__ = ["grow"]


def grow(anchor: Tensor, ids: Tensor, logprobs: Tensor, rows: int, depth_limit: int) -> tuple[Tensor, ...]:
    """The `rows` - 1 highest-scoring paths of a lattice below the anchor, as rows of a draft tree.

    anchor: int64 [1].  ids: int64 [depth, rank].  logprobs: float32 [depth, rank], best first.
    Returns token, parent, depth: int64 [rows], and score: float64 [rows], the sum of log-probabilities on the path
    (exact: the addends have 11 bits).  Rows stand in the order (score descending, depth, parent, rank).
    """
    if ids.is_cuda and rows > 1:
        from kernels.best_first import best_first

        return best_first(anchor, ids, logprobs, rows, depth_limit)
    choices, scores = ids.tolist(), logprobs.double().tolist()
    width = ids.shape[1]
    grown = [(0.0, 0, -1, 0)]  # (minus score, depth, parent, rank) of each row, the anchor first
    # A candidate carries its parent's score, from which its next sibling's is made.
    heap = [(-scores[0][0], 1, 0, 0, 0.0)] if rows > 1 else []
    while len(grown) < rows:
        negative, depth, parent, rank, above = heapq.heappop(heap)
        if rank + 1 < width:
            heapq.heappush(heap, (-(above + scores[depth - 1][rank + 1]), depth, parent, rank + 1, above))
        if depth < depth_limit:
            heapq.heappush(heap, (negative - scores[depth][0], depth + 1, len(grown), 0, -negative))
        grown.append((negative, depth, parent, rank))
    token = [int(anchor)] + [choices[depth - 1][rank] for _, depth, _, rank in grown[1:]]
    return (
        torch.tensor(token),
        torch.tensor([parent for _, _, parent, _ in grown]),
        torch.tensor([depth for _, depth, _, _ in grown]),
        torch.tensor([-negative for negative, _, _, _ in grown], dtype=torch.float64),
    )
