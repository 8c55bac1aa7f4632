"""Judging on hosts that share this repository's files: each question is a job that an executor brings there.

The jobs are those of `FarBench`, in the same folders; an executor runs `python -m harness batch` on one at a time, and
verdicts are made here, from samples.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spt.errors import Unsupported
from spt.formats import read_json
from spt.pack import ENDED
from spt.round.executors import ERRORS, Executor, Handle, State, Work
from spt.round.far import BATCH, FarBench

__all__ = ["RemoteBench"]

_EVENTS = "out/events.jsonl"
_HELD = "executor.json"  # by which a later process finds a job that still runs
_TRIES = 3  # of a job that gets lost without getting further
_POLL_S, _MOST_POLL_S = 0.2, 3.0
_LAG_S = 10.0  # a file of another host may be seen so late
_LEAVE_S = 15.0  # for a job that was cancelled


@dataclass(frozen=True)
class RemoteBench(FarBench):
    """A bench whose questions an executor brings to other hosts, and that waits for them."""

    executor: Executor = field(kw_only=True)

    @property
    def devices(self) -> tuple[str, ...]:
        """As many as the user named for this slot: a host numbers those that it gives to a job from 0."""
        return tuple(_numbered(place, name) for place, name in enumerate(super().devices))

    @property
    def device(self) -> str:
        return self.devices[0] if self.devices else _numbered(0, self.deployment.device)

    def _check(self, name: str) -> None:
        """Has a job run, with those whose samples it reads first; HarnessFailed where it ended with an error."""
        job = self._asked(name)
        for needed in dict.fromkeys(word[1:].partition("/")[0] for word in job["words"] if word.startswith("@")):
            self._check(needed)
        with self.turns.held([f"job {name}"], self.budget.check):  # of several that want it, one submits it
            self._run(job)
        super()._check(name)

    def _asked(self, name: str) -> dict[str, Any]:
        file = self.jobs / BATCH
        return next(job for job in read_json(file.read_bytes(), str(file))["jobs"] if job["name"] == name)

    def _run(self, job: dict[str, Any]) -> None:
        """Returns once a job has ended, however often it must be submitted for that.

        Unsupported where it is lost time after time: that says nothing of what it measures.
        """
        folder, tries, reached = self.jobs / job["name"], 0, -1
        handle = self._running(folder)
        while not (folder / ENDED).is_file():
            if (measured := _measured_bytes(folder)) > reached:
                tries, reached = 0, measured
            if tries == _TRIES:
                raise Unsupported(
                    f"'{job['name']}' was lost {_TRIES} times on other hosts: {_last_error(folder)}",
                    f"'{folder / 'host'}' holds what was said there",
                )
            tries += 1
            handle = handle or self._submit(job, folder)
            self._follow(folder, handle)
            handle = None
        (folder / _HELD).unlink(missing_ok=True)

    def _running(self, folder: Path) -> Handle | None:
        """What an earlier process submitted and may still run."""
        file = folder / _HELD
        if not file.is_file():
            return None
        held = read_json(file.read_bytes(), str(file))
        if held["executor"] != self.settings.executor:
            return None
        return self.executor.attach(held["id"], folder / "host")

    def _submit(self, job: dict[str, Any], folder: Path) -> Handle:
        self.budget.check()
        room = folder / "host"
        room.mkdir(exist_ok=True)
        (room / ERRORS).unlink(missing_ok=True)
        minutes = self.executor.minutes
        command = [self.deployment.interpreter(), "-P", "-s", "-m", "harness", "batch", str(self.jobs)]
        command += ["--only", job["name"], *([] if minutes is None else ["--max-minutes", f"{minutes:.3f}"])]
        handle = self.executor.submit(Work(job["name"], command, room, self._devices_of(job)))
        if handle.id is not None:
            part = folder / f".{_HELD}"
            part.write_text(json.dumps({"executor": self.settings.executor, "id": handle.id}))
            part.replace(folder / _HELD)
        return handle

    def _devices_of(self, job: dict[str, Any]) -> int:
        """How many GPUs a job needs."""
        words = job["words"]
        names = words[words.index("--devices") + 1].split(",") if "--devices" in words else [self.device]
        return sum(name.startswith("cuda") for name in names)

    def _follow(self, folder: Path, handle: Handle) -> None:
        """Shows what a job says until it is over; it is cancelled where this bench is to stop."""
        try:
            with contextlib.ExitStack() as metered:
                is_begun, pause_s, state = False, _POLL_S, handle.state()
                for events in _tailed(folder / _EVENTS):
                    if events and not is_begun:  # until then it may have waited for a host
                        metered.enter_context(self.budget.device())
                        is_begun = True
                    for event in events:
                        self._emit(event)
                    self.budget.check()
                    if state != "running" or (folder / ENDED).is_file():
                        break
                    pause_s = _POLL_S if events else min(_MOST_POLL_S, 1.3 * pause_s)
                    time.sleep(pause_s)
                    state = handle.state()
                _settle(folder, state)
        except BaseException:
            _end(handle)
            (folder / _HELD).unlink(missing_ok=True)
            raise
        (folder / _HELD).unlink(missing_ok=True)


def _numbered(place: int, name: str) -> str:
    return f"cuda:{place}" if name.startswith("cuda") else name


def _settle(folder: Path, state: State) -> None:
    """Waits a while for the end of a job that its executor says has ended."""
    until_s = time.monotonic() + _LAG_S
    while state == "ended" and not (folder / ENDED).is_file() and not _is_up(folder):
        if time.monotonic() >= until_s:
            return
        time.sleep(_POLL_S)


def _is_up(folder: Path) -> bool:
    """Whether a job ended with an error of its batch, such as that its time is up."""
    return _last_error(folder).startswith("error: ")


def _end(handle: Handle) -> None:
    """Cancels a job, and waits a while until it has ended."""
    handle.cancel()
    until_s = time.monotonic() + _LEAVE_S
    while handle.state() == "running" and time.monotonic() < until_s:
        time.sleep(_POLL_S)


def _last_error(folder: Path) -> str:
    """What a batch said last of an error of its own, or that it said nothing."""
    file = folder / "host" / ERRORS
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return next((line for line in reversed(lines) if line.startswith("error: ")), "its host said nothing")


def _measured_bytes(folder: Path) -> int:
    """The size of what was measured so far."""
    files = (file for file in (folder / "out").glob("*.jsonl") if file.name != Path(_EVENTS).name)
    return sum(file.stat().st_size for file in files)


def _tailed(file: Path) -> Iterator[list[dict[str, Any]]]:
    """The events that a file gets from now on, some each time; half a line of a killed job says nothing."""
    reached = file.stat().st_size if file.is_file() else 0
    while True:
        data = b""
        if file.is_file():
            with file.open("rb") as source:
                source.seek(reached)
                data = source.read()
        whole = data[: data.rfind(b"\n") + 1]
        reached += len(whole)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        yield [event for event in found if isinstance(event, dict) and "event" in event]
