"""`python -m harness measure`: a system answers and records its steps, then trusted stock ranks every position.

Answers and steps come from arm `a`, lattices from arm `stock`, whatever the system drafts with.  All of it lies in one
folder (docs/records.md, measurement), whose summary is written last; the same command goes on wherever it ended.
"""

import datetime
import hashlib
import itertools
import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import shape
from harness.client import LATTICE_S, LOAD_S, Engine
from harness.command import Emit, deadline_after, is_past
from harness.conversation import Conversation
from harness.errors import Crashed, HarnessError, Hung, Missing, Unsupported, Usage, Violation
from harness.job import Job, read_job
from harness.journal import Journal
from harness.launch import launch, settings_of
from harness.machine import card
from harness.request import Request, read_requests
from harness.run import Answers, Runner, counts_of, keep_log, patience
from harness.shape import constant, integer, items, number, record
from harness.tau import Tally, tally
from harness.text import Text, load_text_for
from harness.wire import Generate, Ready

__all__ = ["measure"]

SUMMARY = "measurement.json"
LATTICES = "lattices"
TIMES = "times.jsonl"  # beside the lattices: {answer, lattice_s} for each
STEPS = "steps.jsonl"  # in the engine's room too
NO_FAMILY = "none"
_ARMS = {"system": "a", "stock": "stock"}  # by their names in the summary

_STEP = record(
    {
        "v": constant(1),
        "kind": constant("steps"),
        "request": shape.text,
        **{name: integer() for name in ("step", "start", "anchor", "nodes")},
        "path": items(integer()),
        "tokens": items(integer(), least=1),
        **{f"{name}_us": number(0) for name in ("draft", "verify", "accept", "host")},
    }
)


def measure(job_file: Path, out: Path, minutes: float | None, emit: Emit) -> dict[str, Any]:
    """Measures the job's arm `a` into the folder `out`; returns the summary.

    `emit` gets `ready`, `text` and `answer` as from `run`, and `measured` and `ranked` with how many answers have got
    their steps and their lattice.
    """
    deadline_s = deadline_after(minutes)
    job = read_job(job_file)
    _check(job)
    requests = read_requests(job.requests)
    with ExitStack() as stack:
        answers = stack.enter_context(Answers(out, f"{job.key} measured"))
        steps, times = (
            stack.enter_context(Journal(path, "measurement")) for path in (out / STEPS, out / LATTICES / TIMES)
        )
        work = _Measurement(job, requests, answers, steps, times, emit, deadline_s)
        try:
            work.answer()
            work.rank()
        except Crashed as error:
            keep_log(error, out)
            raise
        except Hung:
            if not is_past(deadline_s):
                raise
            raise work.late() from None
        return work.summarise()


def _check(job: Job) -> None:
    """Raises unless the job has what a measurement needs."""
    for name in ("a", "stock"):
        if name not in job.arms:
            raise Usage(f"the job names no arm '{name}'", "a measurement needs a and stock")
    if job.deployment.engine["kind"] == "openai":
        raise Unsupported("an engine 'openai' cannot be measured: a server tells nothing of its steps")
    if job.deployment.drafter is None:
        raise Missing(
            "the deployment has no drafter, and without one there is no lattice", "name a 'drafter' in the deployment"
        )
    for arm in job.arms.values():
        arm.check()


class _Measurement:
    """The two halves of the work and what they come to."""

    def __init__(
        self,
        job: Job,
        requests: list[Request],
        answers: Answers,
        steps: Journal,
        times: Journal,
        emit: Emit,
        deadline_s: float | None,
    ) -> None:
        self.job, self.requests, self.answers, self.steps, self.times = job, requests, answers, steps, times
        self.emit, self.deadline_s = emit, deadline_s
        self.folder = times.path.parent
        self._drop_unanswered_steps()

    def late(self) -> HarnessError:
        """What to raise when the time is up."""
        asked, said, ranked = sum(each.answers for each in self.requests), len(self.answers.all), len(self._ranked())
        return HarnessError(
            f"the time is up with {said} of at most {asked} answers, and {ranked} lattices",
            "the same command goes on from here",
        )

    # --- answers and steps ---

    def answer(self) -> None:
        """Lets arm `a` answer what is left; HarnessError where the time is up before."""
        left = [each for each in self.answers.resume(self.requests) if not each.done]
        if not left:
            return
        with self._engine("a") as (engine, ready, text):
            engine.record(STEPS)
            told = _Records(engine.room / STEPS)

            def note(request: Request, answer: dict[str, Any]) -> None:
                if request.family is not None:
                    answer["category"] = request.family
                self.steps.append(told.of(answer))
                total = sum(each.answers for each in self.requests)
                self.emit({"event": "measured", "answers": len(self.answers.all) + 1, "of": total})

            Runner(self.job, engine, ready, text, self.answers, self.emit, note).work(deque(left), self.deadline_s)
        if any(not each.done for each in left):
            raise self.late()

    def _drop_unanswered_steps(self) -> None:
        """Steps are written before their answer: what has none was left by a run that was killed in between."""
        answered = [f"{each['request']}#{each['turn']}" for each in self.answers.all]
        wanted = [name for name, each in zip(answered, self.answers.all, strict=True) for _ in each["lines"][1:]]
        try:
            names = [_step(line)["request"] for line in self.steps.lines()]
        except shape.Mismatch as error:
            raise Usage(f"{self.steps.path}: {error}") from None
        if names[: len(wanted)] != wanted:
            raise Usage(f"'{self.steps.path}' does not hold the steps of the answers beside it", "give another folder")
        self.steps.cut(len(wanted))

    # --- lattices ---

    def rank(self) -> None:
        """Lets stock rank the answers that have no lattice; HarnessError where the time is up before."""
        ranked = self._ranked()
        left = [number for number in range(len(self.answers.all)) if number not in ranked]
        if not left:
            return
        with self._engine("stock") as (engine, ready, text):
            asked = list(self._asked(ready, text))
            for done, number in enumerate(left, start=len(ranked) + 1):
                if is_past(self.deadline_s):
                    raise self.late()
                begin_s = time.monotonic()
                wait_s = patience(LATTICE_S, self.deadline_s)
                made = engine.lattice(asked[number], self.answers.all[number]["ids"], f"{number:05}.lattice", wait_s)
                self.times.append([{"answer": number, "lattice_s": time.monotonic() - begin_s}])
                self._keep(made)
                self.emit({"event": "ranked", "answers": done, "of": len(self.answers.all)})

    def _ranked(self) -> set[int]:
        names = (path.stem for path in self.folder.glob("*.lattice"))
        return {int(name) for name in names if name.isdecimal()}

    def _asked(self, ready: Ready, text: Text | None) -> Iterator[Generate]:
        """The question behind each answer, in the order of the file."""
        talks = {request.id: Conversation(request) for request in self.requests}
        for answer in self.answers.all:
            talk = talks[answer["request"]]
            asked = talk.ask(ready, text, self.job.deployment.sampling, self.job.max_tokens)
            if asked is None or len(asked.prompt) != answer["prompt_tok"]:
                raise Violation("stock would be asked something else than the system was: their models differ")
            talk.said.append(answer.get("text", ""))
            yield asked

    def _keep(self, made: list[Path]) -> None:
        """Takes an answer's parts in, the first one last: where it lies, all do."""
        for path in reversed(made):
            fresh = self.folder / f"{path.name}.new"
            fresh.write_bytes(path.read_bytes())
            fresh.replace(self.folder / path.name)
            path.unlink()

    # --- the end ---

    def summarise(self) -> dict[str, Any]:
        """Writes the summary, where it is not there yet, and returns it."""
        path = self.answers.folder / SUMMARY
        if not path.exists():
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(self._summary(), indent=1) + "\n")
            fresh.replace(path)
        summary: dict[str, Any] = shape.loads(path.read_bytes())
        return summary

    def _summary(self) -> dict[str, Any]:
        job, every = self.job, self.answers.all
        files = sorted(self.folder.glob("*.lattice"))
        took = [shape.loads(line) for line in self.times.lines()]  # one that was killed behind its line has two
        header = _header(files[0])
        arms = {name: job.arms[arm].system for name, arm in _ARMS.items()}
        tallies: dict[str, Tally] = {}
        for answer in every:
            family = answer.get("category", NO_FAMILY)
            tallies[family] = tallies.get(family, Tally()) + tally(answer["ids"], answer["lines"])
        now = datetime.datetime.now(datetime.UTC)
        return {
            "v": 1,
            "kind": "measurement",
            "deployment": asdict(job.deployment),
            "deployment_digest": job.digest,
            **arms,
            **{name: header[name] for name in ("target", "drafter")},
            "counts": counts_of(sum(tallies.values(), Tally())),
            "families": {family: counts_of(tallies[family]) for family in sorted(tallies)},
            "times": {
                **{name: sum(answer[name] for answer in every) for name in ("prefill_s", "decode_s")},
                "lattice_s": sum({each["answer"]: each["lattice_s"] for each in took}.values()),
            },
            "lattice": {
                **{name: header[name] for name in ("depths", "ranks")},
                "positions": sum(len(answer["ids"]) for answer in every),
                "bytes": sum(file.stat().st_size for file in files),
            },
            "files": {name: _digest(self.answers.folder / name) for name in ("answers.jsonl", STEPS)},
            "card": card(job.deployment.device, now),
            "date": now.isoformat(timespec="seconds"),
        }

    @contextmanager
    def _engine(self, name: str) -> Iterator[tuple[Engine, Ready, Text | None]]:
        """An arm's engine, started and loaded, what it says of the model, and the target's text."""
        deployment, arm = self.job.deployment, self.job.arms[name]
        with launch(deployment, arm, cache=self.answers.folder / "cache") as engine:
            text = load_text_for(Path(deployment.target.path), self.requests)
            ready = engine.load(settings_of(deployment, arm, engine), patience(LOAD_S, self.deadline_s))
            now = datetime.datetime.now(datetime.UTC)
            about = {"arm": name, "engine": engine.hello.engine, "version": engine.hello.version}
            self.emit({"event": "ready", **about, **asdict(ready), "card": card(deployment.device, now)})
            yield engine, ready, text


class _Records:
    """The records of an engine that runs, read as they come and given out answer by answer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0  # bytes
        self._held: dict[str, list[dict[str, Any]]] = {}

    def of(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """The steps of an answer that is whole; Violation where they are not those of its lines."""
        self._take()
        name = f"{answer['request']}#{answer['turn']}"
        steps = self._held.pop(name, [])
        said, bounds = [step["tokens"] for step in steps], list(itertools.accumulate(answer["lines"]))
        wanted = [answer["ids"][low:high] for low, high in itertools.pairwise(bounds)]
        starts = [answer["prompt_tok"] + low - 1 for low in bounds[:-1]]
        if said != wanted or [step["start"] for step in steps] != starts:
            raise Violation(f"the engine recorded other steps of '{name}' than it took")
        return steps

    def _take(self) -> None:
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                step = _step(line)
            except shape.Mismatch as error:
                raise Violation(f"the engine's step records are none: {error}") from None
            self._held.setdefault(step["request"], []).append(step)


def _step(line: bytes) -> dict[str, Any]:
    value: dict[str, Any] = shape.loads(line)
    _STEP(value, "the step")
    return value


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        file.readline()
        header: dict[str, Any] = shape.loads(file.readline())
    return header


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
