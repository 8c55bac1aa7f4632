"""The worker: the protocol of docs/protocol.md around an engine.

python -m stock.worker --in-fd 3 --out-fd 4
"""

import argparse
import importlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import stock
from stock.errors import EngineError
from stock.protocol import MAX_LINE_BYTES, name_of, parse

if TYPE_CHECKING:
    from stock.engine import Engine, OnStep, Progress, Request
    from stock.lattice import LatticePass
    from stock.profile import Profiler
    from stock.record import Seen, StepRecorder
    from stock.score import Scorer

MAX_MESSAGE_CHARACTERS = 500
IDLE_S = 0.25  # after `hello`: who only wants to read it has gone by then
Opened = TypeVar("Opened")


class Shutdown(Exception):
    """The client said goodbye, or went away."""


class Worker:
    """One client, one engine.  Reads lines on a thread, so that a cancel reaches a running request."""

    def __init__(self, in_fd: int, out_fd: int) -> None:
        self.source = os.fdopen(in_fd, "rb")
        self.out = os.fdopen(out_fd, "wb", buffering=0)
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        self.engine: Engine | None = None
        self.scorer: Scorer | None = None
        self.ranker: LatticePass | None = None
        self.recorder: StepRecorder | None = None
        self.profiler: Profiler | None = None

    @property
    def loaded(self) -> "Engine":
        """The engine; EngineError `not_loaded` where there is none."""
        if self.engine is None:
            raise EngineError("not_loaded", "no model is loaded")
        return self.engine

    def run(self) -> None:
        """Serves until the client leaves."""
        from stock.options import declared

        try:
            options = {name: option.describe() for name, option in declared().items()}
        except EngineError as error:
            self._error(None, error.code, error.message)
            return
        self.send("hello", engine="stock", version=stock.__version__, options=options)
        threading.Thread(target=self._read, daemon=True).start()
        self._guarded(list, self._wake_up)
        try:
            while True:
                self._serve()
        except (Shutdown, BrokenPipeError):
            pass

    def _wake_up(self) -> None:
        """Imports what loading needs, unless the client wants something at once: who starts a worker early saves that.

        What fails here fails again at `load`, where somebody is told.
        """
        until_s = time.monotonic() + IDLE_S
        while self.lines.empty() and time.monotonic() < until_s:
            time.sleep(IDLE_S / 50)
        if self.lines.empty():
            importlib.import_module("stock.engine")

    def send(self, operation: str, **fields: Any) -> None:
        """Writes one reply; ValueError for a number that JSON has not."""
        line = json.dumps({"v": 1, "op": operation, **fields}, allow_nan=False).encode() + b"\n"
        view = memoryview(line)
        while view:
            view = view[self.out.write(view) :]

    def _error(self, name: str | None, code: str, message: str) -> None:
        line = " ".join(message.split())
        if len(line) > MAX_MESSAGE_CHARACTERS:  # it may quote a whole file
            line = line[: MAX_MESSAGE_CHARACTERS - 4] + " ..."
        self.send("error", id=name, code=code, message=line)

    def _read(self) -> None:
        try:
            while line := self.source.readline(MAX_LINE_BYTES + 1):
                self.lines.put(line)
                while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):  # skip the rest of a long line
                    line = self.source.readline(MAX_LINE_BYTES + 1)
        finally:
            self.lines.put(None)

    def _serve(self) -> None:
        """Handles the next line if there is one, else runs the next step; waits where there is neither."""
        busy = self.engine is not None and bool(self.engine.requests)
        try:
            line = self.lines.get(block=not busy)
        except queue.Empty:
            self._guarded(self._abandon, self._step)
            return
        if line is None:
            raise Shutdown
        self._handle(line)

    def _handle(self, line: bytes) -> None:
        request: dict[str, Any] = {}

        def handle() -> None:
            request.update(parse(line))
            if request["op"] not in ("load", "prepare", "shutdown"):
                _ = self.loaded
            handlers: dict[str, Callable[[dict[str, Any]], None]] = {
                "load": self._load,
                "prepare": self._prepare,
                "generate": self._generate,
                "cancel": self._cancel,
                "score": self._score,
                "lattice": self._lattice,
                "record": self._record,
                "profile": self._profile,
                "stats": self._stats,
                "shutdown": self._shutdown,
            }
            handlers[request["op"]](request)

        self._guarded(lambda: [request.get("id", name_of(line))], handle)

    def _guarded(self, blamed: Callable[[], Sequence[str | None]], action: Callable[[], None]) -> None:
        """Runs an action; what it raises becomes an `error` reply to each that is to blame, and the worker goes on."""
        try:
            action()
        except (Shutdown, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - a fault must reach the client, whatever it is
            code, message = _told(error)
            for name in blamed():
                self._error(name, code, message)

    def _abandon(self) -> Sequence[str]:
        """Lets the requests go whose step failed, so that the fault is not met again."""
        return [name for request in self.loaded.serving for name in self._drop(request)]

    def _drop(self, request: "Request") -> Sequence[str]:
        if request in self.loaded.requests:
            self.loaded.close(request)
        return [request.id]

    def _step(self) -> None:
        for progress in self.loaded.step() if self.profiler is None else self._profiled_step(self.profiler):
            self._guarded(partial(self._drop, progress.request), partial(self._tell, progress))

    def _tell(self, progress: "Progress") -> None:
        """Sends what a pass gave one request."""
        request = progress.request
        extra = {} if progress.logprobs is None else {"logprobs": progress.logprobs}
        self.send("tokens", id=request.id, ids=progress.ids, **extra)
        if progress.reason is not None:
            self._done(request, progress.reason)

    def _done(self, request: "Request", reason: str) -> None:
        usage = {
            "prompt_tok": len(request.prompt),
            "completion_tok": len(request.emitted),
            "steps": request.steps,
        }
        extra = {"logits_sha256": request.logits_hash.hexdigest()} if request.digest else {}
        self.send("done", id=request.id, reason=reason, usage=usage, **extra)

    def _load(self, line: dict[str, Any]) -> None:
        from stock.engine import Engine
        from stock.system import Settings, load_system

        begin = time.monotonic()
        if self.engine is not None:
            for request in list(self.engine.requests):
                self.engine.close(request)
                self._done(request, "cancelled")
        self.engine = self.scorer = self.ranker = None  # let the old one go before the new one takes memory
        system = load_system(Settings.of(line))
        engine = Engine(system)
        engine.warm_up()
        self.engine = engine
        self._attach_recorder()
        config = system.target.config
        self.send(
            "ready",
            load_s=time.monotonic() - begin,
            bytes=engine.resident_bytes(),
            vocabulary=config.vocabulary,
            stop_ids=list(config.stop_ids),
            context=system.context,
        )

    def _prepare(self, line: dict[str, Any]) -> None:
        from stock.prepare import prepare
        from stock.system import Settings

        folder = Path(line["dir"])
        if not folder.is_dir():
            raise EngineError("bad_request", f"'{folder}' is not a folder")
        self.send("prepared", **prepare(Settings.of(line), folder))
        raise Shutdown

    def _generate(self, line: dict[str, Any]) -> None:
        from stock.engine import Request
        from stock.sampling import Sampling

        engine, prompt = self.loaded, line["prompt"]
        if any(request.id == line["id"] for request in engine.requests):
            raise EngineError("duplicate_id", f"request '{line['id']}' is open already")
        if len(engine.requests) >= engine.system.settings.requests:
            raise EngineError("busy", f"{len(engine.requests)} requests are open, and no more may be")
        if not prompt:
            raise EngineError("bad_request", "the prompt is empty")
        self._check_ids(prompt)
        self._check_ids(line["stop_ids"])
        if line["max_tokens"] < 1:
            raise EngineError("bad_request", f"max_tokens is {line['max_tokens']}, not at least 1")
        if len(prompt) + line["max_tokens"] > engine.system.context:
            total = len(prompt) + line["max_tokens"]
            raise EngineError("too_long", f"prompt and answer are {total} tokens, the context {engine.system.context}")
        engine.open(
            Request(
                id=line["id"],
                prompt=prompt,
                max_tokens=line["max_tokens"],
                stop_ids=frozenset(line["stop_ids"]),
                ignore_eos=line["ignore_eos"],
                sampling=Sampling.of(line["sampling"]),
                logprobs=line["logprobs"],
                digest=line["digest"],
            )
        )

    def _cancel(self, line: dict[str, Any]) -> None:
        for request in self.loaded.requests:
            if request.id == line["id"]:
                self.loaded.close(request)
                self._done(request, "cancelled")
                return
        raise EngineError("unknown_id", f"no open request '{line['id']}'")

    def _score(self, line: dict[str, Any]) -> None:
        from stock.sampling import Sampling
        from stock.score import Scorer

        ids, start = self._finished(line)
        if self.scorer is None:
            self.scorer = Scorer(self.loaded.system)
        scores = self.scorer.score(ids, start, Sampling.of(line["sampling"]))
        self.send("scores", id=line["id"], start=start, **asdict(scores))

    def _finished(self, line: dict[str, Any]) -> tuple[list[int], int]:
        """The sequence that a line is about, and the first of its tokens that is; EngineError where it cannot be."""
        ids, start, context = line["ids"], line["start"], self.loaded.system.context
        self._check_ids(ids)
        if not 1 <= start < len(ids):
            raise EngineError("bad_request", f"start is {start}, and {len(ids)} ids leave nothing from there")
        if len(ids) > context:
            raise EngineError("too_long", f"{len(ids)} tokens, the context is {context}")
        return ids, start

    def _lattice(self, line: dict[str, Any]) -> None:
        from stock.lattice import LatticePass
        from stock.lattice_file import write_lattice
        from stock.sampling import Sampling

        ids, start = self._finished(line)
        sampling, path = Sampling.of(line["sampling"]), _writable(line["file"])
        if self.ranker is None:
            self.ranker = LatticePass(self.loaded.system)
        about = {**self.ranker.origin, "request": line["id"], "sampling": line["sampling"]}
        shape = self.ranker.depths, self.ranker.ranks
        try:
            written = write_lattice(path, about, ids, start, shape, self.ranker(ids, start, sampling))
        except OSError as error:
            raise EngineError("bad_request", f"'{line['file']}' cannot be written: {error}") from error
        self.send("lattice", id=line["id"], file=line["file"], **written)

    def _record(self, line: dict[str, Any]) -> None:
        from stock.record import StepRecorder

        if line["on"] and line["file"] is None:
            raise EngineError("bad_request", "record needs a file")
        if line["on"] and self.profiler is not None:
            raise EngineError("bad_request", "a profile is being taken, which would distort a record")
        self._end_record()
        if line["on"]:
            self.recorder = _opened(line["file"], StepRecorder)
        self._attach_recorder()
        self.send("ok", to="record")

    def _attach_recorder(self) -> None:
        on_step: OnStep | None = None
        if self.recorder is not None:
            on_step = self._record_step
        elif self.profiler is not None:
            on_step = self.profiler.on_step
        self.loaded.on_step = on_step
        self.loaded.times.on = on_step is not None

    def _record_step(
        self,
        progress: "Sequence[Progress]",
        seen: "Sequence[Seen]",
        times: dict[str, float],
    ) -> None:
        """Records a step; a record that cannot be written ends, and the step still counts."""
        assert self.recorder is not None  # else nobody calls
        try:
            self.recorder(progress, seen, times)
        except OSError as error:
            self._end_record()
            self._attach_recorder()
            self._error(None, "record_ended", f"the step record ended: {error}")

    def _end_record(self) -> None:
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()

    def _profile(self, line: dict[str, Any]) -> None:
        from stock.profile import Profiler

        if line["on"] and line["file"] is None:
            raise EngineError("bad_request", "profile needs a file")
        if line["on"] and self.recorder is not None:
            raise EngineError("bad_request", "steps are being recorded, which a profile would distort")
        self._end_profile()
        if line["on"]:
            self.profiler = _opened(line["file"], partial(Profiler, device=self.loaded.system.device))
        self._attach_recorder()
        self.send("ok", to="profile")

    def _profiled_step(self, profiler: "Profiler") -> "list[Progress]":
        """A step; a profile that cannot be written ends, and the step still counts."""
        progress = profiler.step(self.loaded)
        try:
            profiler.write()
        except OSError as error:
            self.profiler = None
            profiler.abandon(self.loaded)
            self._attach_recorder()
            self._error(None, "record_ended", f"the profile ended: {error}")
        return progress

    def _end_profile(self) -> None:
        profiler, self.profiler = self.profiler, None
        if profiler is not None:
            try:
                profiler.close(self.loaded)
            except OSError as error:
                self._error(None, "record_ended", f"the profile ended: {error}")

    def _stats(self, line: dict[str, Any]) -> None:
        self.send("stats", counters=self.loaded.counters | self.loaded.system.counters())

    def _shutdown(self, line: dict[str, Any]) -> None:
        self.send("ok", to="shutdown")
        raise Shutdown

    def _check_ids(self, ids: list[int]) -> None:
        vocabulary = self.loaded.system.target.config.vocabulary
        for token in ids:
            if not 0 <= token < vocabulary:
                raise EngineError("bad_request", f"id {token} is outside the vocabulary of {vocabulary}")


def _opened(file: str, of: Callable[[Path], Opened]) -> Opened:
    """A recorder of that name in the writable folder; EngineError `bad_request` where it cannot be written."""
    try:
        return of(_writable(file))
    except (OSError, ValueError) as error:
        raise EngineError("bad_request", f"'{file}' cannot be written: {error}") from error


def _writable(file: str) -> Path:
    """The path of a name inside TMPDIR, the one folder that the worker writes to; EngineError `bad_request` else."""
    if "TMPDIR" not in os.environ:
        raise EngineError("bad_request", "there is no writable folder: TMPDIR names none")
    folder = Path(os.environ["TMPDIR"]).resolve()
    try:
        path = (folder / file).resolve()
    except (OSError, ValueError) as error:
        raise EngineError("bad_request", f"'{file}' names no file: {error}") from error
    if not path.is_relative_to(folder):
        raise EngineError("bad_request", f"'{file}' is not inside the writable folder '{folder}'")
    return path


def _told(error: Exception) -> tuple[str, str]:
    """Code and message of what was raised."""
    if isinstance(error, EngineError):
        return error.code, error.message
    return "out_of_memory" if _out_of_memory(error) else "internal", f"{type(error).__name__}: {error}"


def _out_of_memory(error: BaseException) -> bool:
    import torch

    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def main() -> None:
    """Parses the two descriptors and serves."""
    parser = argparse.ArgumentParser(prog="python -m stock.worker", allow_abbrev=False)
    parser.add_argument("--in-fd", type=int, required=True)
    parser.add_argument("--out-fd", type=int, required=True)
    arguments = parser.parse_args()
    for descriptor in (arguments.in_fd, arguments.out_fd):
        try:
            os.fstat(descriptor)
        except OSError as error:
            parser.error(f"descriptor {descriptor} is not open: {error.strerror}")
    Worker(arguments.in_fd, arguments.out_fd).run()
    os._exit(0)  # a thread that a system left printing would abort the interpreter's own end


if __name__ == "__main__":
    main()
