"""Jobs through Ray.  Without an address a cluster is started on this host, for as long as the round is at work."""

import contextlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spt.errors import Missing, Unsupported

__all__ = ["RayCluster", "make"]


def make(argument: str) -> "RayCluster":
    """The executor; `argument` is the address of a cluster, or nothing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a round is told to anybody
    try:
        import ray
    except ImportError:
        raise Missing("the executor 'ray' needs Ray", "pip install 'specpilot[ray]'") from None
    return RayCluster(ray, argument)


class RayCluster:
    """A task a command.  Tasks end with the process that started them: the handles of another one are of the past."""

    def __init__(self, ray: Any, address: str) -> None:
        self.ray, self.address = ray, address
        self._tasks: dict[str, Any] = {}

    def open(self) -> None:
        """To be called in the main thread: what Ray starts on this host ends with the thread that started it."""
        words: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        words |= {"address": self.address} if self.address else {"include_dashboard": False}
        try:
            self.ray.init(**words)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise Unsupported(f"Ray is not there: {str(error).splitlines()[0]}", "`ray status` says what is") from None

    def submit(self, command: Sequence[str], folder: Path, devices: int) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        # A function of the standard library, so that no host needs more of ours than the files of the command.
        ask = {"num_gpus": devices, "num_cpus": 1, "max_retries": 0}
        task = self.ray.remote(subprocess.call).options(**ask).remote(list(command))
        handle = str(task.hex())
        self._tasks[handle] = task
        return handle

    def is_alive(self, handle: str) -> bool:
        task = self._tasks.get(handle)
        if task is None:
            return False
        ended, _ = self.ray.wait([task], timeout=0)
        return not ended

    def cancel(self, handle: str) -> None:
        task = self._tasks.get(handle)
        if task is not None:
            with contextlib.suppress(Exception):  # one that has ended is no error, whichever it raises for that
                self.ray.cancel(task, force=True)

    def close(self) -> None:
        if self.ray.is_initialized():
            self.ray.shutdown()
        self._tasks.clear()
