"""Measurements: what a system does on a deployment's requests, for walks, cost model and ceiling.

The job is made anew by each command and is the same for the same words, so the folder of results goes on by itself.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spt.campaign import Emit, Requests, write_requests
from spt.deployment import Deployment
from spt.errors import Missing, Unsupported
from spt.job import run_harness

__all__ = ["SET", "check_measurable", "measure", "write_measuring_job"]

SET = "development"


def check_measurable(deployment: Deployment) -> None:
    """Unsupported where a server answers, Missing where there is no drafter: nothing could be recorded."""
    if deployment.served:
        raise Unsupported("an engine 'openai' cannot be measured: a server tells nothing of its steps")
    if deployment.models.drafter is None:
        raise Missing(
            f"there is no drafter for '{deployment.target}', and without one there is no lattice",
            "name a 'drafter' in the deployment",
        )


def write_measuring_job(
    folder: Path,
    deployment: Deployment,
    arms: Mapping[str, Mapping[str, Any]],
    wanted: Requests,
    seed: int,
    max_tokens: int,
    device: str | None = None,
) -> Path:
    """Writes requests and job into `folder`, where the arms `a` and `stock` lie; returns the job's file.

    device: in place of the deployment's own.
    """
    write_requests(deployment, wanted, seed, folder / "requests.jsonl")
    job = {
        "v": 1,
        "kind": "job",
        "arms": {name: dict(arm) for name, arm in arms.items()},
        "deployment": {**deployment.record(), "device": device or deployment.device},
        "deployment_digest": deployment.digest(),
        "requests": "requests.jsonl",
        "seed": seed,
        "rule": "none",
        "phase": "run",
        "units": 0,
        "max_tokens": max_tokens,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return path


def measure(
    deployment: Deployment, job: Path, out: Path, minutes: float | None, emit: Emit, *, profile: bool
) -> dict[str, Any]:
    """Runs the job into `out`, or goes on with it; returns the summary.  HarnessFailed where it ends before."""
    words = ["measure", "--job", str(job), "--out", str(out.absolute()), "--stream"]
    if not profile:
        words.append("--no-profile")
    if minutes is not None:
        words += ["--max-minutes", str(minutes)]
    summary: dict[str, Any] = {}
    with run_harness(deployment, words, job.parent, out / "engine.log") as events:
        for event in events:
            if event["event"] == "end":
                summary = event["measurement"]
            emit(event)
    return summary
