"""`python -m harness key`: what a verdict on a job would be of, on this machine, before anything is measured."""

import datetime
from pathlib import Path
from typing import Any

from harness.job import read_job
from harness.machine import card
from harness.timed import timed_digest
from harness.verdict import identity_of, named

__all__ = ["identity"]


def identity(job_file: Path, now: datetime.datetime, timed: Path | None = None) -> dict[str, Any]:
    """The key of the job's verdict and what it is the digest of; no arm need be there yet, and nothing is started.

    timed: the samples whose tokens would be forced first.
    """
    job = read_job(job_file)
    arms = {name: arm.system for name, arm in job.arms.items()}
    campaign = {"arms": arms, "deployment": job.digest, "rule": job.rule}
    of = identity_of(campaign, card(job.deployment.device, now), None if timed is None else timed_digest(timed))
    return {"v": 1, "kind": "key", "key": named(of), "of": of}
