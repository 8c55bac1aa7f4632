"""Rounds in a row: which round began where another ended, and what they gained together.

A row begins at the first round's start; where that is stock, its gains are over stock and can stand beside a sealed
final's.  Rounds that ran another way (without the cost model, with one agent) are rows of their own, so that ways can
be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spt.report.story import Figure, Story

__all__ = ["PUBLISHED", "Point", "References", "Row", "rows"]

References: TypeAlias = Sequence[tuple[float, str]]

# The published ablation: three rounds of one deployment, over the start.
PUBLISHED: References = (
    (1.34, "published: 1.34 (no cost model, one agent)"),
    (2.13, "published: 2.13 (whole loop)"),
)


@dataclass(frozen=True)
class Point:
    """One round in its row.

    x: its place, from 1.  total: the product of the row's development gains so far over the row's start, or None once
    one is not known; over_stock: the same where the row began at stock.  steps: (place, product) of each promotion.
    """

    round: str
    x: int
    total: float | None
    over_stock: float | None
    steps: tuple[tuple[float, float], ...]
    sealed: Figure | None
    promoted: int  # of all rounds so far
    word: str  # what a product is called


@dataclass(frozen=True)
class Row:
    """Rounds in a row, of one deployment and run in one way."""

    name: str
    deployment: str
    way: str
    stories: tuple[Story, ...]
    points: tuple[Point, ...]

    @property
    def tried(self) -> int:
        return sum(story.ideas for story in self.stories)

    @property
    def promoted(self) -> int:
        return sum(story.count["promoted"] for story in self.stories)

    @property
    def sealed(self) -> Figure | None:
        """What the newest final of the row says against stock."""
        return next((point.sealed for point in reversed(self.points) if point.sealed is not None), None)

    def cost(self, name: str) -> float:
        """Seconds, tokens or dollars of all rounds together."""
        return float(sum(getattr(story.total, name) for story in self.stories if story.total is not None))


def rows(stories: Sequence[Story]) -> list[Row]:
    """The rounds in rows, in the order in which they began."""
    chains: list[list[Story]] = []
    for story in sorted(stories, key=lambda each: (each.begun, each.round)):
        before = next((chain for chain in chains if _follows(chain[-1], story)), None)
        if before is None:
            chains.append([story])
        else:
            before.append(story)
    return [_row(chain) for chain in chains]


def _follows(before: Story, after: Story) -> bool:
    if (before.digest, before.deployment, before.way) != (after.digest, after.deployment, after.way):
        return False
    return before.best is not None and before.best == after.start


def _row(chain: list[Story]) -> Row:
    first = chain[0]
    from_stock = first.start is not None and first.start.tree == first.stock and not first.start.options
    points: list[Point] = []
    total: float | None = 1.0
    promoted = 0
    for x, story in enumerate(chain, 1):
        steps: list[tuple[float, float]] = []
        total = None if story.path is None else total
        if total is not None:
            for number, each in enumerate(story.path or (), 1):
                total *= each.figure.value
                steps.append((x - 1 + number / len(story.path or ()), total))
                promoted += 1
            steps = steps or [(float(x), total)]
        sealed = story.final.stock if story.final else None
        points.append(
            Point(story.round, x, total, total if from_stock else None, tuple(steps), sealed, promoted, story.raw)
        )
    name = first.round if len(chain) == 1 else f"{first.round} to {chain[-1].round}"
    return Row(name, first.deployment, first.way, tuple(chain), tuple(points))
