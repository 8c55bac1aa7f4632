"""Sampling settings, and the choice of a token from a row of logits (docs/protocol.md, sampling noise)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stock.errors import EngineError
from stock.noise import gumbel, seed_tensor
from stock.ops import has_kernels, wide
from stock.ops.sample import sample
from stock.ops.top_ranks import best_rank

__all__ = ["Noise", "Sampling", "choose", "kept"]

# The largest noise there is: -log(-log(u)) at the largest u, 1 - 2^-25.
_NOISE_CEILING = 17.33
_PROBES = 64
_MOST_IDS = 1 << 31  # beyond any vocabulary, and still an int64


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_p 1 and top_k 0 keep all; seed is a uint64."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Sampling":
        """From a request's `sampling`; EngineError `bad_request` where a value is out of range."""
        temperature, top_p, top_k, seed = (value[name] for name in ("temperature", "top_p", "top_k", "seed"))
        if temperature != 0 and not 1e-5 <= temperature <= 1e5:
            raise EngineError("bad_request", f"temperature is {temperature}, neither 0 nor in 1e-5..1e5")
        if not 0 < top_p <= 1:
            raise EngineError("bad_request", f"top_p is {top_p}, not in (0, 1]")
        if top_k < 0 or not 0 <= seed < 1 << 64:
            raise EngineError("bad_request", "top_k is at least 0, and the seed a uint64")
        return cls(float(temperature), float(top_p), min(top_k, _MOST_IDS), seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether tokens are ever left out."""
        return self.top_p < 1 or self.top_k > 0


@dataclass
class Noise:
    """A request's settings on the device, so that captured passes read them anew.

    seed: int64 [1], the bits of the uint64.  temperature: float32 [1].  top_p: float64 [1].  top_k: int64 [1].
    """

    seed: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor

    @classmethod
    def of(cls, sampling: Sampling, device: torch.device) -> "Noise":
        return cls(
            seed_tensor([sampling.seed], device),
            torch.tensor([sampling.temperature], device=device),
            torch.tensor([sampling.top_p], dtype=torch.float64, device=device),
            torch.tensor([sampling.top_k], device=device),
        )

    def set(self, sampling: Sampling) -> None:
        """Takes over another request's settings, in place."""
        other = Noise.of(sampling, self.seed.device)
        for name in ("seed", "temperature", "top_p", "top_k"):
            getattr(self, name).copy_(getattr(other, name))


def choose(logits: Tensor, position: Tensor, sampling: Sampling, noise: Noise) -> Tensor:
    """The token int64 [n] that each row of logits [n, vocabulary] gives at its absolute position int64 [n]."""
    if sampling.greedy:
        return best_rank(logits)
    scores = wide(logits)
    if has_kernels(logits):
        if sampling.cuts:
            scores = scores.masked_fill(~kept(scores, noise), float("-inf"))
        return sample(scores, position, noise.seed, noise.temperature)
    rows = zip(scores.split(1), position.split(1), strict=True)
    return torch.cat([_choose_row(row, at, sampling, noise) for row, at in rows])


def kept(logits: Tensor, noise: Noise) -> Tensor:
    """Which ids survive top-k and top-p, bool [n, vocabulary], for float logits [n, vocabulary]."""
    order = logits.sort(stable=True, dim=1, descending=True)
    scaled = order.values / noise.temperature
    vocabulary = logits.shape[1]
    k = torch.where(noise.top_k > 0, noise.top_k, vocabulary).clamp(max=vocabulary)
    smallest = scaled.gather(1, (k - 1).expand(len(logits), 1))
    scaled = scaled.masked_fill(scaled < smallest, float("-inf"))
    probability = scaled.double().softmax(1)
    before = F.pad(probability.cumsum(1)[:, :-1], (1, 0))
    keep = (scaled > float("-inf")) & ((before < noise.top_p) | (noise.top_p >= 1))
    return torch.zeros_like(keep).scatter_(1, order.indices, keep)


def _choose_row(logits: Tensor, position: Tensor, sampling: Sampling, noise: Noise) -> Tensor:
    """The token int64 [1] of logits [1, vocabulary], by itself, so that its sums do not depend on the number of rows.

    Noise is bounded, so an id further than its ceiling below the best of a few probes is never drawn.  For a CPU.
    """
    if sampling.cuts:
        logits = logits.masked_fill(~kept(logits, noise), float("-inf"))
    scaled = (logits / noise.temperature)[0]

    def score(ids: Tensor) -> Tensor:
        return scaled[ids] + gumbel(noise.seed, position, ids)

    floor = score(scaled.topk(min(_PROBES, len(scaled))).indices).max()
    ids = (scaled + _NOISE_CEILING >= floor).nonzero()[:, 0]  # ascending, so that the lowest id wins ties
    return ids[score(ids).argmax(keepdim=True)]
