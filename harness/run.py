"""`python -m harness run`: an arm of a job answers its requests; every answer is kept as soon as it is there."""

import datetime
import fcntl
import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from harness import shape
from harness.answer import Answer
from harness.client import LOAD_S, Engine, stock_command
from harness.errors import Crashed, HarnessError, Hung, Missing, Unsupported, Usage
from harness.job import Job, read_job
from harness.machine import card
from harness.options import convert
from harness.request import Request, read_requests, request_seed
from harness.shape import constant, integer, items, number, one_of, record
from harness.tau import Tally, tally
from harness.text import Stream, Text, load_text
from harness.tree import tree_id
from harness.wire import Generate, Ready

__all__ = ["run"]

Emit = Callable[[dict[str, Any]], None]

ANSWER = record(
    {
        "v": constant(1),
        "kind": constant("answer"),
        "request": shape.text,
        "turn": integer(),
        "prompt_tok": integer(1),
        "ids": items(integer()),
        "reason": one_of("stop", "length", "cancelled"),
        "lines": items(integer(1)),
        "prefill_s": number(0),
        "decode_s": number(0),
    },
    {"text": shape.text, "logprobs": items(number()), "logits_sha256": shape.text},
)


def run(job_file: Path, out: Path, minutes: float | None, emit: Emit) -> Tally:
    """Answers the requests of the job in `job_file` into `out/answers.jsonl`; returns the counts of all answers there.

    Answers that are in the file already are not asked again.
    `emit` gets the events `ready`, `text`, `answer` and `end` of docs/harness.md as they happen.
    """
    deadline_s = None if minutes is None else time.monotonic() + 60 * minutes
    job = read_job(job_file)
    requests = read_requests(job.requests)
    arm = job.arms["a"]
    if not arm.folder.is_dir():
        raise Missing(f"arm 'a' is not there: no folder '{arm.folder}'")
    if (found := tree_id(arm.folder)) != arm.tree:
        raise Usage(f"arm 'a' in '{arm.folder}' is not the tree that the job names: {found[:12]}, not {arm.tree[:12]}")
    with _Answers(out, job.key) as answers:
        left = [conversation for conversation in answers.resume(requests) if not conversation.done]
        if left:
            _answer(job, left, answers, emit, deadline_s)
        counts = sum((tally(answer["ids"], answer["lines"]) for answer in answers.all), Tally())
        unfinished = sum(not conversation.done for conversation in left)
        emit({"event": "end", "left": unfinished, "counts": _counts(counts)})
    if unfinished:
        raise HarnessError(
            f"the time is up with {unfinished} of {len(requests)} requests left", "the same command goes on from here"
        )
    return counts


@dataclass
class _Conversation:
    """A request and the answers it has."""

    request: Request
    answers: list[dict[str, Any]] = field(default_factory=list)
    full: bool = False  # a session whose next turn does not fit any more

    @property
    def done(self) -> bool:
        return self.full or len(self.answers) == self.request.answers

    @property
    def wire_id(self) -> str:
        return f"{self.request.id}#{len(self.answers)}"

    def prompt(self, text: Text | None) -> list[int]:
        """The ids before the next answer: all turns so far, with the answers that they got."""
        if self.request.ids:
            return list(self.request.ids)
        assert text is not None  # checked before the engine started
        turns = self.request.turns[: len(self.answers) + 1]
        return text.chat(turns, [answer["text"] for answer in self.answers])


def _answer(job: Job, left: list[_Conversation], answers: "_Answers", emit: Emit, deadline_s: float | None) -> None:
    deployment, arm = job.deployment, job.arms["a"]
    command = deployment.command(stock_command())
    try:
        with Engine.start(command, arm.folder, answers.folder / "cache") as engine:
            text = _text(Path(deployment.target.path), any(conversation.request.turns for conversation in left))
            settings = deployment.settings(convert(arm.options, engine.hello.options))
            ready = engine.load(settings, _patience(LOAD_S, deadline_s))
            now = datetime.datetime.now(datetime.UTC)
            about = {"engine": engine.hello.engine, "version": engine.hello.version}
            emit({"event": "ready", **about, **asdict(ready), "card": card(deployment.device, now)})
            _Runner(job, engine, ready, text, answers, emit).work(deque(left), deadline_s)
    except Hung:
        if deadline_s is None or time.monotonic() < deadline_s:
            raise
    except Crashed as error:
        log = answers.folder / "engine.log"
        log.write_text(error.tail)
        error.hint = f"the last of its output is in '{log}'"
        raise


def _patience(longest_s: float, deadline_s: float | None) -> float:
    return longest_s if deadline_s is None else min(longest_s, deadline_s - time.monotonic())


def _text(path: Path, needed: bool) -> Text | None:
    """The target's tokenizer; a run of bare ids also goes without one."""
    try:
        return load_text(path)
    except (Missing, Unsupported):
        if needed:
            raise
        return None


class _Runner:
    """Keeps `concurrency` requests open until all have their answers."""

    def __init__(
        self, job: Job, engine: Engine, ready: Ready, text: Text | None, answers: "_Answers", emit: Emit
    ) -> None:
        self.job, self.engine, self.ready, self.text, self.answers, self.emit = job, engine, ready, text, answers, emit
        named = {*ready.stop_ids, *(text.stop_ids if text else ())}
        self.stop_ids = sorted(
            each for each in named if each < ready.vocabulary
        )  # a file may name more than a model has
        self.active: dict[str, _Conversation] = {}
        self.streams: dict[str, Stream] = {}

    def work(self, waiting: deque[_Conversation], deadline_s: float | None) -> None:
        while waiting or self.active:
            while waiting and len(self.active) < self.job.deployment.concurrency:
                self._ask(waiting.popleft())
            if not self.active:
                continue  # what was left were sessions whose context is full
            answer = self.engine.next_answer(self._show, deadline_s)
            if answer is None:
                return
            conversation = self.active.pop(answer.id)
            self._keep(conversation, answer)
            if not conversation.done:
                self._ask(conversation)

    def _ask(self, conversation: _Conversation) -> None:
        request = conversation.request
        prompt = conversation.prompt(self.text)
        context = min(self.ready.context, request.context_tok or self.ready.context)
        room = context - len(prompt)
        wanted = request.max_tokens or self.job.max_tokens or max(1, room)
        if wanted > room:
            if request.session:
                self.answers.add_full(conversation)
                return
            raise Usage(
                f"request '{request.id}' does not fit: {len(prompt)} prompt tokens and {wanted} new ones"
                f" exceed the context of {context}",
                "ask for fewer tokens, or raise 'context' in the deployment",
            )
        sampling = request.sampling or self.job.deployment.sampling
        name = conversation.wire_id
        self.active[name] = conversation
        if self.text is not None:
            self.streams[name] = self.text.stream()
        self.engine.submit(
            Generate(
                id=name,
                prompt=prompt,
                max_tokens=wanted,
                stop_ids=self.stop_ids,
                ignore_eos=request.ignore_eos,
                sampling=replace(sampling, seed=request_seed(sampling.seed, request.choice)),
            )
        )

    def _show(self, name: str, ids: list[int]) -> None:
        if name in self.streams:
            self._emit_text(self.active[name], self.streams[name].push(self._spoken(self.active[name].request, ids)))

    def _spoken(self, request: Request, ids: list[int]) -> list[int]:
        """`ids` without the stop id at their end: it ends the answer and is no part of the text."""
        ends = bool(ids) and not request.ignore_eos and ids[-1] in self.stop_ids
        return ids[:-1] if ends else ids

    def _emit_text(self, conversation: _Conversation, piece: str) -> None:
        if piece:
            turn = len(conversation.answers)
            self.emit({"event": "text", "request": conversation.request.id, "turn": turn, "text": piece})

    def _keep(self, conversation: _Conversation, answer: Answer) -> None:
        kept: dict[str, Any] = {
            "v": 1,
            "kind": "answer",
            "request": conversation.request.id,
            "turn": len(conversation.answers),
            "prompt_tok": answer.prompt_tok,
            "ids": answer.ids,
            "reason": answer.reason,
            "lines": answer.lines,
            "prefill_s": answer.prefill_s,
            "decode_s": answer.decode_s,
        }
        if self.text is not None:
            self._emit_text(conversation, self.streams.pop(answer.id).finish())
            kept["text"] = self.text.decode(self._spoken(conversation.request, answer.ids))
        self.answers.add(kept)
        conversation.answers.append(kept)
        self.emit({"event": "answer", "answer": kept, "counts": _counts(tally(answer.ids, answer.lines))})


def _counts(counts: Tally) -> dict[str, float | None]:
    return {**asdict(counts), "tau": counts.tau, "tau_all": counts.tau_all}


class _Answers:
    """The file of answers: one writer, one line an answer, on the disk before the next request is asked.

    The file `full` beside it has the ids of sessions that ended with their context, one JSON string a line.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.all: list[dict[str, Any]] = []
        self._key = key
        self._file: BinaryIO

    def __enter__(self) -> "_Answers":
        path = self.folder / "answers.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "cache").mkdir(exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise Usage(f"cannot write into '{self.folder}': {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_key()
            self._read(path)
        except BlockingIOError:
            self._file.close()
            raise Usage(f"another run is writing into '{self.folder}'") from None
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def resume(self, requests: list[Request]) -> list[_Conversation]:
        """A conversation for each request, with the answers that the file has."""
        conversations = {request.id: _Conversation(request) for request in requests}
        for answer in self.all:
            conversation = conversations.get(answer["request"])
            if conversation is None or conversation.done or answer["turn"] != len(conversation.answers):
                raise Usage(f"'{self.folder}' holds an answer out of place: '{answer['request']}' {answer['turn']}")
            conversation.answers.append(answer)
        for line in self._full_lines():
            conversations[json.loads(line)].full = True
        return list(conversations.values())

    def add_full(self, conversation: _Conversation) -> None:
        """Keeps that a session's next turn does not fit, so that no engine has to start to find out again."""
        conversation.full = True
        lines = [*self._full_lines(), json.dumps(conversation.request.id)]
        self._replace("full", "".join(line + "\n" for line in lines))

    def add(self, answer: dict[str, Any]) -> None:
        """Writes one answer."""
        self._file.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.all.append(answer)

    def _check_key(self) -> None:
        key = self.folder / "key"
        if not key.exists():
            if self._file.tell():
                raise Usage(f"'{self.folder}' holds answers, but not of which job", "give another folder")
            self._replace("key", self._key + "\n")
        elif key.read_text().strip() != self._key:
            raise Usage(f"'{self.folder}' holds answers of another job", "give another folder")

    def _full_lines(self) -> list[str]:
        full = self.folder / "full"
        return full.read_text().splitlines() if full.exists() else []

    def _replace(self, name: str, content: str) -> None:
        """Writes a small file whole or not at all."""
        fresh = self.folder / f"{name}.new"
        fresh.write_text(content)
        fresh.replace(self.folder / name)

    def _read(self, path: Path) -> None:
        self._file.seek(0)
        end = 0
        for number_, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break  # a killed run was writing it; it is asked again
            end += len(line)
            try:
                value = shape.loads(line)
                ANSWER(value, "the answer")
            except shape.Mismatch as error:
                raise Usage(f"{path}:{number_}: {error}") from None
            self.all.append(value)
        self._file.truncate(end)
