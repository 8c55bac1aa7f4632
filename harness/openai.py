"""An adapter: the worker protocol (docs/protocol.md) on one side, an OpenAI-compatible server on the other.

python -m harness.openai --url URL --model NAME --in-fd 3 --out-fd 4

Everything that the protocol asks for and a server cannot give is refused with `unsupported`, never left out.
One thread reads the client's lines and one each open stream; all that they bring is handled here, one after the other.
"""

import argparse
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import __version__, shape
from harness.completions import Piece, Server, ServerError, Stream
from harness.errors import HarnessError, plain
from harness.shape import anything, boolean, constant, integer, items, mapping, number, one_of, optional, record, text
from harness.target import Facts, read_facts
from harness.wire import MAX_LINE

__all__ = ["KEY", "Adapter"]

KEY = "OPENAI_API_KEY"  # the variable that holds the server's key
PATIENCE_S = 300.0  # below the client's, so that silence is told as what it is
MAX_MESSAGE = 500
_MAX_ID = 1024
_SEED_BITS = 63  # servers read a signed number of 64 bits

_ids = items(integer())
_LOAD = {
    "target": record({"path": text, "widen": integer(1), "jitter": integer()}),
    "drafter": optional(record({"path": text})),
    "dtype": one_of("float32", "bfloat16", "float64"),
    "device": text,
    "mode": one_of("exact", "fast"),
    "head": one_of("model", "fp32"),
    "options": mapping(anything),
    "prepared": optional(text),
    "limits": record({"context": integer(1), "requests": integer(1)}),
}
_SAMPLING = record({"temperature": number(), "top_p": number(), "top_k": integer(-(2**63)), "seed": integer()})
_ON = {"on": boolean, "file": optional(text)}
_REQUESTS: dict[str, Mapping[str, shape.Check]] = {
    "load": _LOAD,
    "prepare": {**_LOAD, "dir": text},
    "generate": {
        "id": text,
        "prompt": items(integer(-(2**63))),
        "max_tokens": integer(-(2**63)),
        "stop_ids": _ids,
        "ignore_eos": boolean,
        "sampling": _SAMPLING,
        "logprobs": boolean,
        "digest": boolean,
    },
    "cancel": {"id": text},
    "score": {"id": text, "ids": _ids, "start": integer(), "sampling": _SAMPLING},
    "lattice": {"id": text, "ids": _ids, "start": integer(), "sampling": _SAMPLING, "file": text},
    "record": _ON,
    "profile": _ON,
    "stats": {},
    "shutdown": {},
}
_CANNOT = {
    "prepare": "a server prepares nothing: it was started without us",
    "score": "a server does not score tokens that it is given; stock does",
    "lattice": "a server tells nothing of its drafter",
    "record": "a server tells nothing of its steps",
    "profile": "a server has no profiler that we could reach",
}


class _Refusal(Exception):
    """An `error` reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class _Shutdown(Exception):
    """The client said goodbye, or went away."""


@dataclass(frozen=True)
class _Loaded:
    facts: Facts
    context: int
    requests: int


@dataclass
class _Open:
    """A request that is not done."""

    id: str
    prompt: list[int]
    max_tokens: int
    ends: frozenset[int]  # the ids that end it
    logprobs: bool
    stream: Stream
    ids: list[int] = field(default_factory=list)
    lines: int = 0

    def reason(self) -> str | None:
        """Why an answer with these tokens is over; None where it is not."""
        if self.ids and self.ids[-1] in self.ends:
            return "stop"
        return "length" if len(self.ids) == self.max_tokens else None


class Adapter:
    """One client, one server."""

    def __init__(self, url: str, model: str, in_fd: int, out_fd: int, key: str | None, patience_s: float) -> None:
        self._source = os.fdopen(in_fd, "rb")
        self._out = os.fdopen(out_fd, "wb", buffering=0)
        self._server_words = (url, model, key, patience_s)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._server: Server | None = None
        self._loaded: _Loaded | None = None
        self._open: dict[str, _Open] = {}
        self._counters = {"requests": 0, "steps": 0, "tokens": 0}

    def run(self) -> None:
        """Serves until the client leaves."""
        self._send("hello", engine="openai", version=__version__, options={})
        threading.Thread(target=self._read, daemon=True).start()
        try:
            while True:
                self._events.get()()
        except (_Shutdown, BrokenPipeError):
            for request in self._open.values():
                request.stream.stop()

    # --- lines ---

    def _send(self, operation: str, **fields: Any) -> None:
        view = memoryview(json.dumps({"v": 1, "op": operation, **fields}, allow_nan=False).encode() + b"\n")
        while view:
            view = view[self._out.write(view) :]

    def _error(self, name: str | None, code: str, message: str) -> None:
        line = " ".join(plain(message).split())
        self._send("error", id=name, code=code, message=line[:MAX_MESSAGE])

    def _read(self) -> None:
        while line := self._source.readline(MAX_LINE + 1):
            self._events.put(lambda line=line: self._handle(line))  # type: ignore[misc]
            while len(line) > MAX_LINE and not line.endswith(b"\n"):  # the rest of a long line
                line = self._source.readline(MAX_LINE + 1)
        self._events.put(self._shutdown)

    def _handle(self, line: bytes) -> None:
        name = None
        try:
            value = _parse(line)
            name = value.get("id")
            name = name if isinstance(name, str) and len(name) <= _MAX_ID else None
            self._act(_checked(value))
        except _Refusal as refusal:
            self._error(name, refusal.code, refusal.message)
        except ServerError as error:
            self._error(name, error.code, error.message)

    def _act(self, line: dict[str, Any]) -> None:
        operation = line["op"]
        if operation == "shutdown":
            self._send("ok", to="shutdown")
            self._shutdown()
        if operation in _CANNOT:
            raise _Refusal("unsupported", _CANNOT[operation])
        if operation == "load":
            self._load(line)
        elif self._loaded is None:
            raise _Refusal("not_loaded", "no model is loaded")
        elif operation == "generate":
            self._generate(line, self._loaded)
        elif operation == "cancel":
            self._cancel(line["id"])
        else:
            self._send("stats", counters=self._counters)

    def _shutdown(self) -> None:
        raise _Shutdown

    # --- what is asked ---

    def _load(self, line: dict[str, Any]) -> None:
        begin_s = time.monotonic()
        for request in list(self._open.values()):
            self._cancel(request.id)
        self._loaded = None
        _refuse_unknown(line)
        try:
            facts = read_facts(Path(line["target"]["path"]))
        except HarnessError as error:
            raise _Refusal("bad_model", error.message) from None
        server = Server(*self._server_words)
        longest, context = server.context(), line["limits"]["context"]
        if longest is not None and context > longest:
            raise _Refusal("bad_request", f"a context of {context} tokens exceeds the server's {longest}")
        server.find_form()
        self._server, self._loaded = server, _Loaded(facts, context, line["limits"]["requests"])
        self._counters = dict.fromkeys(self._counters, 0)
        self._send(
            "ready",
            load_s=time.monotonic() - begin_s,
            bytes=0,  # of this process: what the server holds is not told
            vocabulary=facts.vocabulary,
            stop_ids=list(facts.stop_ids),
            context=context,
        )

    def _generate(self, line: dict[str, Any], loaded: _Loaded) -> None:
        assert self._server is not None
        name, prompt, stop_ids = line["id"], line["prompt"], line["stop_ids"]
        self._refuse_request(line, loaded)
        sampling = line["sampling"]
        fields = {
            "max_tokens": line["max_tokens"],
            "ignore_eos": line["ignore_eos"],
            "stop_token_ids": [] if line["ignore_eos"] else stop_ids,
            "temperature": sampling["temperature"],
            "top_p": sampling["top_p"],
            "top_k": sampling["top_k"],
            "seed": sampling["seed"] & ((1 << _SEED_BITS) - 1),
            # A server takes these from the model's generation_config.json where they are left out.
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
        }
        stream = self._server.stream(prompt, fields, logprobs=line["logprobs"])
        ends = frozenset(() if line["ignore_eos"] else stop_ids)
        request = _Open(name, prompt, line["max_tokens"], ends, line["logprobs"], stream)
        self._open[name] = request
        self._counters["requests"] += 1
        threading.Thread(target=self._follow, args=(request,), daemon=True).start()

    def _refuse_request(self, line: dict[str, Any], loaded: _Loaded) -> None:
        name, prompt, longest = line["id"], line["prompt"], line["max_tokens"]
        if name in self._open:
            raise _Refusal("duplicate_id", f"request '{name}' is open already")
        if len(self._open) >= loaded.requests:
            raise _Refusal("busy", f"{len(self._open)} requests are open, and no more may be")
        if line["digest"]:
            raise _Refusal("unsupported", "a server gives no logits, and so no digest of them")
        if not prompt:
            raise _Refusal("bad_request", "the prompt is empty")
        for token in (*prompt, *line["stop_ids"]):
            if not 0 <= token < loaded.facts.vocabulary:
                raise _Refusal("bad_request", f"id {token} is outside the vocabulary of {loaded.facts.vocabulary}")
        if longest < 1:
            raise _Refusal("bad_request", f"max_tokens is {longest}, not at least 1")
        if len(prompt) + longest > loaded.context:
            total = len(prompt) + longest
            raise _Refusal("too_long", f"prompt and answer are {total} tokens, the context {loaded.context}")
        _refuse_sampling(line["sampling"])

    def _cancel(self, name: str) -> None:
        request = self._open.pop(name, None)
        if request is None:
            raise _Refusal("unknown_id", f"no open request '{name}'")
        request.stream.stop()
        self._done(request, "cancelled")

    # --- what comes ---

    def _follow(self, request: _Open) -> None:
        """Reads a stream, on a thread of its own; what comes is handled where the client's lines are."""
        try:
            for piece in request.stream:
                self._events.put(lambda piece=piece: self._blame(request, lambda: self._take(request, piece)))  # type: ignore[misc]
            self._events.put(lambda: self._blame(request, lambda: self._end(request)))
        except ServerError as error:
            refusal = _Refusal(error.code, error.message)
            self._events.put(lambda: self._blame(request, lambda: _raise(refusal)))

    def _blame(self, request: _Open, action: Callable[[], None]) -> None:
        """Does what a stream brought, unless the request is over; what is wrong with it ends the request."""
        if self._open.get(request.id) is not request:
            return
        try:
            action()
        except _Refusal as refusal:
            del self._open[request.id]
            request.stream.stop()
            self._error(request.id, refusal.code, refusal.message)

    def _take(self, request: _Open, piece: Piece) -> None:
        assert self._loaded is not None
        for token in piece.ids:
            if token >= (most := self._loaded.facts.vocabulary):
                raise _Refusal("internal", f"the server sent id {token}, outside the target's vocabulary of {most}")
            if (reason := request.reason()) is not None:
                raise _Refusal("internal", f"the server went on after the end of the answer ({reason})")
            request.ids.append(token)
        # Prefill's token stands alone: a server may bring more with it.
        cuts = [1, len(piece.ids)] if request.lines == 0 and len(piece.ids) > 1 else [len(piece.ids)]
        begin = 0
        for end in cuts:
            if end > begin:
                self._tell(request, piece.ids[begin:end], piece.logprobs and piece.logprobs[begin:end])
            begin = end

    def _tell(self, request: _Open, ids: list[int], logprobs: list[float] | None) -> None:
        self._counters["tokens"] += len(ids)
        self._counters["steps"] += request.lines > 0
        request.lines += 1
        extra = {} if logprobs is None else {"logprobs": logprobs}
        self._send("tokens", id=request.id, ids=ids, **extra)

    def _end(self, request: _Open) -> None:
        """The stream is over: `done`, where it bears out that the answer is."""
        stream, came = request.stream, len(request.ids)
        if stream.finish not in ("stop", "length"):
            raise _Refusal("internal", f"the server ended with {stream.finish!r} after {came} tokens")
        if request.reason() is None and stream.stop_id in request.ends:
            self._take_stop(request, stream.stop_id)
        if (reason := request.reason()) is None:
            last = f", the last of them {request.ids[-1]}" if request.ids else ""
            raise _Refusal(
                "internal",
                f"the server ended with '{stream.finish}' after {came} of {request.max_tokens} tokens{last},"
                " and no stop id that it was given stands there",
            )
        counts = [(len(request.prompt), count) for count in {came, len(request.ids)}]
        if stream.usage not in (None, *counts):
            raise _Refusal(
                "internal", f"the server counts {stream.usage} tokens of prompt and answer, and there are {counts[0]}"
            )
        del self._open[request.id]
        self._done(request, reason)

    def _take_stop(self, request: _Open, token: int) -> None:
        """Adds the stop id of a server that names it and leaves it out of the answer, whose last token it is."""
        if request.logprobs:
            raise _Refusal("unsupported", "the server leaves out the stop id, and so its log-probability")
        self._take(request, Piece([token], None))

    def _done(self, request: _Open, reason: str) -> None:
        usage = {
            "prompt_tok": len(request.prompt),
            "completion_tok": len(request.ids),
            "steps": max(0, request.lines - 1),
        }
        self._send("done", id=request.id, reason=reason, usage=usage)


def _raise(refusal: _Refusal) -> None:
    raise refusal


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise _Refusal("malformed", f"a line is over {MAX_LINE} bytes")
    try:
        value = shape.loads(line)
    except shape.Mismatch as error:
        raise _Refusal("malformed", f"a line is {error}") from None
    if not isinstance(value, dict):
        raise _Refusal("malformed", "a line is no object")
    return value


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    """The request, with all keys known and typed."""
    operation = value.get("op")
    if not isinstance(operation, str):
        raise _Refusal("malformed", "a line has no 'op'")
    if operation not in _REQUESTS:
        raise _Refusal("unknown_op", f"unknown operation '{operation}'")
    try:
        record({"v": constant(1), "op": anything, **_REQUESTS[operation]})(value, f"'{operation}'")
    except shape.Mismatch as error:
        raise _Refusal("malformed", str(error)) from None
    if len(value.get("id", "")) > _MAX_ID:
        raise _Refusal("malformed", f"'{operation}' has an id of over {_MAX_ID} characters")
    return value


def _refuse_unknown(line: dict[str, Any]) -> None:
    """Whatever of a `load` a server does not know of.

    Its dtype, device and drafter are those that it was started with: the first two tell what stock runs in.
    """
    target = line["target"]
    for name in line["options"]:
        raise _Refusal("bad_option", f"unknown option '{name}': a server has the settings that it was started with")
    if target["widen"] != 1 or target["jitter"]:
        raise _Refusal("unsupported", "a server has the model as it is, not widened or jittered")
    if line["drafter"] is not None:
        raise _Refusal("unsupported", "a server has the drafter that it was started with")
    if line["mode"] == "exact":
        raise _Refusal("unsupported", "a server has no exact mode: use 'mode: fast'")
    if line["head"] != "model":
        raise _Refusal("unsupported", "a server has the model's own head alone")
    if line["prepared"] is not None and any(Path(line["prepared"]).iterdir()):
        raise _Refusal("unsupported", _CANNOT["prepare"])


def _refuse_sampling(sampling: dict[str, Any]) -> None:
    temperature = sampling["temperature"]
    if temperature != 0 and not 1e-5 <= temperature <= 1e5:
        raise _Refusal("bad_request", f"temperature is {temperature}, neither 0 nor from 1e-5 to 1e5")
    if not 0 < sampling["top_p"] <= 1:
        raise _Refusal("bad_request", f"top_p is {sampling['top_p']}, not above 0 and up to 1")
    if sampling["top_k"] < 0:
        raise _Refusal("bad_request", f"top_k is {sampling['top_k']}, below 0")
    if sampling["seed"] >= 1 << 64:
        raise _Refusal("bad_request", f"seed is {sampling['seed']}, not a uint64")


def main() -> None:
    """Parses the server's address and the two descriptors, and serves."""
    parser = argparse.ArgumentParser(prog="python -m harness.openai", allow_abbrev=False)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--patience-s", type=float, default=PATIENCE_S, help="the longest silence of the server")
    parser.add_argument("--in-fd", type=int, required=True)
    parser.add_argument("--out-fd", type=int, required=True)
    chosen = parser.parse_args()
    key = os.environ.get(KEY) or None
    Adapter(chosen.url, chosen.model, chosen.in_fd, chosen.out_fd, key, chosen.patience_s).run()
    os._exit(0)  # threads may still be reading what nobody waits for


if __name__ == "__main__":
    main()
