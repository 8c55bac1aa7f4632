"""The executor `slurm[:KEY=VALUE,...]`: each job is one of Slurm's, by submitit; `cluster=local` runs them here."""

import contextlib
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spt.errors import Missing, Unsupported, Usage
from spt.round.executors import Handle, State, Work, shell_command

__all__ = ["KEYS", "Slurm", "make"]

# What may be asked of Slurm: words of sbatch.  `time` is in minutes.
KEYS: Mapping[str, type[str] | type[int]] = {
    "partition": str,
    "account": str,
    "qos": str,
    "constraint": str,
    "nodelist": str,
    "exclude": str,
    "gres": str,
    "mem": str,
    "cpus_per_task": int,
    "time": int,
}
_CLUSTERS = ("slurm", "local")
_MINUTES = 240
_MARGIN = 2.0  # minutes before Slurm's end in which the harness ends by itself, between two units
_LEAVE_S = 5.0
_FRESH_S = 15.0  # how often Slurm's accounting is asked for one job
_OVER = ("COMPLETED", "FAILED", "TIMEOUT", "DEADLINE")  # of a job that was not taken away


def make(words: str) -> "Slurm":
    """The executor of these words; Usage names the one that is wrong."""
    wanted: dict[str, Any] = {}
    cluster = "slurm"
    for word in filter(None, words.split(",")):
        key, has_value, value = word.partition("=")
        if key == "cluster" and value in _CLUSTERS:
            cluster = value
        elif key not in KEYS or not has_value or not value:
            names = ", ".join([*KEYS, "cluster"])
            raise Usage(f"--executor: '{word}' is nothing that can be asked of Slurm", f"KEY=VALUE, of {names}")
        elif KEYS[key] is int and (not value.isdecimal() or not 0 < int(value) < 10**7):
            raise Usage(f"--executor: '{word}' is no number above 0", "`time` is in minutes")
        else:
            wanted[key] = KEYS[key](value)
    return Slurm(cluster, wanted)


class Slurm:
    """Slurm by submitit; wanted: words of sbatch by their names there."""

    def __init__(self, cluster: str, wanted: Mapping[str, Any]) -> None:
        self.cluster, self.wanted = cluster, dict(wanted)
        self._here: list[_Local] = []
        self.limit_minutes = int(self.wanted.pop("time", _MINUTES))

    @property
    def minutes(self) -> float:
        return max(self.limit_minutes / 2, self.limit_minutes - _MARGIN)

    def check(self) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise Missing("the package submitit is not installed", "pip install 'specpilot[slurm]'")
        for program in ("sbatch", "srun", "sacct", "scancel"):
            if self.cluster == "slurm" and shutil.which(program) is None:
                raise Missing(
                    f"there is no Slurm on this machine: '{program}' is not found",
                    "start the round where jobs are submitted; slurm:cluster=local tries it without Slurm",
                )

    def open(self) -> None:
        """Slurm is there already."""

    def submit(self, work: Work) -> Handle:
        import submitit

        executor = submitit.AutoExecutor(folder=work.folder, cluster=self.cluster)
        executor.update_parameters(name=work.name, timeout_min=self.limit_minutes)
        if "gres" not in self.wanted:
            executor.update_parameters(gpus_per_node=work.devices)
        executor.update_parameters(**{f"slurm_{key}": value for key, value in self.wanted.items()})
        command = shell_command(work)
        function = submitit.helpers.CommandFunction(command, verbose=False, cwd=work.folder)
        try:
            job = executor.submit(function)
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError, OSError) as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise Unsupported(f"Slurm did not take '{work.name}': {said[-1]}", "--executor asked for it") from None
        if self.cluster == "slurm":
            return _Queued(job)
        self._here.append(_Local(job, work.folder))
        return self._here[-1]

    def attach(self, number: str, folder: Path) -> Handle:
        import submitit

        if self.cluster == "local":
            return _Local(submitit.LocalJob(folder, number), folder)
        return _Queued(submitit.SlurmJob(folder, number))

    def close(self) -> None:
        """Waits for processes of this machine, which end by themselves once their job has ended or was cancelled."""
        until_s = time.monotonic() + _LEAVE_S
        while any(handle.state() == "running" for handle in self._here) and time.monotonic() < until_s:
            time.sleep(0.05)


class _Queued:
    """A job of Slurm's."""

    def __init__(self, job: Any) -> None:
        self._job, self._asked_s, self._state = job, 0.0, "UNKNOWN"

    @property
    def id(self) -> str:
        return str(self._job.job_id)

    def state(self) -> State:
        if self._job.paths.result_pickle.exists():
            return "ended"
        if time.monotonic() >= self._asked_s + _FRESH_S:
            self._state = self._job.watcher.get_state(self.id, mode="force").split(" ")[0].rstrip("+")
            self._asked_s = time.monotonic()
        if not self._job.watcher.is_done(self.id, mode="cache"):
            return "running"
        return "ended" if self._state in _OVER else "lost"

    def cancel(self) -> None:
        self._job.cancel(check=False)


class _Local:
    """A job that submitit runs on this machine, in a process that outlives the one that submitted it."""

    def __init__(self, job: Any, folder: Path) -> None:
        self._job, self._folder = job, folder

    @property
    def id(self) -> str:
        return str(self._job.job_id)

    def state(self) -> State:
        if self._is_there():
            return "running"
        return "ended" if self._job.paths.result_pickle.exists() else "lost"

    def cancel(self) -> None:
        if self._is_there():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.id), signal.SIGINT)  # ends what it started as well

    def _is_there(self) -> bool:
        self._job.get_info()  # a child of ours is waited for
        try:
            words = Path(f"/proc/{self.id}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return os.fsencode(self._folder) in words
