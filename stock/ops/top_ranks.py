"""The best ranks of a row of logits, with their log-probabilities."""

import torch
from torch import Tensor

from stock.ops import has_kernels, wide

__all__ = ["best_rank", "top_ranks"]


def top_ranks(logits: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """ids int64 and log-probabilities float32, both [n, ranks], of logits [n, vocabulary].

    Order: logit descending, id ascending.  Log-probabilities are those of a full softmax.
    """
    if has_kernels(logits):
        from kernels.top_ranks import top_ranks as kernel

        ids, logprobs = kernel(logits, ranks)
        return ids.long(), logprobs
    scores = wide(logits)
    total = torch.logsumexp(scores, 1, keepdim=True)
    if ranks == 1:
        best, ids = scores.max(1, keepdim=True)  # the lowest id on ties
        return ids, (best - total).float()
    # topk orders ties at will; taking one more than asked shows whether a tie crosses the cut.
    best, ids = scores.topk(min(ranks + 1, scores.shape[1]), 1)
    if bool((best[:, 1:] == best[:, :-1]).any()):
        best, ids = scores.sort(stable=True, dim=1, descending=True)
    return ids[:, :ranks], (best[:, :ranks] - total).float()


def best_rank(logits: Tensor) -> Tensor:
    """The id of the best logit of each row, int64 [n]; the lowest on ties."""
    if has_kernels(logits):
        from kernels.top_ranks import top_ranks as kernel

        return kernel(logits, 1)[0][:, 0].long()
    return wide(logits).argmax(1)
