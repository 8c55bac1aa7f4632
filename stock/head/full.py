"""All logits, then the choice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stock.head import Chosen, Head, MakeHead, Product, Wanted
from stock.ops import wide
from stock.sampling import Noise, Sampling, choose
from stock.target import Target

__all__ = ["build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> MakeHead:
    """The full head."""

    def make(product: Product) -> Head:
        def head(hidden: Tensor, position: Tensor, sampling: Sampling, noise: Noise, wanted: Wanted) -> Chosen:
            logits = product(hidden)
            token = choose(logits, position, sampling, noise)
            logprob = _logprob(logits, token) if wanted.logprobs else None
            return Chosen(token, logprob, logits if wanted.logits else None)

        return head

    return make


def _logprob(logits: Tensor, token: Tensor) -> Tensor:
    """Row by row: the sum of a row must not depend on the number of rows."""
    scores = wide(logits)
    total = torch.cat([row.logsumexp(1) for row in scores.split(1)])
    return (scores.gather(1, token[:, None])[:, 0] - total).float()
