"""`python -m harness measure`: a system answers, records and is profiled; then trusted stock ranks every position.

Answers, steps and the profile come from arm `a`, lattices from arm `stock`, whatever the system drafts with.  All of it
lies in one folder (docs/records.md, measurement), whose summary is written last; the same command goes on wherever it
ended.
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
from typing import Any, NamedTuple

from harness import shape
from harness.client import LATTICE_S, LOAD_S, Engine
from harness.command import Emit, deadline_after, is_past
from harness.conversation import Conversation
from harness.errors import Crashed, EngineError, HarnessError, Hung, Missing, Unsupported, Usage, Violation
from harness.job import Job, read_job
from harness.journal import Journal
from harness.launch import launch, settings_of
from harness.machine import COMPARED, card
from harness.profile import PROFILE, Unkept, Unprofiled, check_profile, take_profile
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


class _Loaded(NamedTuple):
    """An arm's engine, what it says of the model, and the target's text."""

    engine: Engine
    ready: Ready
    text: Text | None


def measure(job_file: Path, out: Path, minutes: float | None, emit: Emit, *, profile: bool = True) -> dict[str, Any]:
    """Measures the job's arm `a` into the folder `out`, perhaps with a profile; returns the summary.

    `emit` gets `ready`, `text` and `answer` as from `run`, `measured` and `ranked` with how many answers have got
    their steps and their lattice, and `profiling`, then `profiled` or `unprofiled` (docs/harness.md).
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
        work = _Measurement(job, requests, answers, steps, times, emit, deadline_s, profile=profile)
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
    """The parts of the work and what they come to."""

    def __init__(
        self,
        job: Job,
        requests: list[Request],
        answers: Answers,
        steps: Journal,
        times: Journal,
        emit: Emit,
        deadline_s: float | None,
        *,
        profile: bool,
    ) -> None:
        self.job, self.requests, self.answers, self.steps, self.times = job, requests, answers, steps, times
        self.emit, self.deadline_s = emit, deadline_s
        self.folder = times.path.parent
        summary = answers.folder / SUMMARY
        self.held: dict[str, Any] = shape.loads(summary.read_bytes()) if summary.exists() else {}
        self.unprofiled: str | None = self.held.get("unprofiled")
        self._drop_unanswered_steps()
        self.profile_file = answers.folder / PROFILE
        self._check_profile()
        self.wants_profile = (
            profile and not self.profile_file.exists() and self.unprofiled is None and self._is_own_machine()
        )

    def late(self) -> HarnessError:
        """What to raise when the time is up."""
        asked, said, ranked = sum(each.answers for each in self.requests), len(self.answers.all), len(self._ranked())
        lacking = ", without a profile" if self.wants_profile else ""
        return HarnessError(
            f"the time is up with {said} of at most {asked} answers, and {ranked} lattices{lacking}",
            "the same command goes on from here",
        )

    # --- answers and steps ---

    def answer(self) -> None:
        """Lets arm `a` answer what is left, and be profiled after that; HarnessError where the time is up before."""
        left = [each for each in self.answers.resume(self.requests) if not each.done]
        if not left and not self.wants_profile:
            return
        with self._engine("a") as loaded:
            if left:
                self._answer(left, loaded)
            if self.wants_profile:
                self._profile(loaded, warm=not left)

    def _answer(self, left: list[Conversation], loaded: _Loaded) -> None:
        engine = loaded.engine
        engine.record(STEPS)
        told = _Records(engine.room / STEPS)

        def note(request: Request, answer: dict[str, Any]) -> None:
            if request.family is not None:
                answer["category"] = request.family
            self.steps.append(told.of(answer))
            total = sum(each.answers for each in self.requests)
            self.emit({"event": "measured", "answers": len(self.answers.all) + 1, "of": total})

        Runner(self.job, *loaded, self.answers, self.emit, note).work(deque(left), self.deadline_s)
        if any(not each.done for each in left):
            raise self.late()
        engine.record(None)

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

    # --- the profile ---

    def _profile(self, loaded: _Loaded, *, warm: bool) -> None:
        """Lets a profile of the first requests appear whole, or says why there is none."""

        def said(count: int, most: int) -> None:
            self.emit({"event": "profiling", "answers": count, "of": most})

        runner = Runner(self.job, *loaded, Unkept(), lambda event: None)
        try:
            data = take_profile(runner, self.requests, self.deadline_s, said, warm=warm)
        except Unprofiled as none:
            self.unprofiled = none.reason
            self.emit({"event": "unprofiled", "reason": none.reason, "message": none.message})
        except EngineError as error:
            error.message += ", while it was profiled (--no-profile leaves that out)"
            raise
        else:
            _replace(self.profile_file, data)
            self.emit({"event": "profiled", "steps": check_profile(self.profile_file)})
        self.wants_profile = False

    def _check_profile(self) -> None:
        """Usage where a profile lies there that is none, or not the one that the summary names."""
        if not self.profile_file.exists():
            return
        hint = "remove it: the same command takes another"
        try:
            check_profile(self.profile_file)
        except shape.Mismatch as error:
            raise Usage(f"'{self.profile_file}' is no profile: {error}", hint) from None
        named = self.held.get("files", {}).get(PROFILE)
        if named not in (None, _digest(self.profile_file)):
            raise Usage(f"'{self.profile_file}' was changed after it was taken", hint)

    def _is_own_machine(self) -> bool:
        """Whether what was measured, if the folder is finished, was measured on a machine like this one."""
        if not self.held:
            return True
        try:
            own = card(self.job.deployment.device, datetime.datetime.now(datetime.UTC))
            differing = [f"its '{name}' differs" for name in COMPARED if own[name] != self.held["card"][name]]
        except HarnessError as error:  # there is no such device
            differing = [error.message]
        if differing:
            message = f"no profile: this machine is not the one that the folder was measured on: {differing[0]}"
            self.emit({"event": "unprofiled", "reason": "machine", "message": message})
        return not differing

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
            _replace(self.folder / path.name, path.read_bytes())
            path.unlink()

    # --- the end ---

    def summarise(self) -> dict[str, Any]:
        """Writes the summary, where it is not there yet or the profile came after it, and returns it."""
        summary = self._with_profile(self.held or self._summary())
        if summary != self.held:
            _replace(self.answers.folder / SUMMARY, json.dumps(summary, indent=1).encode() + b"\n")
        return summary

    def _with_profile(self, summary: dict[str, Any]) -> dict[str, Any]:
        """The summary with what is known of the profile."""
        files = {name: digest for name, digest in summary["files"].items() if name != PROFILE}
        told = {name: value for name, value in summary.items() if name != "unprofiled"}
        if self.profile_file.exists():
            files[PROFILE] = _digest(self.profile_file)
        elif self.unprofiled is not None:
            told["unprofiled"] = self.unprofiled
        return {**told, "files": files}

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
    def _engine(self, name: str) -> Iterator[_Loaded]:
        """An arm's engine, started and loaded."""
        deployment, arm = self.job.deployment, self.job.arms[name]
        with launch(deployment, arm, cache=self.answers.folder / "cache") as engine:
            text = load_text_for(Path(deployment.target.path), self.requests)
            ready = engine.load(settings_of(deployment, arm, engine), patience(LOAD_S, self.deadline_s))
            now = datetime.datetime.now(datetime.UTC)
            about = {"arm": name, "engine": engine.hello.engine, "version": engine.hello.version}
            self.emit({"event": "ready", **about, **asdict(ready), "card": card(deployment.device, now)})
            yield _Loaded(engine, ready, text)


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


def _replace(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(data)
    fresh.replace(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
