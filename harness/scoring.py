"""`python -m harness force`: trusted stock scores every token that a system said, and the decision follows.

First come the tokens that were timed, where they are given (`harness/timed.py`).
The system answers requests in the phase `force` (`calibrate`: stock itself, in the phase `reference`), enclosed and
untimed; answers that were timed before in the same file are scored too.  Then the deployment's stock, with its FP32
head, reads each answer on its own prefix, whatever the system.  Large mismatches are looked at twice more: with stock's
own head, and with another chunk length.  All of it is in `DIR/samples.jsonl`, and the same command goes on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.arena import Arena, open_arena
from harness.chain import chained, score_chain
from harness.client import Engine, Start
from harness.command import Emit, deadline_after, is_past
from harness.conversation import ANSWER_TOK, converse, stop_ids_of
from harness.errors import EngineError, HarnessError, Refused, Violation
from harness.forced import first_look
from harness.forcing import STANDARD, Limits
from harness.job import read_job
from harness.launch import refuse_noise, refuse_sandbox
from harness.request import Request, read_requests
from harness.samples import Line, Samples, answer_line, read
from harness.scored import SYSTEM_PHASES, Event, unchecked
from harness.timed import PHASE, take_over
from harness.verdict import forcing_verdict
from harness.wire import Scores

__all__ = ["CHUNK", "STOCK", "SYSTEM", "Work", "calibrate", "force"]

CHUNK = 8  # requests of one unit: what a kill in its midst costs is one answer, but a void costs them all
OTHER_ROWS = 256  # of a prefill pass, where stock's default is 512


@dataclass(frozen=True)
class Side:
    """Who answers in which phase, and with which heads its answers are scored."""

    arm: str
    phase: str
    scored: tuple[str, ...]  # phases
    heads: tuple[str, ...]


SYSTEM = Side("a", "force", SYSTEM_PHASES, ("fp32",))
STOCK = Side("stock", "reference", ("reference",), ("fp32", "model"))


def force(
    job: Path,
    out: Path,
    reference: Path,
    minutes: float | None,
    emit: Emit,
    *,
    timed: Path | None = None,
    sandbox: bool = True,
    start: Start = Engine.start,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """The verdict on arm `a`, against what stock's calibration in the file `reference` says of stock.

    timed: samples of the finished campaign of the same pair; the first look is at what was timed there, and at answers
    to as many requests more as the rule needs.
    `limits` are the judge's own; smaller ones are for tests on a handful of answers.
    """
    refuse_sandbox(read_job(job), sandbox=sandbox)
    _check_greedy(job)
    calibration = read(reference)
    with open_arena(job, out, ("a", "b", "stock"), sandbox=sandbox, start=start) as arena:
        take_over(arena.writer, timed, begun=bool(arena.asked()))
        work = Work(arena, SYSTEM, emit, deadline_after(minutes))
        requests, looks = _left(arena), _looks(arena)
        enough = _enough(arena, calibration, limits or STANDARD) if timed else None
        for look, upto in enumerate(looks, start=1):
            if not work.answer(requests, upto, enough if look == 1 else None):
                break  # a fault of the system; what it said before is not asked for
            if look > 1 and not _grew(arena.writer.read()):
                break
            work.score()
            work.recheck(calibration)
            if len(arena.writer.read().looks) < look:
                arena.writer.add("look", what="forcing")
                emit({"event": "look", "look": look})
            if forcing_verdict(arena.writer.read(), calibration, limits)["answer"] != "undecided":
                break
        return work.verdict(calibration, limits)


def _looks(arena: Arena) -> list[int]:
    """How many requests each look has answers to: the job's number, then all."""
    every, first = len(arena.requests), arena.job.units
    return [first, every] if 0 < first < every else [every]


def _left(arena: Arena) -> list[Request]:
    """The requests of the job but for those that were timed: each is asked once."""
    timed = {said["session"] for unit in arena.writer.read().of(PHASE) for said in unit.answers}
    return [request for request in arena.requests if request.id not in timed]


def _enough(arena: Arena, calibration: Samples, limits: Limits) -> Callable[[], bool]:
    """Whether the answers so far are what a first look wants."""
    wanted = first_look(calibration, limits)
    return lambda: wanted.met_by(arena.writer.read())


def _grew(samples: Samples) -> bool:
    """Whether there is an answer that no look has seen."""
    return not samples.looks or any(unit.at > samples.looks[-1] for unit in samples.of(*SYSTEM_PHASES))


def calibrate(
    job: Path,
    out: Path,
    minutes: float | None,
    emit: Emit,
    *,
    sandbox: bool = True,
    start: Start = Engine.start,
) -> Samples:
    """Stock's own answers, mismatches and margins: what every forcing on this deployment and card is held against."""
    _check_greedy(job)
    with open_arena(job, out, ("a", "b", "stock"), sandbox=sandbox, start=start) as arena:
        work = Work(arena, STOCK, emit, deadline_after(minutes))
        if not work.answer(arena.requests):
            raise HarnessError("stock failed in its own calibration", f"'{arena.writer.path}' says how")
        work.score()
        work.recheck(arena.writer.read())
        return arena.writer.read()


def _check_greedy(job_file: Path) -> None:
    job = read_job(job_file)
    refuse_noise(job, read_requests(job.requests))


class Work:
    """The steps of one command, each of which goes on where a killed one was."""

    def __init__(self, arena: Arena, side: Side, emit: Emit, deadline_s: float | None) -> None:
        self.arena, self.side, self.emit, self._deadline_s = arena, side, emit, deadline_s

    def answer(
        self, requests: Sequence[Request], upto: int | None = None, enough: Callable[[], bool] | None = None
    ) -> bool:
        """The requests answered, in units of some; false where the system failed.

        `upto`: only the units with the first so many; a unit is answered whole, and the same whatever `upto` is.
        `enough` is asked before each unit whether to stop.
        """
        arena, side = self.arena, self.side
        units = [requests[at : at + CHUNK] for at in range(0, len(requests), CHUNK)]
        units = units if upto is None else units[: -(-upto // CHUNK)]
        samples = arena.writer.read()
        done = {unit.number for unit in samples.of(side.phase)}
        if any(void.phase == side.phase for void in samples.voids):
            return False
        left = [number for number in range(len(units)) if number not in done]
        if not left or (enough and enough()):
            return True
        asked = arena.asked(side.phase)
        trusted = None if side.arm == "stock" else arena.ready("stock")
        number = left[0]
        try:
            with arena.engine(side.arm) as (engine, ready):
                # What ends an answer or a session is not the candidate's to say: it could keep answers short.
                if trusted is not None and not ready.same_model(trusted):
                    raise Violation("the engine tells another vocabulary, context or stop ids than stock")
                for number in left:
                    if number != left[0] and enough and enough():
                        break
                    for request in (each for each in units[number] if each.id not in asked):
                        self._watch()
                        talk = converse(engine, ready, arena.text, request, arena.job.deployment.sampling, ANSWER_TOK)
                        self._keep(number, request, talk)
                    arena.writer.add("unit", phase=side.phase, unit=number, first=[side.arm], leads=[[]])
                    self.emit({"event": "answered", "arm": side.arm, "unit": number, "units": len(units)})
        except EngineError as error:
            if isinstance(error, Refused) and error.exit_code != 1:
                raise
            fault = "a" if side.arm == "a" else None
            arena.writer.add("void", phase=side.phase, unit=number, arm=fault, cause=error.cause, reason=error.message)
            self.emit({"event": "void", "unit": number, "cause": error.cause, "reason": error.message})
            return False
        return True

    def _keep(self, number: int, request: Request, talk: Iterator[tuple[Any, Any]]) -> None:
        """Writes the answers of one request, whole or not at all."""
        where = {"phase": self.side.phase, "unit": number}
        lines = [
            where | answer_line(asked, answer, self.side.arm, session=request.id, family=request.family)
            for asked, answer in talk
        ]
        self.arena.writer.add_all(lines)

    def score(self) -> None:
        """Every answer of the side scored with every head, one verifier after the other."""
        for head in self.side.heads:
            samples = self.arena.writer.read()
            left = [
                said
                for unit in samples.of(*self.side.scored)
                for said in unit.said(self.side.arm)
                if (unit.phase, unit.number, self.side.arm, said["request"], head) not in samples.forced
            ]
            if left:
                self._score(head, left)

    def _score(self, head: str, left: Sequence[Line]) -> None:
        with self.arena.engine("stock", head=head) as (verifier, ready):
            _check_stops(left, stop_ids_of(ready, self.arena.text))
            done = 0
            for chain in chained(left):
                self._watch()
                self.arena.writer.add_all(
                    _forced_line(said, scores, head)
                    for said, scores in zip(chain, score_chain(verifier, chain), strict=True)
                )
                done += len(chain)
                self.emit({"event": "scored", "arm": self.side.arm, "head": head, "answers": done, "of": len(left)})

    def recheck(self, calibration: Samples) -> None:
        """What stock's own head says on the prefix of every event, and the verifier at another chunk length."""
        samples = self.arena.writer.read()
        own = calibration if self.side.arm == "a" else None
        events = [event for event in unchecked(samples, own) if event.arm == self.side.arm]
        if not events:
            return
        units = samples.of(*self.side.scored)
        said = {line["request"]: line for unit in units for line in unit.said(self.side.arm)}
        stock = self._again(events, said, head="model")
        shape = self._again(events, said, head="fp32", options={"prefill_rows": OTHER_ROWS})
        self.arena.writer.add_all(
            {
                "type": "recheck",
                "arm": event.arm,
                "request": event.request,
                "at": event.at,
                "stock": one,
                "shape": other,
            }
            for event, one, other in zip(events, stock, shape, strict=True)
        )

    def _again(self, events: Sequence[Event], said: dict[str, Line], **changed: object) -> list[int]:
        """The best token at each event, by a verifier with other settings.

        A session is scored once, whatever the number of its events: a system that is wrong everywhere must not cost
        the judge a pass a token.
        """
        best: dict[str, list[int]] = {}
        asked = {event.request for event in events}
        with self.arena.engine("stock", **changed) as (verifier, _):
            for chain in chained(line for request, line in said.items() if request in asked):
                self._watch()
                for line, scores in zip(chain, score_chain(verifier, chain), strict=True):
                    best[line["request"]] = scores.argmax
        return [best[event.request][event.at] for event in events]

    def verdict(self, calibration: Samples, limits: Limits | None) -> dict[str, Any]:
        """What the samples say."""
        verdict = forcing_verdict(self.arena.writer.read(), calibration, limits)
        self.emit({"event": "verdict", "verdict": verdict})
        return verdict

    def _watch(self) -> None:
        if is_past(self._deadline_s):
            raise HarnessError("the time is up with answers left to judge", "the same command goes on from here")


def _check_stops(answers: Sequence[Line], stop_ids: Sequence[int]) -> None:
    """What was timed was ended by what the current best told of the model, and that may not be what stock tells."""
    for said in answers:
        if set(said["stop_ids"]) != set(stop_ids):
            raise HarnessError(
                f"the answer to '{said['request']}' was ended by other stop ids than stock tells",
                "it was asked of systems that both tell another model than stock: no forcing can accept that",
            )


def _forced_line(said: Line, scores: Scores, head: str) -> Line:
    """The `forced` line of one answer."""
    named = {name: said[name] for name in ("phase", "unit", "arm", "request", "session")}
    lists = {name: getattr(scores, name) for name in ("start", "argmax", "margin", "rank", "kept")}
    return {"type": "forced", **named, "head": head, **lists}
