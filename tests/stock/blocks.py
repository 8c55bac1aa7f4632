"""Quantised blocks of GGUF, packed from whole numbers, with the values that they stand for.

The formats are packed here and unpacked by the engine, so that a mistake in either direction shows.
"""

from collections.abc import Callable

import numpy as np

__all__ = ["BLOCKS", "packed"]


def packed(kind: str, rows: int, columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random weights: bytes uint8 [rows, bytes] of a type, and values float32 [rows, columns]."""
    random = np.random.default_rng(seed)
    size, make = BLOCKS[kind]
    data, values = zip(*(make(random) for _ in range(rows * columns // size)), strict=True)
    return np.stack(data).reshape(rows, -1), np.stack(values).astype(np.float32).reshape(rows, columns)


def _half(value: float) -> tuple[np.ndarray, np.float32]:
    """The bytes of a float16, and what it holds."""
    half = np.float16(value)
    return np.frombuffer(half.tobytes(), np.uint8), np.float32(half)


def _scale(random: np.random.Generator, size: float) -> tuple[np.ndarray, np.float32]:
    return _half(size * random.uniform(0.5, 1))


def _nibbles(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (low | high << 4).astype(np.uint8)


def _q8_0(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    raw, scale = _scale(random, 1 / 512)
    quants = random.integers(-127, 128, 32)
    return np.concatenate((raw, quants.astype(np.int8).view(np.uint8))), scale * quants


def _q4_0(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The low nibbles are the first half of a block."""
    raw, scale = _scale(random, 1 / 64)
    quants = random.integers(0, 16, 32)
    return np.concatenate((raw, _nibbles(quants[:16], quants[16:]))), scale * (quants - 8)


def _q4_1(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    (raw, scale), (raw_low, low) = _scale(random, 1 / 64), _half(-random.uniform(0, 0.2))
    quants = random.integers(0, 16, 32)
    return np.concatenate((raw, raw_low, _nibbles(quants[:16], quants[16:]))), scale * quants + low


def _q4_k(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Eight groups of 32, each with a 6-bit scale and a 6-bit minimum; two groups share 32 bytes of nibbles."""
    (raw, d), (raw_low, d_low) = _scale(random, 1 / 4096), _scale(random, 1 / 1024)
    quants = random.integers(0, 16, (8, 32))
    scales, lows = random.integers(0, 64, 8), random.integers(0, 64, 8)
    six = np.zeros(12, np.uint8)
    six[0:4] = scales[:4] | (scales[4:] >> 4) << 6
    six[4:8] = lows[:4] | (lows[4:] >> 4) << 6
    six[8:12] = (scales[4:] & 15) | (lows[4:] & 15) << 4
    nibbles = _nibbles(quants[0::2], quants[1::2])
    values = (d * scales.astype(np.float32))[:, None] * quants - (d_low * lows.astype(np.float32))[:, None]
    return np.concatenate((raw, raw_low, six, nibbles.ravel())), values.ravel()


def _q6_k(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sixteen groups of 16 with int8 scales; in each half, the upper two bits of four runs of 32 share 32 bytes."""
    raw, d = _scale(random, 1 / 16384)
    quants = random.integers(0, 64, (2, 4, 32))  # [half, run, place]
    scales = random.integers(-64, 64, 16)
    low, high = quants & 15, quants >> 4
    lows = np.concatenate([_nibbles(part[:2].ravel(), part[2:].ravel()) for part in low])
    highs = np.concatenate([part[0] | part[1] << 2 | part[2] << 4 | part[3] << 6 for part in high]).astype(np.uint8)
    values = (d * scales.astype(np.float32))[:, None] * (quants.reshape(16, 16) - 32)
    return np.concatenate((lows, highs, scales.astype(np.int8).view(np.uint8), raw)), values.ravel()


BLOCKS: dict[str, tuple[int, Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]]] = {
    "Q8_0": (32, _q8_0),
    "Q4_0": (32, _q4_0),
    "Q4_1": (32, _q4_1),
    "Q4_K": (256, _q4_k),
    "Q6_K": (256, _q6_k),
}
