"""The only client of the worker protocol (docs/protocol.md): it starts an engine, talks to it, and owns the clock.

Every reply is checked, in form and against what was asked.  An engine that breaks the protocol, ends or goes silent
is killed with its whole process group, and the error says why.  Only `Refused` leaves it running, unless it comes in
place of `hello` or for no request.

    with Engine.start(stock_command(), folder) as engine:
        engine.load(settings)
        answer = engine.generate(request)
"""

import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from harness.answer import Answer, OpenRequest
from harness.errors import EngineError, Hung, Refused, Usage, Violation
from harness.freeze import FREEZE_S
from harness.process import Process
from harness.sandbox import Enclosure
from harness.shape import Mismatch
from harness.wire import Generate, Hello, Option, Prepared, Ready, Sampling, Scores, Settings, check_reply

__all__ = ["LOAD_S", "Engine", "OnTokens", "Start", "digest_folder", "stock_command"]

START_S = 120.0  # importing torch from a cold disk
LOAD_S = 1800.0
PREPARE_S = 600.0
LATTICE_S = 3600.0  # of the longest answer, in exact mode on a CPU
PATIENCE_S = 600.0  # the longest silence in the middle of an answer
END_S = 10.0

OnTokens = Callable[[str, list[int]], None]


def stock_command() -> list[str]:
    """The command that runs the engine of a system tree, with the interpreter that runs the harness."""
    return [sys.executable, "-P", "-s", "-m", "stock.worker"]


class Engine:
    """A running engine, ready for a model; use it in a `with` block."""

    def __init__(self, process: Process) -> None:
        self.ready: Ready | None = None
        self.patience_s = PATIENCE_S
        self._process: Process | None = process
        self._open: dict[str, OpenRequest] = {}
        self._asked: set[str] = set()
        self._late_cancels: set[str] = set()  # done before our `cancel` arrived: the engine may not know them any more
        self._scored = 0

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        folder: Path,
        cache: Path | None = None,
        enclosure: Enclosure | None = None,
        passed: Sequence[str] = (),
    ) -> Self:
        """Starts `command` on the exported system tree `folder`; it wakes up while the caller does other things.

        `--in-fd 3 --out-fd 4` is appended.  `cache` keeps compiled kernels; without it they vanish with the engine.
        A tree that is not trusted needs an `enclosure`, whose `settings` say what the engine is to load.
        `passed` are variables of ours that it gets beside those that every engine does.
        """
        return cls(Process(command, folder, cache, os.environ, enclosure, passed))

    @functools.cached_property
    def hello(self) -> Hello:
        """The engine's first words, read when they are first needed."""
        try:
            reply, _ = self._receive(START_S)
        except Hung:
            self.kill()
            raise
        if reply["op"] == "error":
            self.kill()  # it ends now anyway
            raise Refused(reply["code"], reply["message"], None)
        if reply["op"] != "hello":
            self._break(f"'{reply['op']}' where 'hello' belongs")
        options = {name: Option(**option) for name, option in reply["options"].items()}
        return Hello(reply["engine"], reply["version"], options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()

    @property
    def pid(self) -> int:
        """Process id of the engine, and of its process group."""
        return self._running().pid

    @property
    def open_ids(self) -> list[str]:
        """The requests that are not done, oldest first."""
        return list(self._open)

    def watch(self, check: Callable[[], None]) -> None:
        """Calls `check` about every second of waiting for the engine; what it raises ends the engine."""
        self._running().watch = check

    # --- models ---

    def load(self, settings: Settings, patience_s: float = LOAD_S) -> Ready:
        """Loads a model; a second load replaces the first."""
        self.ready = Ready(**self._ask("load", "ready", patience_s, **settings.fields()))
        self._asked.clear()
        return self.ready

    def prepare(
        self, settings: Settings, folder: Path, patience_s: float = PREPARE_S, inside: Path | None = None
    ) -> Prepared:
        """Lets the engine write what it wants into the empty `folder`; the process ends with it.

        `inside` is where an enclosed engine sees that folder.
        """
        told = str(inside or folder)
        prepared = Prepared(**self._ask("prepare", "prepared", patience_s, **settings.fields(), dir=told))
        status = self._running().wait(END_S)
        self.kill()
        if status is None:
            raise Hung(f"the engine did not end within {END_S:g} s after 'prepared'")
        if status != 0:
            raise Violation(f"the engine ended with status {status} after 'prepared'")
        if digest_folder(folder) != prepared:
            raise Violation("the engine broke the protocol: 'prepared' does not state what the folder holds")
        return prepared

    def stats(self) -> dict[str, float]:
        """The engine's counters: its own word, never evidence."""
        counters: dict[str, float] = self._ask("stats", "stats", self.patience_s)["counters"]
        return counters

    # --- requests ---

    def generate(self, request: Generate, on_tokens: OnTokens | None = None) -> Answer:
        """The answer to one request; `on_tokens(id, ids)` sees tokens as they come, and may `cancel`."""
        self.submit(request)
        answer = self.next_answer(on_tokens)
        assert answer is not None  # there was no deadline
        return answer

    def submit(self, request: Generate) -> None:
        """Sends a request without waiting for it; as many may be open as `Settings.requests` said."""
        vocabulary = self._loaded().vocabulary
        if request.id in self._open:
            raise ValueError(f"request '{request.id}' is open already")
        if request.prompt and max(request.prompt) >= vocabulary:
            raise Usage(f"request '{request.id}' has id {max(request.prompt)}, outside the vocabulary of {vocabulary}")
        self._check_silent()
        self._asked.add(request.id)
        self._open[request.id] = OpenRequest(request, self._send("generate", **asdict(request)))

    def cancel(self, request: str) -> None:
        """Asks the engine to end an open request; its answer still comes, most likely with reason `cancelled`."""
        if not self._open[request].cancelled:
            self._open[request].cancelled = True
            self._send("cancel", id=request)

    def next_answer(self, on_tokens: OnTokens | None = None, deadline_s: float | None = None) -> Answer | None:
        """The next finished answer among the open requests; None when `time.monotonic()` passes `deadline_s` first.

        Raises `Refused` for a request that the engine refuses; the others stay open.
        """
        if not self._open:
            raise ValueError("no request is open")
        while True:
            patience_s = self.patience_s
            if deadline_s is not None:
                patience_s = min(patience_s, deadline_s - time.monotonic())
            try:
                reply, read_ns = self._receive(patience_s)
            except Hung:
                if patience_s < self.patience_s:
                    return None
                self.kill()
                raise
            answer = self._take(reply, read_ns, on_tokens)
            if answer is not None:
                return answer

    def score(self, ids: list[int], start: int, sampling: Sampling) -> Scores:
        """What the engine thinks of `ids[start:]`, each given all before it."""
        self._loaded()
        self._scored += 1
        name, count = f"score-{self._scored}", len(ids) - start
        reply = self._ask("score", "scores", self.patience_s, id=name, ids=ids, start=start, sampling=asdict(sampling))
        if reply.pop("id") != name or reply["start"] != start:
            self._break("'scores' answers another question")
        if any(len(column) != count for column in reply.values() if isinstance(column, list)):
            self._break(f"'scores' does not hold one item for each of {count} positions")
        self._check_vocabulary(reply["argmax"])
        return Scores(**reply)

    # --- what an engine tells of itself ---

    @property
    def room(self) -> Path:
        """The folder that the engine writes files into; it goes with the engine."""
        return self._running().room

    def record(self, file: str | None) -> None:
        """Lets the engine write step records into `file` of its room from now on; None ends them."""
        self._ask("record", "ok", self.patience_s, on=file is not None, file=file)

    def profile(self, file: str | None) -> None:
        """Lets the engine write a profile into `file` of its room from now on; None ends it.  Not while it records."""
        self._ask("profile", "ok", self.patience_s, on=file is not None, file=file)

    def lattice(self, request: Generate, ids: list[int], file: str, patience_s: float = LATTICE_S) -> list[Path]:
        """The files in the engine's room, part by part, with what its drafter proposes at each of `ids`.

        `ids` answered `request`, whose id and sampling the lattice gets.
        """
        sampling, start = asdict(request.sampling), len(request.prompt)
        told = {"id": request.id, "ids": [*request.prompt, *ids], "start": start, "sampling": sampling, "file": file}
        reply = self._ask("lattice", "lattice", patience_s, **told)
        if (reply["id"], reply["file"]) != (request.id, file):
            self._break("'lattice' answers another question")
        name = Path(file)
        parts = [name.with_name(f"{name.stem}.{part}{name.suffix}") for part in range(1, reply["parts"])]
        files = [self.room / part for part in (name, *parts)]
        digest = hashlib.sha256()
        for path in files:
            if path.is_symlink() or not path.is_file():
                self._break(f"'lattice' tells of '{path.name}', and no such file is there")
            digest.update(path.read_bytes())
        if digest.hexdigest() != reply["digest"]:
            self._break("'lattice' does not state what its files hold")
        return files

    # --- standing still ---

    def freeze(self, patience_s: float = FREEZE_S) -> None:
        """Stops the engine with all that it started, between requests; kills it when it cannot be seen stopped."""
        if self._open:
            raise ValueError("'freeze' while requests are open")
        self._or_kill(lambda: self._running().freeze(patience_s))

    def thaw(self) -> None:
        """Lets the engine go on; kills it, and raises `Violation`, when it ran while it was frozen."""
        self._or_kill(self._running().thaw)

    def _or_kill(self, act: Callable[[], None]) -> None:
        try:
            act()
        except EngineError:
            self.kill()
            raise

    # --- the end ---

    def close(self) -> None:
        """Ends the engine: in good order where it answers and nothing is open, by force where not."""
        if self._process is None:
            return
        if not self._open and "hello" in self.__dict__ and not self._process.frozen:
            try:
                self._ask("shutdown", "ok", END_S)
                self._running().wait(END_S)
            except EngineError:
                pass  # it is killed now anyway, and all its answers are in
        self.kill()

    def kill(self) -> None:
        """Ends the engine and its whole process group at once."""
        if self._process is not None:
            process, self._process = self._process, None
            process.close(0)

    # --- one line each way ---

    def _running(self) -> Process:
        if self._process is None:
            raise ValueError("the engine has ended")
        return self._process

    def _loaded(self) -> Ready:
        if self.ready is None:
            raise ValueError("no model is loaded")
        return self.ready

    def _send(self, operation: str, **fields: Any) -> int:
        line = json.dumps({"v": 1, "op": operation, **fields}, separators=(",", ":"), allow_nan=False).encode()
        try:
            return self._running().send(line, self.patience_s)
        except EngineError:
            self.kill()
            raise

    def _receive(self, patience_s: float) -> tuple[dict[str, Any], int]:
        """The next reply and when it was read; all errors but `Hung` end the engine."""
        try:
            line, read_ns = self._running().receive(patience_s)
            return check_reply(line), read_ns
        except Mismatch as error:
            self._break(str(error))
        except Hung:
            raise
        except BaseException:
            self.kill()
            raise

    def _check_silent(self) -> None:
        """Ends an engine that speaks while it is asked nothing: its answer would be read before it was asked for."""
        if not self._open and not self._late_cancels and self._running().unread():
            self._break("it answered before it was asked")

    def _ask(self, operation: str, wanted: str, patience_s: float, **fields: Any) -> dict[str, Any]:
        """One question with one answer, while no request is open."""
        if self._open:
            raise ValueError(f"'{operation}' while requests are open")
        _ = self.hello
        self._check_silent()
        self._send(operation, **fields)
        while True:
            try:
                reply, _ = self._receive(patience_s)
            except Hung:
                self.kill()
                raise
            if reply["op"] == wanted:
                return {key: value for key, value in reply.items() if key not in ("v", "op")}
            if reply["op"] != "error":
                self._break(f"'{reply['op']}' in answer to '{operation}'")
            if not self._is_no_refusal(reply):
                raise Refused(reply["code"], reply["message"], reply["id"])

    def _take(self, reply: dict[str, Any], read_ns: int, on_tokens: OnTokens | None) -> Answer | None:
        operation, name = reply["op"], reply.get("id")
        if operation == "error":
            if not self._is_no_refusal(reply):
                self._refuse(Refused(reply["code"], reply["message"], name))
            return None
        if operation not in ("tokens", "done"):
            self._break(f"'{operation}' while requests are open")
        if name not in self._open:
            self._break(
                f"'{operation}' for '{name}', which " + ("is done" if name in self._asked else "was never asked")
            )
        held = self._open[name]
        try:
            if operation == "done":
                answer = held.take_done(reply, read_ns)
                del self._open[name]
                if held.cancelled and answer.reason != "cancelled":
                    self._late_cancels.add(name)
                return answer
            self._check_vocabulary(reply["ids"])
            held.take_tokens(reply, read_ns)
        except Mismatch as error:
            self._break(str(error))
        if on_tokens is not None:
            on_tokens(name, reply["ids"])
        return None

    def _refuse(self, refused: Refused) -> NoReturn:
        if self._open.pop(refused.request or "", None) is None:
            # Nobody can say which of the open requests will never be done now.
            self.kill()
        raise refused

    def _is_no_refusal(self, reply: dict[str, Any]) -> bool:
        """Whether an `error` is about nothing that we wait for: a late cancel, or a record, which is only advice."""
        if reply["code"] == "record_ended" and reply["id"] is None:
            return True
        late = reply["code"] == "unknown_id" and reply["id"] in self._late_cancels
        if late:
            self._late_cancels.remove(reply["id"])
        return late

    def _check_vocabulary(self, ids: list[int]) -> None:
        vocabulary = self._loaded().vocabulary
        if ids and max(ids) >= vocabulary:
            self._break(f"id {max(ids)} is outside the vocabulary of {vocabulary}")

    def _break(self, what: str) -> NoReturn:
        self.kill()
        raise Violation(f"the engine broke the protocol: {what}")


Start = Callable[..., Engine]  # as Engine.start, so that a test can have engines of its own


def digest_folder(folder: Path) -> Prepared:
    """Count, bytes and digest of the files below `folder`, as `prepared` states them; links do not count."""
    lines, size = [], 0
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            size += path.stat().st_size
            lines.append(f"{digest}  {path.relative_to(folder).as_posix()}\n")
    return Prepared(len(lines), size, hashlib.sha256("".join(sorted(lines)).encode()).hexdigest())
