"""The sampling noise that all parts share, random access by (seed, position, token id).

Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), key = the request
seed, counter = (absolute position, token id, 0, 0).  docs/protocol.md fixes the mapping to Gumbel noise.
"""

import torch
from torch import Tensor

__all__ = ["gumbel", "philox_word"]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _signed64(value: int) -> int:
    """The int64 with the bits of a uint64, since torch has no full uint64 arithmetic."""
    return value - (1 << 64) if value >= 1 << 63 else value


def seed_tensor(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """uint64 seeds as int64 [n] of the same bits."""
    return torch.tensor([_signed64(seed) for seed in seeds], dtype=torch.int64, device=device)


def philox_word(seed: Tensor, position: Tensor, token: Tensor) -> Tensor:
    """Word 0 of Philox4x32-10 as int64 in [0, 2^32).

    seed, position, token: int64 tensors that broadcast together; the seed holds the bits of a uint64.
    """
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    seed, position, token = torch.broadcast_tensors(seed, position, token)
    word0, word1 = position & _MASK, token & _MASK
    word2 = word3 = torch.zeros_like(word0)
    for _ in range(_ROUNDS):
        # An int64 product may wrap, but its 64 bits are those of the uint64 product.
        product0, product2 = word0 * _MULTIPLIERS[0], word2 * _MULTIPLIERS[1]
        word0 = ((product2 >> 32) & _MASK) ^ word1 ^ key0
        word2 = ((product0 >> 32) & _MASK) ^ word3 ^ key1
        word1, word3 = product2 & _MASK, product0 & _MASK
        key0, key1 = (key0 + _WEYL[0]) & _MASK, (key1 + _WEYL[1]) & _MASK
    return word0


def gumbel(seed: Tensor, position: Tensor, token: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, for int64 tensors that broadcast together.

    Computed in float64 and rounded once, so that CPU and GPU agree but for the rarest rounding.
    """
    uniform = ((philox_word(seed, position, token) >> 8).double() + 0.5) * 2.0**-24
    return (-torch.log(-torch.log(uniform))).float()
