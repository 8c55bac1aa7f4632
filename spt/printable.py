"""Text that cannot steer a terminal, for whatever is shown of what others wrote."""

import re

__all__ = ["printable"]

# Control characters of both sets, line breaks, marks that change the direction of text, bytes that were no text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as one line that cannot steer a terminal: what is not to be printed is shown as an escape."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
