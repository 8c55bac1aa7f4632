"""Scores tokens that somebody else emitted: what this engine would have said at each position of the same prefix."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from stock.cache import Cache
from stock.noise import gumbel
from stock.ops import wide
from stock.prefill import run_chain
from stock.sampling import Noise, Sampling, kept
from stock.system import System

__all__ = ["Scorer", "Scores"]


@dataclass
class Scores:
    """For each scored position: argmax (the engine's own choice), margin, rank, logit, kept.

    margin: in units of logit/T + g (logits at T = 0), the smallest change that makes the given token win, by score or
    by the cut of the kept set; 0 where it wins.  rank: how many ids have a better logit (lower ids win ties).
    """

    argmax: list[int]
    margin: list[float]
    rank: list[int]
    logit: list[float]
    kept: list[bool]


class Scorer:
    """Scores with one cache, which it empties for each request."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.cache: Cache = system.new_cache()

    @torch.inference_mode()
    def score(self, ids: list[int], start: int, sampling: Sampling) -> Scores:
        """Scores ids[start:], start at least 1."""
        device = self.system.device
        token = torch.tensor(ids, device=device)
        noise = Noise.of(sampling, device)
        self.cache.reset()
        scores = Scores([], [], [], [], [])
        for passed in run_chain(self.system, token[:-1], self.cache):
            chosen = passed.position + 1  # a row chooses the token after its own
            wanted = chosen >= start
            if bool(wanted.any()):
                at = chosen[wanted]
                part = _score_rows(self.system.product(passed.hidden[wanted]), at, token[at], sampling, noise)
                for name in (each.name for each in fields(Scores)):
                    getattr(scores, name).extend(getattr(part, name))
        return scores


def _score_rows(logits: Tensor, position: Tensor, token: Tensor, sampling: Sampling, noise: Noise) -> Scores:
    logits = wide(logits)
    own = logits.gather(1, token[:, None])
    better = (logits > own) | ((logits == own) & (torch.arange(logits.shape[1], device=own.device) < token[:, None]))
    keep = kept(logits, noise) if sampling.cuts and not sampling.greedy else torch.ones_like(better)
    score = logits
    if not sampling.greedy:
        ids = torch.arange(logits.shape[1], device=logits.device)
        score = logits / noise.temperature + gumbel(noise.seed, position[:, None], ids[None])
    best, choice = score.masked_fill(~keep, float("-inf")).max(1)
    scale = 1.0 if sampling.greedy else noise.temperature
    admitted = logits.masked_fill(~keep, float("inf")).amin(1)
    admission = ((admitted - own[:, 0]) / scale).clamp(min=0)
    margin = torch.maximum((best - score.gather(1, token[:, None])[:, 0]).clamp(min=0), admission)
    margin = margin.masked_fill(choice == token, 0.0)
    return Scores(
        choice.tolist(),
        margin.tolist(),
        better.sum(1).tolist(),
        own[:, 0].tolist(),
        keep.gather(1, token[:, None])[:, 0].tolist(),
    )
