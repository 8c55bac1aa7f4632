"""The seam `schedule`: which requests the next pass drafts and verifies.

build(target, options, prepared) -> Schedule
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ["Schedule"]

Request = TypeVar("Request")


class Schedule(Protocol):
    def __call__(self, requests: Sequence[Request]) -> Sequence[Request]: ...
