"""The best ranks of a row of logits, with their log-probabilities."""

import torch
from torch import Tensor

from stock.ops import has_kernels, wide

__all__ = ["best_rank", "top_ranks"]


def top_ranks(logits: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """ids int64 and log-probabilities float32, both [n, ranks], of logits [n, vocabulary]; at most all ids.

    Order: logit descending, id ascending.  Log-probabilities are those of a full softmax.
    """
    if has_kernels(logits):
        from kernels.top_ranks import top_ranks as kernel

        ids, logprobs = kernel(logits, ranks)
        return ids.long(), logprobs
    scores, ranks = wide(logits), min(ranks, logits.shape[1])
    total = torch.logsumexp(scores, 1, keepdim=True)
    if ranks == 1:
        best, ids = scores.max(1, keepdim=True)  # the lowest id on ties
        return ids, (best - total).float()
    # topk orders ties at will, and BF16 logits tie often: all that reach the last rank are sorted by (row, score, id).
    floor = scores.topk(ranks, 1).values[:, -1:]
    row, token = (scores >= floor).nonzero(as_tuple=True)
    order = scores[row, token].sort(stable=True, descending=True).indices
    order = order[row[order].sort(stable=True).indices]
    counts = torch.bincount(row, minlength=len(scores))
    first = counts.cumsum(0) - counts
    ids = token[order[first[:, None] + torch.arange(ranks, device=token.device)]]
    return ids, (scores.gather(1, ids) - total).float()


def best_rank(logits: Tensor) -> Tensor:
    """The id of the best logit of each row, int64 [n]; the lowest on ties."""
    if has_kernels(logits):
        from kernels.top_ranks import top_ranks as kernel

        return kernel(logits, 1)[0][:, 0].long()
    return wide(logits).argmax(1)
