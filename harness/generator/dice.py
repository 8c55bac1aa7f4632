"""Choices that every Python repeats: a counter hashed with a key, and whole numbers only.

The methods of `random.Random` may change between Python versions; a committed final may not.
"""

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["Dice"]

Item = TypeVar("Item")


class Dice:
    """A stream of choices named by a path, say `Dice("final", 7, "single", 12)`; equal paths make equal choices."""

    def __init__(self, *path: str | int) -> None:
        # JSON keeps ("a", "b") and ("a b",) apart, and 1 and "1".
        self._key = hashlib.sha256(json.dumps(path).encode()).digest()
        self._count = 0
        self._words: list[int] = []  # 64 bits each, of the digest that was made last

    def below(self, n: int) -> int:
        """A number from 0 to n - 1; the bias is below n / 2**64."""
        if not self._words:
            block = hashlib.blake2b(self._count.to_bytes(8, "little"), key=self._key).digest()
            self._words.extend(struct.unpack("<8Q", block))
            self._count += 1
        return self._words.pop() * n >> 64

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        """True so often."""
        return self.below(100) < percent

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """`count` of the items, none of them twice, in a random order."""
        if count > len(items):
            raise ValueError(f"{count} of {len(items)} items")
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """All items in a random order."""
        return self.sample(items, len(items))

    def deck(self, items: Sequence[Item]) -> Iterator[Item]:
        """The items without end: all of them, shuffled, then all of them again."""
        while True:
            yield from self.shuffled(items)

    def log_between(self, low: int, high: int) -> int:
        """A number from low to high, each doubling about as likely as the next."""
        doublings = (high // low).bit_length() - 1
        start = low << self.below(doublings + 1)
        return self.between(start, min(2 * start, high))
