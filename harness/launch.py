"""Who answers for an arm: its own tree's engine, a command of the user's, or a server elsewhere behind our adapter.

A server answers for every arm but `stock`, which judges: that one is always the engine of its own trusted tree.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.client import Engine, Start, stock_command
from harness.errors import Unsupported, Usage
from harness.job import Arm, Deployment, Job
from harness.openai import KEY
from harness.options import convert
from harness.request import Request
from harness.wire import Settings

__all__ = ["launch", "refuse_noise", "refuse_sandbox", "refuse_served_timing", "served", "settings_of"]

_ROOT = Path(__file__).parents[1]  # the trusted installation: no arm's tree is on the adapter's path


def served(deployment: Deployment, arm: str) -> bool:
    """Whether a server answers for the arm."""
    return deployment.engine["kind"] == "openai" and arm != "stock"


def launch(deployment: Deployment, arm: Arm, start: Start = Engine.start, **words: Any) -> Engine:
    """The arm's engine, started by `start` with `words`."""
    engine = deployment.engine
    if not served(deployment, arm.name):
        own = stock_command()
        return start(own if engine["kind"] == "openai" else deployment.command(own), arm.folder, **words)
    command = [sys.executable, "-P", "-s", "-m", "harness.openai", "--url", engine["url"], "--model", engine["model"]]
    return start(command, _ROOT, passed=(KEY,), **words)


def settings_of(deployment: Deployment, arm: Arm, engine: Engine, **options: str | float | bool) -> Settings:
    """What the arm's engine is to load, with `options` over the arm's own."""
    values = convert({**arm.options, **options}, engine.hello.options)
    settings = deployment.settings(values, drafts=arm.drafts)
    # The deployment's drafter is stock's; a server drafts, or not, as it was started.
    return replace(settings, drafter=None) if served(deployment, arm.name) else settings


# --- what cannot be judged ---


def refuse_served_timing(job: Job) -> None:
    """Raises `Unsupported` where both arms would be the same server."""
    if job.deployment.engine["kind"] == "openai":
        raise Unsupported(
            "an engine 'openai' cannot be timed: both arms would be the same server",
            "`force` judges whether it says what stock says",
        )


def refuse_sandbox(job: Job, *, sandbox: bool) -> None:
    """Raises `Usage` where a server is to be judged enclosed."""
    if job.deployment.engine["kind"] == "openai" and sandbox:
        raise Usage(
            "an engine 'openai' cannot be enclosed: it runs elsewhere, and is reached over the network",
            "pass --no-sandbox where the server is trusted",
        )


def refuse_noise(job: Job, requests: Iterable[Request]) -> None:
    """Raises `Unsupported` where a server's tokens would be drawn: its noise is not ours, so nothing can follow it."""
    if job.deployment.engine["kind"] != "openai":
        return
    for request in requests:
        temperature = (request.sampling or job.deployment.sampling).temperature
        if temperature > 0:
            raise Unsupported(
                f"request '{request.id}' has temperature {temperature:g}: an engine 'openai' draws noise of its own,"
                " and only greedy tokens can be forced",
                "set 'sampling: {temperature: 0}' in the deployment",
            )
