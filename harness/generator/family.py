"""A template family: how a conversation of one sort opens, and how it goes on."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.generator.scene import Scene

__all__ = ["Family"]


@dataclass(frozen=True)
class Family:
    """`opening` writes a request that stands alone, `follow` one that builds on what was said."""

    name: str
    label: str  # as in "back to ..."
    opening: Callable[[Scene], str]
    follow: Callable[[Scene], str]
