"""The executor `ray[:ADDRESS]`: each job is a task on a Ray cluster, by default one of this machine alone."""

import importlib.util
import os
import subprocess
import sys
import threading
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
    """A Ray cluster; this process joins it when it submits first."""

    minutes = None

    def __init__(self, address: str) -> None:
        self.address, self._guard = address, threading.Lock()

    def check(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise Missing("the package ray is not installed", "pip install 'specpilot[ray]'")

    def submit(self, work: Work) -> Handle:
        ray = self._joined()
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

    def _joined(self) -> Any:
        with self._guard:
            os.environ.update(_QUIET)  # read when it is imported, and by what it starts
            import ray

            if not ray.is_initialized():
                own = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
                more = own if self.address == "local" else {}
                try:
                    ray.init(address=self.address, log_to_driver=False, logging_level="error", **more)
                except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
                    said = str(error).strip().splitlines() or [type(error).__name__]
                    raise Unsupported(
                        f"there is no Ray cluster at '{self.address}': {said[0]}",
                        "`ray status` says what there is; --executor ray runs one of its own",
                    ) from None
            return ray


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
