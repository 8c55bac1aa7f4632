"""`python -m harness run`: an arm of a job answers its requests; every answer is kept as soon as it is there."""

import datetime
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from harness import shape
from harness.answer import Answer
from harness.arena import open_grounds
from harness.client import LOAD_S, Engine, Start
from harness.command import Emit, deadline_after, is_past
from harness.conversation import Conversation, spoken
from harness.errors import Crashed, HarnessError, Hung, Usage, plain
from harness.file import read_own
from harness.job import Job, read_job
from harness.journal import Journal
from harness.launch import launch, refuse_sandbox, settings_of
from harness.machine import card
from harness.request import Request, read_requests
from harness.shape import constant, integer, items, number, one_of, record
from harness.tau import Tally, tally, tally_of
from harness.text import Stream, Text, load_text_for
from harness.wire import Generate, Ready

__all__ = ["Answers", "Runner", "counts_of", "keep_log", "patience", "run"]

_ELSEWHERE = "give another folder"
_MOST_KEY_BYTES, _MOST_FULL_BYTES = 4 << 10, 64 << 20

# noted(request, answer): looks at an answer before it is kept, and may put more into it.
Noted = Callable[[Request, dict[str, Any]], None]

_MOST_TOK, _MOST_ID = 2**31 - 1, 2**32 - 1

ANSWER = record(
    {
        "v": constant(1),
        "kind": constant("answer"),
        "request": shape.text,
        "turn": integer(),
        "prompt_tok": integer(1, _MOST_TOK),
        "ids": items(integer(0, _MOST_ID)),
        "reason": one_of("stop", "length", "cancelled"),
        "lines": items(integer(1, _MOST_TOK)),
        "prefill_s": number(0),
        "decode_s": number(0),
    },
    {"category": shape.text, "text": shape.text, "logprobs": items(number()), "logits_sha256": shape.text},
)


def run(
    job_file: Path,
    out: Path,
    minutes: float | None,
    emit: Emit,
    *,
    digest: bool = False,
    sandbox: bool = False,
    start: Start = Engine.start,
) -> Tally:
    """Answers the requests of the job in `job_file` into `out/answers.jsonl`; returns the counts of all answers there.

    Answers that are in the file already are not asked again.
    digest: every answer holds the digest of its logits.  sandbox: the engine prepares and answers enclosed, as where
    it is judged.
    `emit` gets the events `ready`, `text`, `answer` and `end` of docs/harness.md as they happen.
    """
    deadline_s = deadline_after(minutes)
    job = read_job(job_file)
    requests = read_requests(job.requests)
    arm = job.arms["a"]
    arm.check()
    with Answers(out, f"{job.key} digest" if digest else job.key) as answers:
        left = [conversation for conversation in answers.resume(requests) if not conversation.done]
        if left:
            opened = _enclosed(job, answers, start) if sandbox else _launched(job, answers, start, deadline_s)
            _answer(job, left, answers, emit, deadline_s, opened, digest=digest)
        counts = tally_of(answers.all)
        unfinished = sum(not conversation.done for conversation in left)
        emit({"event": "end", "left": unfinished, "counts": counts_of(counts)})
    if unfinished:
        raise HarnessError(
            f"the time is up with {unfinished} of {len(requests)} requests left", "the same command goes on from here"
        )
    return counts


@contextmanager
def _launched(job: Job, answers: "Answers", start: Start, deadline_s: float | None) -> Iterator[tuple[Engine, Ready]]:
    """The engine as the user's own process."""
    with launch(job.deployment, job.arms["a"], start, cache=answers.folder / "cache") as engine:
        yield engine, engine.load(settings_of(job.deployment, job.arms["a"], engine), patience(LOAD_S, deadline_s))


@contextmanager
def _enclosed(job: Job, answers: "Answers", start: Start) -> Iterator[tuple[Engine, Ready]]:
    """The engine in the judge's sandbox, after it prepared there."""
    refuse_sandbox(job, sandbox=True)
    with open_grounds(job, answers.folder, sandbox=True, start=start) as grounds, grounds.engine("a") as opened:
        yield opened


def _answer(
    job: Job,
    left: list[Conversation],
    answers: "Answers",
    emit: Emit,
    deadline_s: float | None,
    opened: AbstractContextManager[tuple[Engine, Ready]],
    *,
    digest: bool,
) -> None:
    deployment = job.deployment
    try:
        with opened as (engine, ready):
            text = load_text_for(Path(deployment.target.path), [conversation.request for conversation in left])
            now = datetime.datetime.now(datetime.UTC)
            about = {"engine": engine.hello.engine, "version": engine.hello.version}
            emit({"event": "ready", **about, **asdict(ready), "card": card(deployment.device, now)})
            Runner(job, engine, ready, text, answers, emit, digest=digest).work(deque(left), deadline_s)
    except Hung:
        if not is_past(deadline_s):
            raise
    except Crashed as error:
        keep_log(error, answers.folder)
        raise


def keep_log(error: Crashed, folder: Path) -> None:
    """Writes the last of an engine's output down, where the error's hint says."""
    log = folder / "engine.log"
    log.write_text(error.tail)
    error.hint = plain(f"the last of its output is in '{log}'")


def patience(longest_s: float, deadline_s: float | None) -> float:
    """How long to wait for an engine: `longest_s`, or what is left until the deadline."""
    return longest_s if deadline_s is None else min(longest_s, deadline_s - time.monotonic())


class Keeper(Protocol):
    """Where a runner's answers go."""

    def add(self, answer: dict[str, Any]) -> None: ...

    def add_full(self, conversation: Conversation) -> None: ...


class Runner:
    """Keeps `concurrency` requests open until all have their answers, or, `stopped`, those that are open."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        ready: Ready,
        text: Text | None,
        answers: Keeper,
        emit: Emit,
        noted: Noted = lambda request, answer: None,
        *,
        digest: bool = False,
    ) -> None:
        self.job, self.engine, self.ready, self.text, self.answers, self.emit = job, engine, ready, text, answers, emit
        self.noted = noted
        self.digest = digest
        self.stopped = False
        self.active: dict[str, tuple[Conversation, Generate]] = {}
        self.streams: dict[str, Stream] = {}

    def work(self, waiting: deque[Conversation], deadline_s: float | None) -> None:
        while (waiting and not self.stopped) or self.active:
            while waiting and not self.stopped and len(self.active) < self.job.deployment.concurrency:
                self._ask(waiting.popleft())
            if not self.active:
                continue  # what was left were sessions whose context is full
            answer = self.engine.next_answer(self._show, deadline_s)
            if answer is None:
                return
            conversation, asked = self.active.pop(answer.id)
            self._keep(conversation, asked, answer)
            if not conversation.done and not self.stopped:
                self._ask(conversation)

    def _ask(self, conversation: Conversation) -> None:
        asked = conversation.ask(self.ready, self.text, self.job.deployment.sampling, self.job.max_tokens)
        if asked is None:
            self.answers.add_full(conversation)
            return
        asked = replace(asked, digest=self.digest)
        self.active[asked.id] = conversation, asked
        if self.text is not None:
            self.streams[asked.id] = self.text.stream()
        self.engine.submit(asked)

    def _show(self, name: str, ids: list[int]) -> None:
        if name in self.streams:
            conversation, asked = self.active[name]
            self._emit_text(conversation, self.streams[name].push(spoken(asked, ids)))

    def _emit_text(self, conversation: Conversation, piece: str) -> None:
        if piece:
            turn = len(conversation.said)
            self.emit({"event": "text", "request": conversation.request.id, "turn": turn, "text": piece})

    def _keep(self, conversation: Conversation, asked: Generate, answer: Answer) -> None:
        kept: dict[str, Any] = {
            "v": 1,
            "kind": "answer",
            "request": conversation.request.id,
            "turn": len(conversation.said),
            "prompt_tok": answer.prompt_tok,
            "ids": answer.ids,
            "reason": answer.reason,
            "lines": answer.lines,
            "prefill_s": answer.prefill_s,
            "decode_s": answer.decode_s,
        }
        if answer.logits_sha256 is not None:
            kept["logits_sha256"] = answer.logits_sha256
        if self.text is not None:
            self._emit_text(conversation, self.streams.pop(answer.id).finish())
        conversation.hear(asked, answer, self.text)
        if self.text is not None:
            kept["text"] = conversation.said[-1]
        self.noted(conversation.request, kept)
        self.answers.add(kept)
        self.emit({"event": "answer", "answer": kept, "counts": counts_of(tally(answer.ids, answer.lines))})


def counts_of(counts: Tally) -> dict[str, float | None]:
    """The counts of docs/harness.md."""
    return {**asdict(counts), "tau": counts.tau, "tau_all": counts.tau_all}


class Answers:
    """The file of answers: one writer, one line an answer, on the disk before the next request is asked.

    The file `full` beside it has the ids of sessions that ended with their context, one JSON string a line.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.all: list[dict[str, Any]] = []
        self._key = key
        self._journal = Journal(folder / "answers.jsonl", "run")

    def __enter__(self) -> "Answers":
        self._journal.__enter__()
        try:
            (self.folder / "cache").mkdir(exist_ok=True)
            self._check_key()
            self._read()
        except BaseException:
            self._journal.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    def resume(self, requests: list[Request]) -> list[Conversation]:
        """A conversation for each request, with the answers that the file has."""
        conversations = {request.id: Conversation(request) for request in requests}
        for answer in self.all:
            conversation = conversations.get(answer["request"])
            if conversation is None or conversation.done or answer["turn"] != len(conversation.said):
                out_of_place = f"'{answer['request']}' {answer['turn']}"
                raise Usage(f"'{self.folder}' holds an answer out of place: {out_of_place}", _ELSEWHERE)
            conversation.said.append(answer.get("text", ""))
        for name in map(self._full_name, self._full_lines()):
            if name not in conversations:
                raise Usage(f"'{self.folder / 'full'}' names a session that the job does not ask: '{name}'", _ELSEWHERE)
            conversations[name].full = True
        return list(conversations.values())

    def add_full(self, conversation: Conversation) -> None:
        """Keeps that a session's next turn does not fit, so that no engine has to start to find out again."""
        lines = [*self._full_lines(), json.dumps(conversation.request.id)]
        self._replace("full", "".join(line + "\n" for line in lines))

    def add(self, answer: dict[str, Any]) -> None:
        """Writes one answer."""
        self._journal.append([answer])
        self.all.append(answer)

    def _check_key(self) -> None:
        key = read_own(self.folder / "key", _MOST_KEY_BYTES, _ELSEWHERE)
        if key is None:
            if self._journal.lines():
                raise Usage(f"'{self.folder}' holds answers, but not of which job", _ELSEWHERE)
            self._replace("key", self._key + "\n")
        elif key.strip() != self._key:
            raise Usage(f"'{self.folder}' holds answers of another job", _ELSEWHERE)

    def _full_lines(self) -> list[str]:
        return (read_own(self.folder / "full", _MOST_FULL_BYTES, _ELSEWHERE) or "").splitlines()

    def _full_name(self, line: str) -> str:
        try:
            name = shape.loads(line)
            shape.text(name, "the line")
        except shape.Mismatch as error:
            raise Usage(f"'{self.folder / 'full'}': {error}", _ELSEWHERE) from None
        return str(name)

    def _replace(self, name: str, content: str) -> None:
        """Writes a small file whole or not at all."""
        fresh = self.folder / f"{name}.new"
        fresh.write_text(content)
        fresh.replace(self.folder / name)

    def _read(self) -> None:
        for number_, line in enumerate(self._journal.lines(), start=1):
            try:
                value = shape.loads(line)
                ANSWER(value, "the answer")
                if sum(value["lines"]) != len(value["ids"]):
                    raise shape.Mismatch("the answer 'lines' are not of as many tokens as its 'ids'")
            except shape.Mismatch as error:
                raise Usage(f"{self._journal.path}:{number_}: {error}", _ELSEWHERE) from None
            self.all.append(value)
