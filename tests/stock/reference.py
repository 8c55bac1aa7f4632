"""docs/protocol.md's sampling and scoring once more, in plain Python and NumPy float64, written from its text alone."""

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["Settings", "choose", "gumbel", "kept", "philox4x32", "wins_when_raised"]


@dataclass(frozen=True)
class Settings:
    """temperature, top_p, top_k and seed of a request."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


def philox4x32(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 on Python's integers."""
    low, high = key
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (
            second >> 32 ^ counter[1] ^ low,
            second & 0xFFFFFFFF,
            first >> 32 ^ counter[3] ^ high,
            first & 0xFFFFFFFF,
        )
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return counter


def gumbel(seed: int, position: int, token: int) -> np.float32:
    """The noise of one id at one position."""
    word = philox4x32((seed & 0xFFFFFFFF, seed >> 32), (position, token, 0, 0))[0]
    return np.float32(-math.log(-math.log(((word >> 8) + 0.5) * 2.0**-24)))


def kept(scaled: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """Ids that survive top-k, then top-p on the softmax of what top-k kept; scaled is logit/T, float64 [vocabulary]."""
    ids = set(range(len(scaled)))
    if top_k:
        smallest = sorted(scaled, reverse=True)[min(top_k, len(scaled)) - 1]
        ids = {each for each in ids if scaled[each] >= smallest}
    if top_p >= 1:
        return ids
    order = sorted(ids, key=lambda each: (-scaled[each], each))
    masses = np.exp(scaled[order] - scaled[order[0]])
    before = np.concatenate(([0.0], np.cumsum(masses)[:-1])) / masses.sum()
    return {each for each, mass in zip(order, before, strict=True) if mass < top_p}


def choose(logits: np.ndarray, position: int, settings: Settings) -> int:
    """The token of one row of logits [vocabulary], computed in the logits' own type."""
    if settings.temperature == 0:
        return int(np.argmax(logits))
    scaled = logits / logits.dtype.type(settings.temperature)
    allowed = kept(scaled.astype(np.float64), settings.top_k, settings.top_p)
    noise = [gumbel(settings.seed, position, token) for token in range(len(logits))]
    return max(allowed, key=lambda token: (scaled[token] + noise[token], -token))


def wins_when_raised(
    logits: np.ndarray, noise: np.ndarray, token: int, raised: float, temperature: float, top_k: int, top_p: float
) -> bool:
    """Whether the token is chosen when its own logit/T (at T = 0 its logit) is higher by `raised`."""
    scaled = logits / (temperature or 1.0)
    scaled[token] += raised
    if temperature == 0:
        return int(np.argmax(scaled)) == token
    allowed = kept(scaled, top_k, top_p)
    return max(allowed, key=lambda each: (scaled[each] + noise[each], -each)) == token
