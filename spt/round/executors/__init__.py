"""Where a round's jobs run: an executor starts command lines on hosts that share this one's files.

Each is an optional extra; what it imports it imports when it is made.
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from spt.errors import Usage

__all__ = ["EXECUTORS", "Executor", "make_executor", "refuse_words"]

EXECUTORS = {"slurm": "spt.round.executors.slurm:make", "ray": "spt.round.executors.ray:make"}


class Executor(Protocol):
    """Starts commands elsewhere, between `open` and `close`.

    Handles are words that a later process of the same user understands as well.
    """

    def open(self) -> None:
        """Gets ready for commands; Unsupported where that is not possible."""

    def submit(self, command: Sequence[str], folder: Path, devices: int) -> str:
        """Starts a command, now or when `devices` GPUs are free (0: on a CPU); its handle.

        folder: for what the executor writes, such as the command's output.
        """

    def is_alive(self, handle: str) -> bool:
        """Whether the command waits or runs, as far as is known; False once it has ended, however it did."""

    def cancel(self, handle: str) -> None:
        """Ends the command, if it has not ended."""

    def close(self) -> None:
        """Gives up what this process holds of the executor."""


def make_executor(word: str) -> Executor:
    """The executor that the user's word names, NAME or NAME:WORDS; Usage or Missing where it is none."""
    name, _, argument = word.partition(":")
    if name not in EXECUTORS:
        raise Usage(f"no executor is called '{word}'", f"there are: {', '.join(EXECUTORS)}")
    module, _, function = EXECUTORS[name].partition(":")
    make: Callable[[str], Executor] = getattr(importlib.import_module(module), function)
    return make(argument)


def refuse_words(word: str, known: Sequence[str]) -> dict[str, str]:
    """The values in KEY=VALUE,...; Usage where a key is none of those that are known."""
    found = {}
    for part in filter(None, word.split(",")):
        key, mark, value = part.partition("=")
        if not mark or not value or key not in known:
            raise Usage(
                f"'{part}' is no word of this executor", f"there are: {', '.join(f'{name}=' for name in known)}"
            )
        found[key] = value
    return found
