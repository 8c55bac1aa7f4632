"""The best ranks of a row of logits, with their log-probabilities."""

import torch
from torch import Tensor

__all__ = ["top_ranks"]


def top_ranks(logits: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """ids int64 and log-probabilities float32, both [n, ranks], of logits [n, vocabulary].

    Order: logit descending, id ascending.  Log-probabilities are those of a full softmax.
    """
    if logits.is_cuda:
        from kernels.top_ranks import top_ranks as kernel

        ids, logprobs = kernel(logits, ranks)
        return ids.long(), logprobs
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = torch.logsumexp(wide, 1, keepdim=True)
    if ranks == 1:
        best, ids = wide.max(1, keepdim=True)  # the lowest id on ties
        return ids, (best - total).float()
    # topk orders ties at will; taking one more than asked shows whether a tie crosses the cut.
    best, ids = wide.topk(min(ranks + 1, wide.shape[1]), 1)
    if bool((best[:, 1:] == best[:, :-1]).any()):
        best, ids = wide.sort(stable=True, dim=1, descending=True)
    return ids[:, :ranks], (best[:, :ranks] - total).float()
