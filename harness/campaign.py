"""`python -m harness time`: the campaign that compares arm `a` with the current best `b`, unit by unit.

What to measure next is the rule's to say (harness/promotion.py); what was measured is in `DIR/samples.jsonl` before
anything else happens.  The same command goes on where it was killed; a unit that was under way is measured anew with
fresh requests.
"""

import datetime
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import shape
from harness.client import Engine, Start
from harness.device import Device, locked, open_device
from harness.errors import HarnessError, Missing, Unsupported, Usage
from harness.job import Job, read_job
from harness.machine import card
from harness.pair import Contestant, Pair, Voided
from harness.prepared import Store, model_paths, stored
from harness.probe import check_sandbox
from harness.promotion import RULE, Measure, next_step
from harness.request import read_requests
from harness.samples import Samples, Writer
from harness.sandbox import Enclosure, find_bubblewrap
from harness.supply import Supply
from harness.text import Text, load_text
from harness.units import reading
from harness.verdict import timing_verdict

__all__ = ["time_arms"]

Emit = Callable[[dict[str, Any]], None]


def time_arms(
    job_file: Path,
    out: Path,
    minutes: float | None,
    emit: Emit,
    *,
    sandbox: bool = True,
    devices: Sequence[str] = (),
    start: Start = Engine.start,
) -> dict[str, Any]:
    """Measures until the rule has its answer, and returns the verdict.

    `devices` are one or two; the deployment's own when left out.  `emit` gets the events `card`, `unit`, `void` and
    `verdict` of docs/judge.md.  Raises `HarnessError` when the time is up.
    """
    job = _checked(read_job(job_file))
    requests = read_requests(job.requests)
    text = _text(job, any(request.turns for request in requests))
    with ExitStack() as stack:
        writer = stack.enter_context(Writer(out / "samples.jsonl"))
        places = [stack.enter_context(open_device(name)) for name in devices or (job.deployment.device,)]
        for device in places:
            stack.enter_context(locked(device.uuid))
        enclosures = [_enclosure(job, device, sandbox) for device in places]
        if sandbox:
            check_sandbox(enclosures[0])
        stores = {
            name: stored(job.arms[name], job.deployment, out / "prepared" / name, enclosures[0], start) for name in "ab"
        }
        now = datetime.datetime.now(datetime.UTC)
        _begin(writer, job, card(job.deployment.device, now, sandbox=enclosures[0].word))
        supply = Supply(requests, _asked(writer.path), text)
        campaign = _Campaign(job, writer, supply, places, enclosures, stores, emit, start)
        return campaign.run(minutes)


def _checked(job: Job) -> Job:
    if missing := [arm for arm in ("a", "b", "stock") if arm not in job.arms]:
        raise Usage(f"the job names no arm '{missing[0]}'", "a campaign compares 'a' with 'b', and names 'stock'")
    if job.rule != RULE:
        raise Usage(f"the job's rule is '{job.rule}'", f"this judge has '{RULE}'")
    if job.deployment.concurrency != 1:
        raise Unsupported(f"requests are timed one at a time, not {job.deployment.concurrency}")
    return job


def _text(job: Job, needed: bool) -> Text | None:
    try:
        return load_text(Path(job.deployment.target.path))
    except (Missing, Unsupported):
        if needed:
            raise
        return None


def _enclosure(job: Job, device: Device, sandbox: bool) -> Enclosure:
    return Enclosure(
        find_bubblewrap() if sandbox else None,
        device=device.name,
        nodes=device.nodes,
        reads=model_paths(job.deployment),
    )


def _begin(writer: Writer, job: Job, own: dict[str, Any]) -> None:
    """Writes what the campaign is of, or finds it there; then this process's card."""
    told = {
        "arms": {name: {"tree": arm.tree, "options": arm.options} for name, arm in job.arms.items()},
        "deployment": job.digest,
        "rule": job.rule,
        "seed": job.seed,
        "requests": hashlib.sha256(job.requests.read_bytes()).hexdigest(),
    }
    if writer.path.stat().st_size:
        found = writer.read().campaign
        for name, value in told.items():
            if found[name] != value:
                raise Usage(f"'{writer.path}' holds another campaign: its '{name}' differs", "give another folder")
    else:
        writer.add("campaign", **told)
    writer.add("card", card=own)


def _asked(path: Path) -> Iterator[str]:
    """The requests that were ever asked, in units that count or not."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        value = shape.loads(line)
        if value["type"] == "answer":
            yield value["request"]
        elif value["type"] == "group":
            yield from value["requests"]


@dataclass
class _Campaign:
    job: Job
    writer: Writer
    supply: Supply
    devices: list[Device]
    enclosures: list[Enclosure]
    stores: dict[str, Store]
    emit: Emit
    start: Start

    def run(self, minutes: float | None) -> dict[str, Any]:
        deadline_s = None if minutes is None else time.monotonic() + 60 * minutes
        longest_s = 0.0
        while isinstance(step := next_step(samples := self.writer.read()), Measure):
            if deadline_s is not None and time.monotonic() + longest_s > deadline_s:
                raise HarnessError(
                    f"the time is up before unit {step.unit} of '{step.phase}'", "the same command goes on from here"
                )
            begun_s = time.monotonic()
            self._measure(step)
            longest_s = max(longest_s, time.monotonic() - begun_s)
        verdict = timing_verdict(samples)
        self.emit({"event": "verdict", "verdict": verdict})
        return verdict

    def _measure(self, step: Measure) -> None:
        names = ("b", "b") if step.phase == "calibrate" else ("a", "b")
        pair = Pair(self.job.deployment, self.writer, self.supply, step, self.job.seed, self.start)
        try:
            pair.run([self._half(names, turn) for turn in range(len(self.devices))])
        except Voided as void:
            told = {"arm": void.arm, "cause": void.cause, "reason": void.reason}
            self.emit({"event": "void", **asdict(step), **told})
            return
        samples = self.writer.read()
        self.emit({"event": "unit", **asdict(step), **_progress(samples, step)})

    def _half(self, names: tuple[str, str], turn: int) -> tuple[dict[str, Contestant], dict[str, Device]]:
        """Contestants and devices of one half; the second half exchanges the devices."""
        contestants, devices = {}, {}
        for index, (arm, name) in enumerate(zip("ab", names, strict=True)):
            place = (index + turn) % len(self.devices)
            devices[arm] = self.devices[place]
            contestants[arm] = Contestant(self.job.arms[name], self.stores[name], self.enclosures[place])
        return contestants, devices


def _progress(samples: Samples, step: Measure) -> dict[str, Any]:
    """The unit's value, and all values of its phase, ln-ratios."""
    values = [reading(unit).value for unit in samples.of(step.phase)]
    return {"value": values[-1], "values": values}
