"""Judging through an executor: the jobs of a round run on other hosts, which see the same files.

They are the very jobs that `spt round pack` would carry; here the bench submits them, and waits.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spt.errors import Unsupported
from spt.formats import read_json
from spt.pack import ENDED
from spt.round.executors import Executor
from spt.round.far import BATCH, FarBench
from spt.share import shipped_root

__all__ = ["RemoteBench"]

EVENTS, _SUBMITTED, _LOGS = "events.jsonl", "submitted.json", "executor"
_MOST_LOST = 3  # times in a row that a job ends without a word and without having measured anything
_POLL_S, _SLOW_S, _SLOWER = 0.2, 5.0, 1.5
_GRACE_S = 10.0  # until what a job wrote on another host is seen here


@dataclass(frozen=True)
class RemoteBench(FarBench):
    """A bench whose jobs an executor runs.  Several of one process may want the same job: one submits it."""

    executor: Executor = field(kw_only=True)

    def _check(self, name: str) -> None:
        if not (self.jobs / name / ENDED).is_file():
            for other in self._read_by(name):
                self._check(other)
            with self.turns.held([f"job {name}"], self.budget.check), self.budget.device():
                self._run(_Job(self.jobs / name, self.executor))
        super()._check(name)

    def _read_by(self, name: str) -> list[str]:
        """The jobs whose samples a job reads: they are to have ended before it begins."""
        batch = read_json((self.jobs / BATCH).read_bytes(), str(self.jobs / BATCH))
        words = next(job["words"] for job in batch["jobs"] if job["name"] == name)
        return [word[1:].partition("/")[0] for word in words if word.startswith("@")]

    def _run(self, job: "_Job") -> None:
        """Waits until a job has ended; one that is stopped waiting for is cancelled, and goes on from there later."""
        command, pause_s = self._command(job.folder.name), _POLL_S
        devices = len(self.devices) or 1 if self.device.startswith("cuda") else 0
        try:
            while not job.has_ended():
                self.budget.check()
                job.keep_alive(command, devices)
                pause_s = _POLL_S if self._tell(job) else min(_SLOW_S, _SLOWER * pause_s)
                time.sleep(pause_s)
        except BaseException:
            job.cancel()
            raise
        self._tell(job)

    def _tell(self, job: "_Job") -> bool:
        """Passes on what the harness has said of a job; whether there was anything."""
        said = job.said()
        for event in said:
            self._emit(event)
        return bool(said)

    def _command(self, name: str) -> list[str]:
        """The command line of one job: the same on every host, with nothing in its environment but where ours lies."""
        python = self.deployment.interpreter()
        words = ["env", f"PYTHONPATH={shipped_root()}", python, "-P", "-s", "-m", "harness", "batch", str(self.jobs)]
        return [*words, "--only", name]


class _Job:
    """One job's folder and what runs in it; `submitted.json` says so to the next process."""

    def __init__(self, folder: Path, executor: Executor) -> None:
        self.folder, self.executor = folder, executor
        self._file, self._events = folder / _SUBMITTED, folder / "out" / EVENTS
        self._place = self._events.stat().st_size if self._events.is_file() else 0  # in it
        self._gone_s: float | None = None

    def has_ended(self) -> bool:
        return (self.folder / ENDED).is_file()

    def keep_alive(self, command: list[str], devices: int) -> None:
        """Submits the job unless it waits or runs; Unsupported where it was lost too often."""
        told = self._told()
        if told is not None and self.executor.is_alive(told["handle"]):
            self._gone_s = None
            return
        if told is not None and not self._is_gone():
            return
        measured = self._measured()
        lost = 0 if told is None or measured > told["measured"] else told["lost"] + 1
        if lost > _MOST_LOST:
            self._file.unlink()
            logs = self.folder / _LOGS
            raise Unsupported(f"the job '{self.folder.name}' ended {lost} times without a word", f"its logs: '{logs}'")
        handle = self.executor.submit(command, self.folder / _LOGS, devices)
        part = self._file.with_name(f".{_SUBMITTED}")
        part.write_text(json.dumps({"handle": handle, "lost": lost, "measured": measured}))
        part.replace(self._file)
        self._gone_s = None

    def _is_gone(self) -> bool:
        """Whether it has been so for a while: a file of another host comes late."""
        now_s = time.monotonic()
        self._gone_s = now_s if self._gone_s is None else self._gone_s
        return now_s - self._gone_s > _GRACE_S

    def cancel(self) -> None:
        told = self._told()
        if told is not None:
            self.executor.cancel(told["handle"])

    def _told(self) -> dict[str, Any] | None:
        return dict(read_json(self._file.read_bytes(), str(self._file))) if self._file.is_file() else None

    def _measured(self) -> int:
        """Bytes of what was measured, by which a job that goes on is told from one that fails."""
        files = (self.folder / "out").glob("*.jsonl")
        return sum(file.stat().st_size for file in files if file.name != EVENTS)

    def said(self) -> list[dict[str, Any]]:
        """What the harness said since this was asked last."""
        if not self._events.is_file():
            return []
        with self._events.open("rb") as file:
            file.seek(self._place)
            lines = [line for line in file if line.endswith(b"\n")]
        self._place += sum(map(len, lines))
        return [json.loads(line) for line in lines]
