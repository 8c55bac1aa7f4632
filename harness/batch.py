"""`python -m harness batch`: jobs that were sent together, one after the other, until all have ended or the time is up.

A machine without git measures so what a round elsewhere asks for, and an executor a single job.  Every job is a command
of this harness, in a folder of its own; the same command goes on where it was.
"""

import ctypes
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import shape
from harness.command import Emit, deadline_after
from harness.errors import HarnessError, Missing, Usage
from harness.shape import constant, items, one_of, record

__all__ = ["BATCH", "ENDED", "batch", "die_with_parent", "refuse_left"]

BATCH, ENDED, EVENTS = "batch.json", "ended.json", "events.jsonl"
COMMANDS = ("run", "measure", "time", "calibrate", "force", "final")
_PLACE = "@"  # begins a word that is a path below the batch's folder
_UP = "the time is up"
_BUSY = ("another judge measures", "is writing")
_POLL_S = 1.0
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG (linux/prctl.h)
_BATCH = record(
    {
        "v": constant(1),
        "kind": constant("batch"),
        "jobs": items(
            record({"name": shape.text, "command": one_of(*COMMANDS), "words": items(shape.text)}),
        ),
    }
)

# run(command line, file for its events) -> (status, last line of standard output, last line of standard error)
Run = Callable[[list[str], Path], tuple[int, str, str]]


def batch(folder: Path, minutes: float | None, emit: Emit, run: Run | None = None, only: str | None = None) -> int:
    """Runs the jobs of `folder` that have not ended, or one of them; returns how many of them are left.

    `emit` gets {event: job, name, status, error} when one ends.  A job that fails ends too, and its error stands in
    `NAME/out/ended.json`; later jobs that need it fail in turn.  One that another judge is at, or
    whose device another has, is left; a single one is waited for.  `NAME/out/events.jsonl` keeps what the harness says.
    """
    deadline_s = deadline_after(minutes)
    jobs = [job for job in _read(folder) if only in (None, job["name"])]
    if not jobs and only is not None:
        raise Usage(f"{folder / BATCH}: there is no job '{only}'")
    for place, job in enumerate(jobs):
        out = folder / job["name"] / "out"
        if (out / ENDED).is_file():
            continue
        out.mkdir(parents=True, exist_ok=True)
        while True:
            left = [] if deadline_s is None else ["--max-minutes", f"{max(0.0, _left_s(deadline_s)) / 60:.3f}"]
            status, said, error = (run or _run)([job["command"], *_words(folder, job), *left], out / EVENTS)
            busy = bool(status) and any(words in error for words in _BUSY)
            if not busy or only is None or left[1:] == ["0.000"]:
                break
            time.sleep(_POLL_S)
        if busy or (status and error.startswith(f"error: {_UP}")):
            return len(jobs) - place
        judged = status == 1 and _is_verdict(said)
        told = {"status": 0 if judged else status, "error": None if judged or not status else _plain(error, status)}
        part = out / f".{ENDED}"
        part.write_text(json.dumps({"v": 1, "kind": "ended", **told}))
        part.replace(out / ENDED)
        emit({"event": "job", "name": job["name"], **told})
    return 0


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


def die_with_parent() -> None:
    """Lets the kernel end this process when the one that started it ends: an executor that gives a job up may not know
    of what it started, and what this starts ends once nobody reads what it says."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGTERM)


def _run(words: list[str], events: Path) -> tuple[int, str, str]:
    command, last = [sys.executable, "-P", "-s", "-m", "harness", *words], ""
    with tempfile.TemporaryFile("w+", errors="replace") as said, events.open("a") as kept:
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=said, text=True, errors="replace") as child:
            assert child.stdout is not None
            for line in child.stdout:
                kept.write(line)
                kept.flush()
                last = line if line.strip() else last
        said.seek(0)
        return child.returncode, last.strip(), _error(said.read())


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _error(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    return lines[-1] if lines else _last(text)


def _plain(error: str, status: int) -> str:
    return error.removeprefix("error: ") or f"it ended with status {status}"


def _is_verdict(line: str) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("event") == "verdict"


def refuse_left(left: int) -> None:
    """Raises `HarnessError` where jobs are left."""
    if left:
        raise HarnessError(
            f"{_UP}, or another judge is at them, with {left} jobs left", "the same command goes on from here"
        )
