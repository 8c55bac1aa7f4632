"""Jobs for the harness: what is asked goes in as files, what happens comes back as lines (docs/harness.md)."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spt.deployment import Deployment
from spt.errors import SptError
from spt.share import shipped_root

__all__ = ["PASSED_ON", "HarnessFailed", "export_system", "run_harness", "run_job", "write_job"]

STOP_S = 10.0
LOG_LINES = 20
# What a child may know of the outside; the harness makes a worker's environment from all but the last.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SPT_LOCKS")
SERVER_KEY = "OPENAI_API_KEY"  # for an engine of kind openai alone


class HarnessFailed(SptError):
    """The harness ended with an error, said here in its own words; `log` is the end of what the engine printed."""

    def __init__(self, status: int, said: Sequence[str], log: Sequence[str]) -> None:
        found = {key: text for key, _, text in (line.partition(": ") for line in said)}
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        problem = found.get("error") or f"the harness {ended}" + (f": {said[-1]}" if said else "")
        # Its hint names the log's file, which goes with the job's folder.
        super().__init__(problem, None if log else found.get("hint"))
        self.exit_code = max(status, 1)
        self.log = log


def export_system(system: str | None, to: Path) -> tuple[str, dict[str, Any]]:
    """Writes the files of SYSTEM into the new folder `to`; its tree id and the options that it brings.

    None is the tree that is checked out in a deployment repository, and the shipped stock anywhere else.
    """
    from spt.resolve import resolve_at
    from spt.system import export

    objects, found = resolve_at(Path(), system)
    export(objects, found.tree, to)
    return found.tree, dict(found.options)


def write_job(
    folder: Path,
    deployment: Deployment,
    arm: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
) -> Path:
    """Writes a job that answers requests with one arm {`dir`, `tree`, `options`}; returns the job's file."""
    job = {
        "v": 1,
        "kind": "job",
        "arms": {"a": dict(arm)},
        "deployment": deployment.record(),
        "requests": "requests.jsonl",
        "seed": 0,
        "rule": "none",
        "phase": "run",
        "units": 0,
    }
    (folder / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


@contextlib.contextmanager
def run_job(deployment: Deployment, job: Path, folder: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """Runs the job and gives its events; in the end the harness and its engine are gone, however it ends.

    Raises HarnessFailed, with the harness's exit code, where it ends with an error.
    """
    out = folder / "out"
    arguments = ["run", "--job", str(job), "--out", str(out), "--stream"]
    with run_harness(deployment, arguments, folder, out / "engine.log") as events:
        yield events


@contextlib.contextmanager
def run_harness(
    deployment: Deployment, arguments: Sequence[str], folder: Path, log: Path | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    """Runs a command of the harness and gives the JSON lines that it prints; `folder` is for its passing files.

    A verdict that says no is no error.  Raises HarnessFailed as `run_job` does.
    """
    (folder / "empty").mkdir(exist_ok=True)
    names = [*PASSED_ON, SERVER_KEY] if deployment.served else PASSED_ON
    outside = {name: os.environ[name] for name in names if name in os.environ}
    judged = False

    def read(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        nonlocal judged
        for line in lines:
            event = json.loads(line)
            judged = event.get("event") == "verdict"
            yield event

    with (folder / "said").open("wb+") as said:
        child = subprocess.Popen(
            [deployment.interpreter(), "-P", "-s", "-m", "harness", *arguments],
            cwd=folder / "empty",
            env={**outside, "PYTHONPATH": str(shipped_root()), "LC_ALL": "C.UTF-8", "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            process_group=0,  # an interrupt from the terminal is ours; the harness ends when we say so
        )
        try:
            assert child.stdout is not None
            with child.stdout as lines:
                yield read(lines)
                status = child.wait()
        finally:
            stop(child)
        if status and not (status == 1 and judged):
            said.seek(0)
            raise HarnessFailed(status, _lines(said.read()), [] if log is None else _end_of(log))


def _lines(data: bytes) -> list[str]:
    return [line for line in data.decode(errors="replace").splitlines() if line.strip()]


def _end_of(log: Path) -> list[str]:
    return _lines(log.read_bytes())[-LOG_LINES:] if log.is_file() else []


def stop(child: "subprocess.Popen[bytes]") -> None:
    """Ends the harness, which ends its engine."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
