"""`python -m harness batch`: jobs that were sent together, one after the other, until all have ended or the time is up.

A machine without git measures so what a round elsewhere asks for.  Every job is a command of this harness, in a folder
of its own; the same command goes on where it was.
"""

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import shape
from harness.command import Emit, deadline_after, is_past
from harness.errors import HarnessError, Missing, Usage
from harness.shape import constant, items, one_of, record

__all__ = ["BATCH", "ENDED", "EVENTS", "batch", "refuse_left"]

BATCH, ENDED, EVENTS = "batch.json", "ended.json", "events.jsonl"
COMMANDS = ("run", "measure", "time", "calibrate", "force", "final")
_PLACE = "@"  # begins a word that is a path below the batch's folder
_UP = "the time is up"
_OUTPUT = 1  # standard output
_BATCH = record(
    {
        "v": constant(1),
        "kind": constant("batch"),
        "jobs": items(
            record({"name": shape.text, "command": one_of(*COMMANDS), "words": items(shape.text)}),
        ),
    }
)

# What a command says while another has the device or the samples, which tells nothing of its job.
_BUSY = ("another judge measures", "is writing")
_WAIT_S, _STOP_S = 1.0, 10.0
_SIGNALLED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # what a command ends with that was told to


def batch(folder: Path, minutes: float | None, emit: Emit, only: str | None = None) -> int:
    """Runs the jobs of `folder` that have not ended, or the one that is called `only`; returns how many are left.

    `emit` gets {event: job, name, status, error} when one ends, and of a single job that it is begun and all that its
    command says, which goes into `NAME/out/events.jsonl` as well.  A job that fails ends too, and its error stands in
    `NAME/out/ended.json`; later jobs that need it fail in turn.  One whose command is ended by a signal has not ended:
    HarnessError.
    """
    deadline_s = deadline_after(minutes)
    jobs = _chosen(folder, only)
    for place, job in enumerate(jobs):
        out = folder / job["name"] / "out"
        out.mkdir(parents=True, exist_ok=True)
        while not (out / ENDED).is_file():
            left = [] if deadline_s is None else ["--max-minutes", f"{max(0.0, _left_s(deadline_s)) / 60:.3f}"]
            line = [job["command"], *_words(folder, job), *left]
            status, last, error = _run(line, out / EVENTS, _quiet if only is None else emit)
            if status and (error.startswith(f"error: {_UP}") or is_past(deadline_s)):
                return len(jobs) - place
            if status and any(words in error for words in _BUSY):
                time.sleep(_WAIT_S)
                continue
            if status < 0 or status in _SIGNALLED:
                raise HarnessError(f"a signal ended '{job['name']}'", "the same command goes on from here")
            judged = status == 1 and last.get("event") == "verdict"
            told = {"status": 0 if judged else status, "error": None if judged or not status else _plain(error, status)}
            part = out / f".{ENDED}"
            part.write_text(json.dumps({"v": 1, "kind": "ended", **told}))
            part.replace(out / ENDED)
            emit({"event": "job", "name": job["name"], **told})
    return 0


def _quiet(event: dict[str, Any]) -> None:
    pass


def _chosen(folder: Path, only: str | None) -> list[dict[str, Any]]:
    jobs = _read(folder)
    if only is None:
        return jobs
    found = [job for job in jobs if job["name"] == only]
    if not found:
        raise Usage(f"{folder / BATCH}: there is no job '{only}'")
    return found


def _left_s(deadline_s: float) -> float:
    return deadline_s - time.monotonic()


def _read(folder: Path) -> list[dict[str, Any]]:
    try:
        value = shape.loads((folder / BATCH).read_bytes())
        _BATCH(value, "the batch")
    except OSError as error:
        raise Missing(f"there is no batch in '{folder}': {error.strerror}") from None
    except shape.Mismatch as error:
        raise Usage(f"{folder / BATCH}: {error}") from None
    jobs: list[dict[str, Any]] = value["jobs"]
    for job in jobs:
        if not (folder / job["name"] / "job.json").is_file() or Path(job["name"]).name != job["name"]:
            raise Usage(f"{folder / BATCH}: there is no job '{job['name']}'")
    return jobs


def _words(folder: Path, job: dict[str, Any]) -> list[str]:
    own = folder / job["name"]
    words = [str(folder / word[1:]) if word.startswith(_PLACE) else word for word in job["words"]]
    return [*words, "--job", str(own / "job.json"), "--out", str(own / "out"), "--stream"]


def _run(words: list[str], log: Path, emit: Emit) -> tuple[int, dict[str, Any], str]:
    """Runs a command of the harness: (status, last event, last line of standard error).

    Each event goes into `log` and to `emit`.  However this ends, the command has ended too.
    """
    last: dict[str, Any] = {"event": "begun"}
    with log.open("ab") as file, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-P", "-s", "-m", "harness", *words]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        try:
            assert child.stdout is not None
            with child.stdout as said:
                for line in itertools.chain([json.dumps(last).encode() + b"\n"], _lines(said.fileno())):
                    file.write(line)
                    file.flush()
                    last = _event(line)
                    emit(last)
            child.wait()
        finally:
            _stop(child)
        errors.seek(0)
        return child.returncode, last, _error(errors.read().decode(errors="replace"))


def _lines(source: int) -> Iterator[bytes]:
    """The whole lines of a pipe as they come; BrokenPipeError once nobody reads our own standard output.

    So no measurement goes on for nobody, on whatever host: whoever started it had its output.
    """
    poll, part = select.poll(), b""
    poll.register(source, select.POLLIN)
    poll.register(_OUTPUT, 0)  # its errors alone
    while True:
        if any(number == _OUTPUT for number, _ in poll.poll()):
            raise BrokenPipeError
        data = os.read(source, 1 << 16)
        if not data:
            return
        *lines, part = (part + data).split(b"\n")
        yield from (line + b"\n" for line in lines)


def _event(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    return value if isinstance(value, dict) else {}


def _stop(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    return lines[-1] if lines else _last(text)


def _plain(error: str, status: int) -> str:
    return error.removeprefix("error: ") or f"it ended with status {status}"


def refuse_left(left: int) -> None:
    """Raises `HarnessError` where jobs are left."""
    if left:
        raise HarnessError(f"{_UP} with {left} jobs left", "the same command goes on from here")
