"""Executors: what brings a round's jobs onto other hosts.  The bench knows them by this interface alone.

An executor gets a command and no more: nothing of ours is pickled, and what comes back is files that the hosts share.
"""

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from spt.errors import Usage
from spt.job import PASSED_ON
from spt.share import shipped_root

__all__ = ["ERRORS", "EXECUTORS", "Executor", "Handle", "State", "Work", "make_executor", "shell_command"]

State = Literal["running", "ended", "lost"]

# name: "module:function" with (argument after the colon of the user's word) -> Executor
EXECUTORS = {
    "slurm": "spt.round.executors.slurm:make",
    "ray": "spt.round.executors.ray:make",
}
ERRORS = "errors.log"  # in a work's folder: what its command said on standard error
_OF_HOST = ("CUDA_VISIBLE_DEVICES", "TMPDIR")  # which GPUs a job has, and its own passing files, says the host


@dataclass(frozen=True)
class Work:
    """A command for some host: its words, the folder for what the executor writes, and how many GPUs it needs."""

    name: str
    command: Sequence[str]
    folder: Path
    devices: int


class Handle(Protocol):
    """A command that an executor was given.

    id: by which a later process finds it, or None where it ends with the process that submitted it.
    """

    @property
    def id(self) -> str | None: ...

    def state(self) -> State:
        """`running`, also while it waits for a host; `ended` by itself, whatever its status; or `lost`."""
        ...

    def cancel(self) -> None:
        """Ends it, wherever it is; nothing where it has ended."""
        ...


class Executor(Protocol):
    """Where commands go.  minutes: after how many a command is ended by force, or None."""

    @property
    def minutes(self) -> float | None: ...

    def check(self) -> None:
        """Missing where this machine lacks what it needs."""
        ...

    def open(self) -> None:
        """Gets ready for work, in the main thread of its process; Unsupported where there is nothing to join."""
        ...

    def submit(self, work: Work) -> Handle:
        """Unsupported where it takes no work."""
        ...

    def attach(self, number: str, folder: Path) -> Handle | None:
        """The handle of what another process submitted, by its id and folder; None where it ended with that."""
        ...

    def close(self) -> None:
        """Gives back what this process holds of it."""
        ...


def make_executor(word: str) -> Executor:
    """The executor that a user's word names, `NAME[:WORDS]`; Usage where it names none."""
    name, _, words = word.partition(":")
    if name not in EXECUTORS:
        raise Usage(f"there is no executor '{name}'", f"there are: {', '.join(EXECUTORS)}")
    module, _, function = EXECUTORS[name].partition(":")
    made: Executor = getattr(importlib.import_module(module), function)(words)
    return made


def shell_command(work: Work) -> list[str]:
    """The work's command as one that knows of the outside what the harness may, and whose errors go into its folder."""
    kept = " ".join(f'${{{name}+"{name}=${name}"}}' for name in _OF_HOST)
    outside = {name: os.environ[name] for name in PASSED_ON if name in os.environ and name not in _OF_HOST}
    told = {**outside, "PYTHONPATH": str(shipped_root()), "LC_ALL": "C.UTF-8"}
    given = [f"{name}={value}" for name, value in told.items()]
    return ["/bin/sh", "-c", f'exec env -i {kept} "$@" 2>>"$0"', str(work.folder / ERRORS), *given, *work.command]
