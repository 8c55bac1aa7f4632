"""The choice of a token with a certificate: kernels where the packed head is the kernel's, plain torch on a CPU."""

import torch
from torch import Tensor

from kernels.lm_head_bounds import COUNTED, Bounds, candidates, made_bounds
from kernels.w12 import Packed
from stock.noise import gumbel
from stock.ops import wide
from stock.ops.w12_gemm import Ready
from stock.sampling import Noise, Sampling

__all__ = ["COUNTED", "Bounds", "bounds_of", "may_be_chosen", "token_of"]


def bounds_of(weight: Ready) -> Bounds:
    """The bounds of a packed head."""
    if isinstance(weight, Packed):
        return made_bounds(weight)
    from kernels.w12_gemm import restore

    return made_bounds(restore(weight))


def token_of(
    x: Tensor, weight: Ready, bounds: Bounds, position: Tensor, sampling: Sampling, noise: Noise, counts: Tensor
) -> Tensor:
    """The token int64 [n] that the full product with a head of the kernel's gives for normed x [n, hidden] on a GPU."""
    from kernels.lm_head import lm_head

    rows = len(x)
    seed, temperature = noise.seed.expand(rows), noise.temperature.expand(rows)
    return lm_head(x, weight, bounds, position, seed, temperature, hot=not sampling.greedy, counts=counts)


def may_be_chosen(
    x: Tensor, weight: Packed, bounds: Bounds, logits: Tensor, position: Tensor, sampling: Sampling, noise: Noise
) -> Tensor:
    """Which ids may be what `choose` takes of logits [n, vocabulary], by the certificate alone: bool of that shape."""

    def scored(logits: Tensor) -> Tensor:
        scores = wide(logits)
        if sampling.greedy:
            return scores
        ids = torch.arange(logits.shape[1], device=logits.device)
        return scores / noise.temperature + gumbel(noise.seed, position[:, None], ids)

    return candidates(x, weight, bounds, logits, scored)
