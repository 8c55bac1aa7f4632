"""A template family: how a conversation of one sort opens, and how it goes on."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.generator.scene import Scene

__all__ = ["Family"]


@dataclass(frozen=True)
class Family:
    """`opening` writes a request that stands alone, `follow` one that builds on what was said.

    answer_tok: the longest answer to a single request.  A small model repeats itself where this sort of task goes on
    for longer, and what is looped counts for nothing.
    """

    name: str
    label: str  # as in "back to ..."
    opening: Callable[[Scene], str]
    follow: Callable[[Scene], str]
    answer_tok: int | None = None
