"""Numbers and foreign text as a report writes them: one form each, so that a page, a table and a test agree."""

import datetime

__all__ = [
    "DASH",
    "count",
    "cut",
    "date",
    "dollars",
    "duration",
    "excess",
    "interval",
    "number",
    "ratio",
    "share",
    "tokens",
]

DASH = "-"
TEXT = 240  # characters of what others wrote
_PLAIN = 1e6


def number(value: float | None, digits: int = 2) -> str:
    """With so many digits after the point; in powers of ten where that would be long."""
    if value is None:
        return DASH
    return f"{value:.{digits}f}" if abs(value) < _PLAIN else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """A ratio: 1.230 is 23 % faster."""
    return number(value, 3)


def interval(low: float | None, high: float | None) -> str:
    """Both ends of an interval of ratios; a dash where neither is known."""
    return DASH if low is None and high is None else f"{ratio(low)} to {ratio(high)}"


def share(value: float | None) -> str:
    """A share as per cent."""
    return DASH if value is None else f"{100 * value:.2f} %"


def excess(bounds: tuple[float, float, float] | None) -> str:
    """A difference of shares with its bounds, in points."""
    if bounds is None:
        return DASH
    value, low, high = (100 * bound for bound in bounds)
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return DASH if value is None else f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"


tokens = count


def duration(seconds: float | None) -> str:
    """Seconds as people say them."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    hours = f"{minutes // 60:,} h " if minutes >= 60 else ""
    return f"{hours}{minutes % 60} min"


def dollars(value: float | None) -> str:
    return DASH if value is None else f"${value:,.2f}" if value < 1e12 else f"${value:.4g}"


def date(text: str) -> str:
    """A journal's time to the minute, in UTC; what is none stays as it is."""
    try:
        when = datetime.datetime.fromisoformat(text)
        when = when.astimezone(datetime.UTC) if when.tzinfo else when
    except (ValueError, OverflowError):
        return text
    return when.strftime("%Y-%m-%d %H:%M UTC" if when.tzinfo else "%Y-%m-%d %H:%M")


def cut(text: object, most: int = TEXT) -> str:
    """What others wrote, as one line of at most so many characters; how many more there are is said."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[:most]}… ({len(line) - most:,} more characters)"
