"""A memory-bound target from a small one: widening by a power of two, and jitter.

A dense model keeps its function when its hidden vector is repeated k times: every matrix that reads it is tiled k
times and divided by k, and heads, KV heads and MLP units are repeated likewise.  The mean of squares, and so
RMSNorm, does not change.  For k a power of two the division is exact.
Jitter moves each copy of each weight by -1, 0 or +1 BF16 ulp, so that the copies are weights of their own and
nothing can be gained by undoing the tiling.
"""

import torch
from torch import Tensor

from stock.errors import EngineError

__all__ = ["check_widen", "jittered", "widened"]

_CHUNK_ELEMENTS = 1 << 24
_MOST = 1 << 16


def check_widen(factor: int) -> None:
    """EngineError `bad_model` unless the factor is a power of two that a machine could hold."""
    if not 1 <= factor <= _MOST or factor & (factor - 1):
        raise EngineError("bad_model", f"the widening factor must be a power of two up to {_MOST}, got {factor}")


def widened(weight: Tensor, factor: int, *, rows: bool, columns: bool) -> Tensor:
    """Repeats a vector's entries, or a matrix's [out, in] rows (`rows`) and columns, divided (`columns`)."""
    if factor == 1:
        return weight
    if weight.dim() == 1:
        return weight.repeat(factor) if rows else weight
    repeated = weight.repeat(factor if rows else 1, factor if columns else 1)
    return repeated / factor if columns else repeated


def jittered(weight: Tensor, seed: int, stream: int) -> Tensor:
    """BF16 weight with each entry moved by -1, 0 or +1 ulp; zeros stay, and nothing becomes zero or infinite.

    The move is a hash of (seed, stream, index): the same on every device.
    """
    bits = weight.bfloat16().contiguous().view(torch.int16).flatten().clone()
    for start in range(0, bits.numel(), _CHUNK_ELEMENTS):
        part = bits[start : start + _CHUNK_ELEMENTS]
        index = torch.arange(start, start + part.numel(), device=bits.device)
        moved = part + (_hash32(index, _hash32_int(seed, stream)) % 3 - 1).to(torch.int16)
        magnitude, moved_magnitude = part & 0x7FFF, moved & 0x7FFF
        keep = (magnitude == 0) | (moved_magnitude == 0) | (moved_magnitude >= 0x7F80) | (magnitude >= 0x7F80)
        part.copy_(torch.where(keep, part, moved))
    return bits.view(torch.bfloat16).view(weight.shape)


def _hash32(value: Tensor, key: int) -> Tensor:
    """The finaliser of MurmurHash3 over value * golden ratio + key, in int64 tensors of 32-bit numbers."""
    mask = 0xFFFFFFFF
    value = (value * 0x9E3779B1 + key) & mask
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & mask
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & mask
    return value ^ (value >> 16)


def _hash32_int(seed: int, stream: int) -> int:
    return int(_hash32(_hash32(torch.tensor([seed & 0xFFFFFFFF]), seed >> 32 & 0xFFFFFFFF), stream).item())
