"""An OpenAI-compatible server with a scripted language and scripted faults, on a real socket of loopback.

It speaks the language of tests/fakes/engine.py, so that this engine can score what it said.  Standard library only.
"""

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread

from tests.fakes.engine import STOP_ID, VOCABULARY, facts

PROBE = [0]  # the prompt by which the adapter learns how ids come; faults wait until after it


@dataclass
class Script:
    """What the server does; tests change it while it runs."""

    form: str = "token_ids"  # or `words` (ids in place of words), `text`
    strict: bool = False  # a field that it does not know is refused
    tau: int = 1  # ids an event
    first: int = 1  # ids of the first event
    stop_rate: float = 0.0
    step_s: float = 0.0
    fault: str | None = None
    models: object = field(default_factory=lambda: [{"id": "toy", "max_model_len": 512}])
    usage: bool = True
    logprob: object = -0.5


class Server(ThreadingHTTPServer):
    """Listens on a free port of loopback; keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = Script()
        self.asked: list[dict] = []  # bodies
        self.headers: list[dict] = []
        self.open = self.most_open = 0  # answers under way: asked for, and their last line not sent yet
        self.lock = Lock()
        self.left = Event()  # a client went away in the midst of an answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        self.left.set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *words) -> None:
        pass

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.headers.append(dict(self.headers))
        models = self.server.script.models
        if self.path != "/v1/models":
            self.reply(404, b"{}")
        else:
            self.reply(200, models if isinstance(models, bytes) else json.dumps({"data": models}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script = self.server.script
        with self.server.lock:
            self.server.headers.append(dict(self.headers))
            self.server.asked.append(body)
        fault = script.fault if body["prompt"] != PROBE else None
        if self.path != "/v1/completions":
            self.reply(404, b"{}")
        elif script.strict and "return_token_ids" in body:
            self.reply(400, b'{"error": {"message": "unknown field"}}')
        elif fault in ("400", "401", "404", "429", "500", "302"):
            said = f"bad \x1b[31m thing of {self.headers.get('Authorization')}\nsecond line"
            self.reply(int(fault), json.dumps({"error": {"message": said}}).encode())
        elif fault == "html":
            self.reply(502, b"<html><body>\x07Bad Gateway</body></html>", "text/html")
        elif fault == "plain":
            self.reply(200, b'{"choices": []}')
        else:
            self.count(1)
            try:
                self.stream(body, script, fault)
            finally:
                self.count(-self.counted)

    def count(self, change: int) -> None:
        self.counted = self.__dict__.get("counted", 0) + change
        with self.server.lock:
            self.server.open += change
            self.server.most_open = max(self.server.most_open, self.server.open)

    def stream(self, body: dict, script: Script, fault: str | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if fault == "silent":
            time.sleep(5)
        ids, finish = answer(body, script)
        ids, finish, sent = spoil(ids, finish, body, fault)
        self.write(b": a comment\r\n\r\n")
        begin = 0
        while begin < len(ids) or begin == 0:
            end = begin + (script.first if begin == 0 else script.tau)
            time.sleep(script.step_s)
            if end >= len(ids):
                self.count(-1)  # whoever reads this line may ask the next at once
            self.event(event(body, ids[begin:end], finish if end >= len(ids) else None, script, begin == 0, fault))
            if fault == "break":
                self.close_connection = True
                return
            begin = end
        if fault == "error":
            self.event({"error": {"message": "the engine\x1b[2J died", "code": 500}})
        if fault == "garbage":
            self.write(b"data: {not json\n\n")
        if fault == "list":
            self.write(b"data: []\n\n")
        if fault == "huge":
            self.write(b"data: " + b"x" * (17 << 20) + b"\n\n")
        if script.usage:
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": sent}
            self.event({"choices": [], "usage": "many" if fault == "odd usage" else usage})
        if fault != "no end":
            self.write(b"data: [DONE]\n\n")
        self.write(b"")

    def event(self, value: object) -> None:
        self.write(b"data: " + json.dumps(value).replace("Infinity", "1e999").encode() + b"\n\n")

    def write(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def answer(body: dict, script: Script) -> tuple[list[int], str]:
    """Ids as the scripted language has them, and why they end."""
    ids: list[int] = []
    while len(ids) < body["max_tokens"]:
        best, _, _, uniform = facts(body["prompt"] + ids)
        ids.append(STOP_ID if uniform < script.stop_rate else best)
        if not body["ignore_eos"] and ids[-1] in [STOP_ID, *body.get("stop_token_ids", [])]:
            return ids, "stop"
    return ids, "length"


def spoil(ids: list[int], finish: str, body: dict, fault: str | None) -> tuple[list[int], str | None, int]:
    """The ids and end that a fault makes of these, and how many it claims to have sent."""
    claimed = len(ids)
    if fault == "outside":
        ids = [*ids[:-1], VOCABULARY]
    elif fault == "more":
        ids, claimed = [*ids, 5], claimed + 1
    elif fault == "fewer":
        ids, claimed = ids[:-1], claimed - 1
    elif fault == "miscounted":
        claimed += 1
    elif fault == "abort":
        finish = "abort"
    elif fault == "no finish":
        return ids, None, claimed
    elif fault == "negative":
        ids = [*ids[:-1], -1]
    elif fault == "stop left out":
        ids = ids[:-1]
    return ids, finish, claimed


def event(
    body: dict, ids: list[int], finish: str | None, script: Script, first: bool, fault: str | None
) -> dict[str, object]:
    """One event of a stream in the form that the script has."""
    choice: dict[str, object] = {"index": 0, "text": "x" * len(ids), "finish_reason": finish, "stop_reason": None}
    form = "text" if fault == "text" else script.form
    if form == "token_ids" and body.get("return_token_ids"):
        choice["token_ids"] = ids
        choice["prompt_token_ids"] = (body["prompt"] if fault != "prompt" else [1]) if first else None
    if body.get("logprobs"):
        as_ids = form == "words" and body.get("return_tokens_as_token_ids")
        words = [f"token_id:{token}" if as_ids else "x" for token in ids]
        choice["logprobs"] = {"tokens": words, "token_logprobs": [script.logprob] * (len(ids) - (fault == "logprobs"))}
    if fault == "stop left out" and finish == "stop":
        choice["stop_reason"] = STOP_ID
    choices = [choice, choice] if fault == "choices" else [choice]
    return {"id": "cmpl", "object": "text_completion", "choices": choices, "usage": None}


@contextmanager
def serving():
    """A running server."""
    with Server() as server:
        thread = Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
