"""The executor `ray[:ADDRESS]`: each job is a task on a Ray cluster, by default one of this machine alone."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from spt.errors import Missing, Unsupported
from spt.round.executors import Handle, State, Work, shell_command

__all__ = ["Ray", "make"]

_STORE_BYTES = 100 << 20  # what tasks return is what the harness said, some kB
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}


def make(words: str) -> "Ray":
    """The executor of these words: an address, `auto` for the cluster that this machine is of, or nothing."""
    return Ray(words or "local")


class Ray:
    """A Ray cluster, of which this process is a part between `open` and `close`."""

    minutes = None

    def __init__(self, address: str) -> None:
        self.address = address

    def check(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise Missing("the package ray is not installed", "pip install 'specpilot[ray]'")

    def open(self) -> None:
        """Joins the cluster.  What Ray starts on this machine ends with the thread that this is called in."""
        os.environ.update(_QUIET)  # read when it is imported, and by what it starts
        import ray

        own = {"include_dashboard": False, "object_store_memory": _STORE_BYTES} if self.address == "local" else {}
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error", **own)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise Unsupported(
                f"there is no Ray cluster at '{self.address}': {said[0]}",
                "`ray status` says what there is; --executor ray runs one of its own",
            ) from None

    def submit(self, work: Work) -> Handle:
        import ray

        # A function of the standard library: workers need nothing of ours to load it.
        task = ray.remote(num_cpus=1, num_gpus=work.devices, max_retries=0)(subprocess.check_output)
        command = shell_command(work)
        return _Task(ray, task.options(name=work.name).remote(command, stdin=subprocess.DEVNULL))

    def attach(self, number: str, folder: Path) -> Handle | None:
        return None

    def close(self) -> None:
        """Leaves the cluster; one of this machine alone ends with that."""
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            ray.shutdown()


class _Task:
    """A task of Ray's."""

    id = None

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def state(self) -> State:
        try:
            ready, _ = self._ray.wait([self._reference], timeout=0)
            if not ready:
                return "running"
            self._ray.get(self._reference)
        except self._ray.exceptions.TaskCancelledError:
            return "lost"
        except self._ray.exceptions.RayTaskError:
            return "ended"  # with a status that is not 0
        except self._ray.exceptions.RayError:
            return "lost"
        return "ended"

    def cancel(self) -> None:
        self._ray.cancel(self._reference, force=True)
