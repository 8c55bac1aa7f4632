"""What can go wrong in the harness, by exit code (docs/records.md, words and numbers).

HarnessError
+-- Usage        2  the user's words or files are off
+-- Missing      4  a file or a package is not there
+-- Unsupported  5  this model, device or engine is not handled
+-- EngineError  1  the engine failed
    +-- Crashed       it ended, or closed its pipe
    +-- Hung          it went silent for too long
    +-- Violation     it broke the protocol
    +-- Refused       it answered `error`; the exit code is the one of the error's code
"""

__all__ = [
    "Crashed",
    "EngineError",
    "HarnessError",
    "Hung",
    "Missing",
    "Refused",
    "Unsupported",
    "Usage",
    "Violation",
    "plain",
]


def plain(text: str) -> str:
    """Somebody else's words, on one line and without what steers a terminal or turns the direction of writing."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class HarnessError(Exception):
    """Base of all: one line that quotes the user's own word, and perhaps a way out."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = plain(message)  # it may quote an engine
        self.hint = None if hint is None else plain(hint)  # it may quote a name with anything in it


class Usage(HarnessError):
    """A wrong argument, or a file that does not say what it must."""

    exit_code = 2


class Missing(HarnessError):
    """A file, a package or a program is not there."""

    exit_code = 4


class Unsupported(HarnessError):
    """A model, a device or an engine that the harness does not handle."""

    exit_code = 5


class EngineError(HarnessError):
    """The engine failed; the process is gone, except after `Refused`.  `cause` is the word of samples for it."""

    cause = "violation"


class Crashed(EngineError):
    """The process ended or closed its pipe; `tail` is the last of what it printed."""

    cause = "crash"

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail


class Hung(EngineError):
    """The process said nothing for longer than it may."""

    cause = "hang"


class Violation(EngineError):
    """A reply that docs/protocol.md does not allow."""


class Refused(EngineError):
    """The engine answered `error`: `code` is one of the closed list, `request` the id or None."""

    _EXIT_CODES = {  # noqa: RUF012 - a constant
        "bad_option": 2,
        "bad_request": 2,
        "too_long": 2,
        "bad_model": 4,
        "unsupported": 5,
        "no_device": 5,
        "out_of_memory": 5,
    }

    _HINTS = {  # noqa: RUF012 - a constant
        "bad_option": "'spt entry apply' adds the options of an entry to a system",
        "too_long": "ask for fewer tokens, or raise 'context' in the deployment",
        "no_device": "use 'device: cpu', or a 'python' whose torch finds the GPU",
        "out_of_memory": "lower 'context' in the deployment, or use a narrower 'dtype'",
    }

    def __init__(self, code: str, message: str, request: str | None) -> None:
        super().__init__(f"the engine refused ({code}): {message}", self._HINTS.get(code))
        self.code = code
        self.request = request
        self.exit_code = self._EXIT_CODES.get(code, 1)
