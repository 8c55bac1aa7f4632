"""Scores tokens that somebody else emitted: what this engine would have said at each position of the same prefix."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stock.graph import Phases
from stock.noise import gumbel
from stock.ops import wide
from stock.prefill import Prefill
from stock.sampling import Noise, Sampling, kept
from stock.system import System

__all__ = ["Scorer", "Scores"]

_HALVINGS = 40
# Of logits at once: scoring makes a dozen tensors of their size, of 8 bytes an element at the most.  On a GPU all rows
# of a pass, so that the host, which launches two dozen operations a chunk, stays ahead.
_CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 24}


@dataclass
class Scores:
    """For each scored position: argmax (the engine's own choice), margin, rank, logit, kept.

    margin: in units of logit/T + g (logits at T = 0), the smallest raise of the given token's own logit that makes it
    win, by score and by the cuts of the kept set; 0 where it wins or ties with a lower id.  rank: how many ids have a
    better logit (lower ids win ties).
    """

    argmax: list[int]
    margin: list[float]
    rank: list[int]
    logit: list[float]
    kept: list[bool]


class Scorer:
    """Scores with one cache, which it empties for each request."""

    @torch.inference_mode()
    def __init__(self, system: System) -> None:
        self.system = system
        self.cache = system.new_cache()
        phases = Phases(system.device, system.options["graphs"] and system.has_kernels)
        self.prefill = Prefill(system, self.cache, phases)
        self.prefill.capture(self.cache.reset)

    @torch.inference_mode()
    def score(self, ids: list[int], start: int, sampling: Sampling) -> Scores:
        """Scores ids[start:], start at least 1."""
        device = self.system.device
        token = torch.tensor(ids, device=device)
        noise = Noise.of(sampling, device)
        self.cache.reset()
        parts: list[tuple[Tensor, ...]] = []
        chosen = 1  # the index of the token that a pass's first row chooses: the one after its own
        for passed in self.prefill(token[:-1]):
            count = len(passed.position)
            first = max(0, start - chosen)
            if first < count:
                parts += self._score_pass(passed.hidden[first:], chosen + first, token, sampling, noise)
            chosen += count
        # One transfer for all: what is read after each pass, the device waits for.
        return Scores(*(torch.cat(column).tolist() for column in zip(*parts, strict=True)))

    def _score_pass(
        self, hidden: Tensor, first: int, token: Tensor, sampling: Sampling, noise: Noise
    ) -> list[tuple[Tensor, ...]]:
        """The scores of the tokens from index `first` on, one for each row of hidden [n, hidden]."""
        logits = self.system.product(hidden)
        at = torch.arange(first, first + len(hidden), device=token.device)
        rows = max(1, _CHUNK_ELEMENTS[logits.device.type] // logits.shape[1])
        chunks = zip(logits.split(rows), at.split(rows), token[first : first + len(hidden)].split(rows), strict=True)
        return [_score_rows(*chunk, sampling, noise) for chunk in chunks]


def _score_rows(
    logits: Tensor, position: Tensor, token: Tensor, sampling: Sampling, noise: Noise
) -> tuple[Tensor, ...]:
    """The fields of `Scores` for rows of logits [n, vocabulary]."""
    logits = wide(logits)
    ids, given = torch.arange(logits.shape[1], device=logits.device), token[:, None]
    own = logits.gather(1, given)
    rank = (logits > own).sum(1) + ((logits == own) & (ids < given)).sum(1)
    if sampling.greedy:
        choice = logits.argmax(1)
        margin = (logits.gather(1, choice[:, None]) - own)[:, 0].double()
        return (
            choice,
            margin.masked_fill(choice == token, 0.0),
            rank,
            own[:, 0],
            torch.ones_like(token, dtype=torch.bool),
        )
    keep = kept(logits, noise) if sampling.cuts else torch.ones_like(logits, dtype=torch.bool)
    gumbels = gumbel(noise.seed, position[:, None], ids[None])
    score = logits / noise.temperature + gumbels
    choice = score.masked_fill(~keep, float("-inf")).argmax(1)
    margin = (score.amax(1) - score.gather(1, given)[:, 0]).double()
    if sampling.cuts:
        lost = choice != token
        margin[lost] = _smallest_raise(logits[lost], gumbels[lost], token[lost], noise)
    return choice, margin.masked_fill(choice == token, 0.0), rank, own[:, 0], keep.gather(1, given)[:, 0]


def _smallest_raise(logits: Tensor, gumbels: Tensor, token: Tensor, noise: Noise) -> Tensor:
    """The least raise of each row's own logit/T that makes its token win under the cuts, float64 [n], by bisection.

    A raised token only ever moves up in the order, its mass grows, and so it stays kept while fewer others do: once
    it wins it goes on winning.  It wins at the latest when neither a logit nor a score is above its own.
    """
    logits, given = logits.double(), token[:, None]
    scaled = logits / noise.temperature
    own = scaled.gather(1, given)
    behind = ((each.amax(1, True) - each.gather(1, given))[:, 0] for each in (scaled, scaled + gumbels))
    high = torch.maximum(*behind)
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        raised = scaled.scatter(1, given, own + middle[:, None])
        keep = kept(raised * noise.temperature, noise)
        wins = (raised + gumbels).masked_fill(~keep, float("-inf")).argmax(1) == token
        low, high = torch.where(wins, low, middle), torch.where(wins, middle, high)
    return high
