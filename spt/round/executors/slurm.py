"""Jobs through Slurm, by submitit.  `cluster=local` runs them on this host, to try it without Slurm."""

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spt.errors import Missing, Unsupported, Usage
from spt.round.executors import refuse_words

__all__ = ["Slurm", "make"]

# submitit's own, and those that it hands to sbatch; `time` is in minutes.
_SBATCH = ("account", "constraint", "partition", "qos", "exclude", "nodelist", "mem")
_KNOWN = ("cluster", "time", "cpus", *_SBATCH)
_TIME_MIN, _CPUS = 240, 8
_DEAD = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
_DEAD_TOO = ("REVOKED", "TIMEOUT")


def make(argument: str) -> "Slurm":
    """The executor; `argument` is KEY=VALUE,... of _KNOWN."""
    words = refuse_words(argument, _KNOWN)
    for name in ("time", "cpus"):
        if not words.get(name, "1").isdecimal() or words.get(name) == "0":
            raise Usage(f"'{name}={words[name]}' is no number of {'minutes' if name == 'time' else 'cores'}")
    if words.get("cluster", "slurm") not in ("slurm", "local"):
        raise Usage(f"'cluster={words['cluster']}' is none", "it is slurm or local")
    try:
        import submitit
    except ImportError:
        raise Missing("the executor 'slurm' needs submitit", "pip install 'specpilot[slurm]'") from None
    if words.get("cluster") != "local" and submitit.AutoExecutor.which() != "slurm":
        raise Unsupported("this host has no Slurm: `srun` is not there", "`slurm:cluster=local` tries it on this host")
    return Slurm(words)


class Slurm:
    """A job a command.  A handle is the job's id and the folder of its logs."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words
        self.local = words.get("cluster") == "local"
        self._jobs: dict[str, Any] = {}  # those of this process

    def open(self) -> None:
        """Slurm is there already."""

    def submit(self, command: Sequence[str], folder: Path, devices: int) -> str:
        import submitit
        from submitit.helpers import CommandFunction

        executor = submitit.AutoExecutor(folder=folder, cluster="local" if self.local else "slurm")
        asked: dict[str, Any] = {"name": folder.parent.name, "timeout_min": int(self.words.get("time", _TIME_MIN))}
        if devices:
            asked["gpus_per_node"] = devices
        if not self.local:
            asked["cpus_per_task"] = int(self.words.get("cpus", _CPUS))
            asked |= {f"slurm_{name}": self.words[name] for name in _SBATCH if name in self.words}
        executor.update_parameters(**asked)
        job = executor.submit(CommandFunction(list(command), verbose=False))
        handle = json.dumps({"id": job.job_id, "folder": str(folder)})
        self._jobs[handle] = job
        return handle

    def is_alive(self, handle: str) -> bool:
        if self.local:
            job = self._jobs.get(handle)
            return _runs(_pid(handle)) if job is None else job.state == "RUNNING"
        state = str(self._job(handle).get_info(mode="force").get("State", "UNKNOWN")).split(" ")[0]
        return state not in (*_DEAD, *_DEAD_TOO)

    def cancel(self, handle: str) -> None:
        if not self.local:
            self._job(handle).cancel(check=False)
        elif _runs(_pid(handle)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(handle), signal.SIGTERM)  # which submitit's own process hands on to the command

    def close(self) -> None:
        for job in self._jobs.values():
            process = getattr(job, "_process", None)
            if process is not None:
                process.poll()  # a child that has ended is to be taken note of

    def _job(self, handle: str) -> Any:
        from submitit import SlurmJob

        told = json.loads(handle)
        return self._jobs.get(handle) or SlurmJob(folder=told["folder"], job_id=told["id"])


def _pid(handle: str) -> int:
    return int(json.loads(handle)["id"])


def _runs(pid: int) -> bool:
    """Whether that process is submitit's, and not another that got its number, or one that nobody took note of."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return b"submitit" in words and state != "Z"
