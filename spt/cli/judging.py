"""What `spt time`, `spt force`, `spt final` and `spt job` share: their flags, and the plan that these make."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spt.cli.output import left_out, say

if TYPE_CHECKING:
    from spt.campaign import Plan
    from spt.deployment import Deployment
    from spt.judge import Limits

__all__ = [
    "chosen_deployment",
    "chosen_devices",
    "chosen_limits",
    "chosen_plan",
    "final_options",
    "judging_options",
    "moved_here",
    "requests_file",
]

Command = TypeVar("Command", bound=Callable[..., Any])

_DEPLOYMENT = click.option(
    "--deployment", "file", metavar="FILE", help="What to run on; the nearest deployment.yaml by default."
)
_ASKED = (
    click.option("--requests", metavar="FILE", help="JSON lines to ask; generated, and never seen, when left out."),
    click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of requests and order; drawn when left out."),
)
_SEALED = (
    click.option("--seal", metavar="NAME", help="The seal that draws the requests (`spt seal`)."),
    click.option("--again", metavar="REASON", help="Measure a system that had a final; the ledger keeps the reason."),
    click.option("--smoke", is_flag=True, help="A handful of everything, to see that it runs: accepts nothing."),
)
_RUN = (
    click.option("--max-minutes", type=click.FloatRange(min=0), metavar="M", help="Stop then; the command goes on."),
    click.option("--devices", metavar="D[,D]", help="cpu, cuda or cuda:N; two are exchanged within a unit of timing."),
    click.option("--no-sandbox", is_flag=True, help="For trusted code alone: on main, in stock or in an entry."),
    click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON on standard output."),
)


def judging_options(command: Command) -> Command:
    """Adds the flags of a judging command."""
    return _with(command, _DEPLOYMENT, *_ASKED, *_RUN)


def final_options(command: Command) -> Command:
    """Adds the flags of a final."""
    return _with(command, *_SEALED, _DEPLOYMENT, *_RUN)


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def chosen_deployment(file: str | None) -> "Deployment":
    """The deployment in the file, or in the nearest deployment.yaml."""
    from spt.choice import nearest_deployment
    from spt.deployment import read
    from spt.errors import Missing

    found = Path(file) if file is not None else nearest_deployment(Path.cwd())
    if found is None:
        raise Missing("there is no deployment.yaml here", "--deployment FILE names one (docs/deployment.md)")
    return read(found)


def chosen_plan(
    a: str, b: str, file: str | None, seed: int | None, devices: str | None, *, trusted: bool = False
) -> "Plan":
    """The plan of a campaign of A against B; with `trusted`, code that was not taken in before is refused."""
    from spt.arms import arm_of, refuse_untrusted
    from spt.campaign import Plan
    from spt.verdicts import Ledger

    ledger = Ledger.find(Path())
    deployment = chosen_deployment(file)
    if deployment.options:
        say("note: the options of the deployment are no part of a system: SYSTEM@OPTIONS.yaml gives some")
    own_engine = deployment.engine["kind"] != "command"
    named = {word: arm_of(word, own_engine=own_engine) for word in dict.fromkeys((a, b, "stock"))}
    left_out(sorted({path for arm in named.values() for path in arm.left_out}))
    arms = {"a": named[a], "b": named[b], "stock": named["stock"]}
    if trusted:
        refuse_untrusted(arms.values(), ledger.store)
    return Plan(ledger, deployment, arms, devices.split(",")[0] if devices else deployment.device, seed)


def requests_file(plan: "Plan", word: str | None) -> Path | None:
    """The user's file of requests, by flag or deployment; None where they are to be generated."""
    if word is not None:
        return Path(word)
    file = plan.deployment.requests.get("file")
    return None if file is None else plan.deployment.folder / file


def chosen_limits(minutes: float | None, devices: str | None, *, no_sandbox: bool, most: int) -> "Limits":
    """How long, enclosed or not, and on which devices."""
    import math

    from spt.errors import Usage
    from spt.judge import Limits

    if minutes is not None and not math.isfinite(minutes):
        raise Usage(f"--max-minutes {minutes} is no number of minutes", "without it the command runs to its end")
    names = chosen_devices(devices, most) if devices is not None else ()
    return Limits.of(minutes, sandbox=not no_sandbox, devices=names)


def chosen_devices(word: str, most: int, option: str = "--devices") -> tuple[str, ...]:
    """The devices in a word that `option` was given; Usage where one is none, or they are more than `most`."""
    import re

    from spt.errors import Usage

    names = tuple(word.split(","))
    for name in names:
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name):
            raise Usage(f"{option} '{word}': '{name}' is none of cpu, cuda and cuda:N")
    if len({"cuda:0" if name == "cuda" else name for name in names}) < len(names):
        raise Usage(f"{option} '{word}' names one device twice", "two that are exchanged are two")
    if len(names) > most:
        raise Usage(f"{option} '{word}' are {len(names)}, and this takes at most {most}")
    return names


def moved_here(target: str | None, drafter: str | None, device: str | None) -> dict[str, object]:
    """What a job's deployment says otherwise on the machine where it is unpacked."""
    changes: dict[str, object] = {}
    if target is not None:
        changes["target"] = str(Path(target).absolute())
    if drafter is not None:
        changes["drafter"] = {"path": str(Path(drafter).absolute())}
    if device is not None:
        [changes["device"]] = chosen_devices(device, 1, "--device")
    return changes
