"""`python -m harness time`: the campaign that compares arm `a` with the current best `b`, unit by unit.

What to measure next is the rule's to say (harness/promotion.py); what was measured is in `DIR/samples.jsonl` before
anything else happens.  The same command goes on where it was killed; a unit that was under way is measured anew with
fresh requests.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import statistics
from harness.arena import Arena, open_arena
from harness.client import Engine, Start
from harness.command import Emit, deadline_after, is_past
from harness.device import Device
from harness.errors import HarnessError, Unsupported, Usage
from harness.job import Job, read_job
from harness.launch import refuse_served_timing
from harness.pair import Contestant, Pair, Voided
from harness.promotion import BOUND, Measure, next_step, used_readings
from harness.request import read_requests
from harness.rules import Rule, rule_named
from harness.samples import Samples
from harness.supply import Supply
from harness.units import reading
from harness.verdict import timing_verdict

__all__ = ["Course", "check_timed", "time_arms"]


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

    `devices` are one or two; the deployment's own when left out.  `emit` gets the events `unit`, `void` and
    `verdict` of docs/judge.md.  Raises `HarnessError` when the time is up.
    """
    job = read_job(job_file)
    check_timed(job)
    _check_supply(job, out, max(1, len(devices)))
    with open_arena(job_file, out, ("a", "b", "stock"), sandbox=sandbox, devices=devices, start=start) as arena:
        for name in "ab":
            arena.store(name)
        rule = rule_named(job.rule)
        supply = Supply(arena.requests, arena.asked(), arena.text, rule.shape.answer_tok)
        deadline_s = deadline_after(minutes)
        samples = Course(arena, supply, emit, next_step, _SIDES, rule.of).run(deadline_s)
        verdict = timing_verdict(samples)
        emit({"event": "verdict", "verdict": verdict})
        return verdict


_SIDES = {"calibrate": ("b", "b"), "screen": ("a", "b"), "confirm": ("a", "b")}


def check_timed(job: Job) -> None:
    """Refuses a job that this judge cannot time."""
    rule_named(job.rule)
    refuse_served_timing(job)
    if job.deployment.concurrency != 1:
        raise Unsupported(f"requests are timed one at a time, not {job.deployment.concurrency}")


def _check_supply(job: Job, out: Path, halves: int) -> None:
    """Refuses to begin with fewer prompts than the longest campaign asks: it would end in the midst, without a verdict.

    halves: of a unit, one a device.
    """
    samples = out / "samples.jsonl"
    if samples.is_file() and samples.stat().st_size:
        return
    rule = rule_named(job.rule)
    needed, held = (
        halves * rule.shape.half_requests * sum(rule.of.values()),
        len(Supply(read_requests(job.requests), (), None)),
    )
    if held < needed:
        raise Usage(
            f"'{job.requests}' holds {held} prompts that differ, and a campaign may need {needed}",
            "every prompt is asked only once: give more of them, or let them be generated",
        )


@dataclass
class Course:
    """Unit after unit, until `next_` asks for none.

    sides: for each phase the job's arms that play `a` and `b`.  of: units that a phase has at most.
    """

    arena: Arena
    supply: Supply
    emit: Emit
    next_: Callable[[Samples], Measure | object]
    sides: Mapping[str, tuple[str, str]]
    of: Mapping[str, int]

    def run(self, deadline_s: float | None) -> Samples:
        """What was measured in the end; raises `HarnessError` when the time is up."""
        longest_s = 0.0
        samples = self.arena.writer.read()
        while isinstance(step := self.next_(samples), Measure):
            if is_past(deadline_s, longest_s):
                raise HarnessError(
                    f"the time is up before unit {step.unit} of '{step.phase}'", "the same command goes on from here"
                )
            begun_s = time.monotonic()
            counts = self._measure(step, deadline_s)
            samples = self.arena.writer.read()
            if counts:
                self.emit(
                    {
                        "event": "unit",
                        **asdict(step),
                        **_progress(samples, step, self.of[step.phase], rule_named(self.arena.job.rule)),
                    }
                )
            longest_s = max(longest_s, time.monotonic() - begun_s)
        return samples

    def _measure(self, step: Measure, deadline_s: float | None) -> bool:
        """Whether the unit that was measured counts."""
        arena, names = self.arena, self.sides[step.phase]
        pair = Pair(
            arena.job.deployment,
            arena.writer,
            self.supply,
            step,
            arena.job.seed,
            arena.start,
            deadline_s,
            self.emit,
            rule_named(arena.job.rule).shape,
        )
        try:
            pair.run([self._half(names, turn) for turn in range(len(arena.devices))])
        except Voided as void:
            told = {"arm": void.arm, "cause": void.cause, "reason": void.reason}
            self.emit({"event": "void", **asdict(step), **told})
            return False
        return True

    def _half(self, names: tuple[str, str], turn: int) -> tuple[dict[str, Contestant], dict[str, Device]]:
        """Contestants and devices of one half; the second half exchanges the devices."""
        arena, contestants, devices = self.arena, {}, {}
        for index, (arm, name) in enumerate(zip("ab", names, strict=True)):
            place = (index + turn) % len(arena.devices)
            devices[arm] = arena.devices[place]
            contestants[arm] = Contestant(arena.job.arms[name], arena.store(name), arena.enclosures[place])
        return contestants, devices


def _progress(samples: Samples, step: Measure, of: int, rule: Rule) -> dict[str, Any]:
    """The unit's value, all values of its phase (ln-ratios), and what they come to so far, as people read it.

    `look` says which look at the phase this unit completes, 0 for none; a unit that the chart voids has no `gain`.
    """
    values = [reading(unit).value for unit in samples.of(step.phase)]
    used = [each.value for each in used_readings(samples, step.phase)]
    bounds = [bound(used, BOUND) for bound in (statistics.mean_lower, statistics.mean_upper)] if len(used) > 1 else None
    looks = {"screen": (rule.screen,), "confirm": rule.looks}.get(step.phase, ())
    return {
        "value": values[-1],
        "values": values,
        "units": len(used),
        "of": of,
        "gain": math.expm1(math.fsum(used) / len(used)) if used else None,
        "interval": None if bounds is None else [math.expm1(float(bound)) for bound in bounds],
        "look": looks.index(len(used)) + 1 if len(used) in looks else 0,
    }
