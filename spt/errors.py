"""What can go wrong, by exit code (docs/records.md, words and numbers).

SptError
+-- Differs      1  the answer is no
+-- Usage        2  the user's words or files are off
+-- Conflict     3  entries do not compose
+-- Missing      4  a requirement is not there
+-- Unsupported  5  this repository or device cannot do it

A message says what was wrong with the user's own word in quotes; the hint is the way out.  Neither ever holds
a command that destroys something.
"""

__all__ = ["Conflict", "Differs", "Missing", "SptError", "Unsupported", "Usage"]


class SptError(Exception):
    """Base of all errors that a user can cause or mend."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Differs(SptError):
    """A comparison came out different, or a candidate was rejected."""

    exit_code = 1


class Usage(SptError):
    """A wrong argument, or a file that does not say what it must."""

    exit_code = 2


class Conflict(SptError):
    """Entries, or an entry and its stock, do not compose."""

    exit_code = 3


class Missing(SptError):
    """An entry, a dependency, a file, history or a program is not there."""

    exit_code = 4


class Unsupported(SptError):
    """A repository format, a device or a platform that this tool does not handle."""

    exit_code = 5
