"""What the commands that take long share: whom they tell what happens, and when they stop."""

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Emit", "deadline_after", "is_past"]

Emit = Callable[[dict[str, Any]], None]


def deadline_after(minutes: float | None) -> float | None:
    """Seconds of the monotonic clock at which so many minutes from now are over; None where there is no limit."""
    return None if minutes is None else time.monotonic() + 60 * minutes


def is_past(deadline_s: float | None, ahead_s: float = 0.0) -> bool:
    """Whether a deadline is over, or will be in so many seconds."""
    return deadline_s is not None and time.monotonic() + ahead_s >= deadline_s
