"""One request after the other, in the order in which they came."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stock.schedule import Request, Schedule
from stock.target import Target

__all__ = ["build"]


def build(target: Target, options: Mapping[str, Any], prepared: Path | None) -> Schedule:
    """First come, first served, alone."""

    def schedule(requests: Sequence[Request]) -> Sequence[Request]:
        return requests[:1]

    return schedule
