"""Jobs for the harness: what is asked goes in as files, what happens comes back as lines (docs/harness.md)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from spt.deployment import Deployment
from spt.errors import SptError
from spt.share import shipped_root

__all__ = ["export_system", "run_job", "write_job"]

STOP_S = 10.0
# What a child may know of the outside; the harness makes a worker's environment from the same names.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


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

    What the harness has to say stands on standard error already, so its exit code is simply ours.
    """
    (folder / "empty").mkdir()
    arguments = ["run", "--job", str(job), "--out", str(folder / "out"), "--stream"]
    outside = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    child = subprocess.Popen(
        [deployment.interpreter(), "-P", "-s", "-m", "harness", *arguments],
        cwd=folder / "empty",
        env={**outside, "PYTHONPATH": str(shipped_root()), "LC_ALL": "C.UTF-8", "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,  # an interrupt from the terminal is ours; the harness ends when we say so
    )
    assert child.stdout is not None
    before = signal.signal(signal.SIGTERM, _end)
    with child.stdout as lines:
        try:
            yield (json.loads(line) for line in lines)
            status = child.wait()
        finally:
            stop(child)
            signal.signal(signal.SIGTERM, before)
    if status:
        raise click.exceptions.Exit(status) if status > 0 else SptError(f"the harness was ended by signal {-status}")


def _end(number: int, frame: object) -> None:
    """Ends by an exception instead of on the spot, so that harness and engine go with us."""
    sys.exit(143)


def stop(child: "subprocess.Popen[bytes]") -> None:
    """Ends the harness, which ends its engine."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
