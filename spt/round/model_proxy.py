"""The one way out of an agent's sandbox: a unix socket that leads to the model and nowhere else.

The key stays out here and is added on the way.  Requests are few and known: messages to the model, counted tokens.
What would let the model's service reach elsewhere for the agent (its own search, fetch or code tools, other servers)
is refused, and so is everything once the budget is used up: the bill is kept here, from what the service reports.
"""

import contextlib
import http.client
import json
import socketserver
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spt.errors import Usage
from spt.round.session import listen

__all__ = ["Bill", "ModelProxy", "Prices"]

PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
QUERIES = frozenset({"", "beta=true"})
BODY_BYTES = 32 * 2**20
MAX_REQUESTS = 5000
TIMEOUT_S = 600.0
_ASKED = ("accept", "anthropic-version", "anthropic-beta", "content-type", "user-agent")
_TOLD = ("content-type", "request-id", "retry-after", "x-should-retry")
_FORBIDDEN = ("mcp_servers", "container")
# Tools that the client runs itself; all others of a named type would be run by the service.
_OWN_TOOLS = ("custom", "bash_", "text_editor_", "memory_", "tool_search_tool_")
_HELD_BYTES = 8 << 20


@dataclass(frozen=True)
class Prices:
    """Dollars for a million tokens; the dearest where nobody says, so that a budget is never exceeded."""

    input_usd: float = 15.0
    output_usd: float = 75.0


@dataclass
class Bill:
    """What a direction's requests cost so far, by the service's own count of tokens.

    input_tok counts what the prompt cache holds as well; usd takes a cached token read at a tenth of the price, one
    written at twice.
    """

    prices: Prices = Prices()
    limit_usd: float | None = None
    requests: int = 0
    input_tok: int = 0
    output_tok: int = 0
    usd: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def used_up(self) -> str | None:
        """That the budget is used up, in words; None where it is not."""
        if self.limit_usd is None or self.usd < self.limit_usd:
            return None
        return f"the budget of {self.limit_usd:g} dollars is used up"

    def refusal(self) -> str | None:
        """Why no further request may be made, None where one may."""
        if (used_up := self.used_up()) is not None:
            return used_up
        with self._lock:
            if self.requests >= MAX_REQUESTS:
                return f"{MAX_REQUESTS} requests are all that one direction may make"
            self.requests += 1
        return None

    def add(self, usage: Mapping[str, Any]) -> None:
        """Takes in a usage that the service reported, or the difference to one that it reported before."""
        read, written, fresh, out = (
            _count(usage.get(name))
            for name in ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens", "output_tokens")
        )
        with self._lock:
            self.input_tok += fresh + read + written
            self.output_tok += out
            self.usd += (fresh + read / 10 + 2 * written) * self.prices.input_usd / 1e6
            self.usd += out * self.prices.output_usd / 1e6


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@dataclass(frozen=True)
class _Upstream:
    secure: bool
    host: str
    prefix: str
    key: Mapping[str, str] = field(repr=False)

    def connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, timeout=TIMEOUT_S)


class ModelProxy(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves the socket at a path while the block runs; `key` are the headers that carry it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, url: str, key: Mapping[str, str], bill: Bill) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
            raise Usage("the address of the model's service is no http or https URL without a user")
        self.upstream = _Upstream(parts.scheme == "https", parts.netloc, parts.path.rstrip("/"), key)
        self.bill = bill
        super().__init__(str(path), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen(path)

    def get_request(self) -> tuple[Any, Any]:
        request, _ = self.socket.accept()
        return request, ("sandbox", 0)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answers in threads of its own while the block runs."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is the sandbox's own affair."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S
    server: ModelProxy

    def do_POST(self) -> None:
        refused, body = self._read()
        if refused is not None:
            return self._refuse(*refused)
        if (reason := self.server.bill.refusal()) is not None:
            return self._refuse(403, reason)
        try:
            self._relay(body)
        except (OSError, ValueError, http.client.HTTPException) as error:
            with contextlib.suppress(OSError):
                self._refuse(502, f"the model's service cannot be reached: {type(error).__name__}")
        return None

    def _read(self) -> tuple[tuple[int, str] | None, bytes]:
        """(status and reason of a refusal, or None; the request's body)."""
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > BODY_BYTES:
            return (413, f"a request states its length, of at most {BODY_BYTES} bytes"), b""
        body = self.rfile.read(int(length))
        parts = urlsplit(self.path)
        if parts.path not in PATHS or parts.query not in QUERIES:
            return (404, "nothing is reached from here but messages to the model"), b""
        try:
            request = json.loads(body)
        except (ValueError, RecursionError):
            return (400, "a request is JSON"), b""
        reason = _forbidden(request)
        return (None, body) if reason is None else ((403, reason), b"")

    def _relay(self, body: bytes) -> None:
        upstream = self.server.upstream
        headers = {name: self.headers[name] for name in _ASKED if name in self.headers}
        headers |= {"accept-encoding": "identity", **upstream.key}
        connection = upstream.connect()
        try:
            connection.request("POST", upstream.prefix + self.path, body, headers)
            answer = connection.getresponse()
            self.send_response_only(answer.status)
            for name in _TOLD:
                if (value := answer.headers.get(name)) is not None:
                    self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            meter = _Meter(self.server.bill, "event-stream" in answer.headers.get("content-type", ""))
            while data := answer.read1(1 << 16):
                meter.read(data)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            meter.close()
            self.wfile.write(b"0\r\n\r\n")
        finally:
            connection.close()

    def _refuse(self, status: int, reason: str) -> None:
        body = json.dumps({"type": "error", "error": {"type": "permission_error", "message": reason}}).encode()
        self.close_connection = True
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-should-retry", "false")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._refuse(404, "nothing is reached from here but messages to the model")

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_CONNECT = do_GET  # noqa: N815 - the base class's names

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: what the sandbox asks is no talk of ours."""


def _forbidden(request: object) -> str | None:
    """What in a request would reach further than the model, in words."""
    if not isinstance(request, dict):
        return "a request is a JSON object"
    if present := next((name for name in _FORBIDDEN if request.get(name)), None):
        return f"'{present}' would reach further than the model"
    tools = request.get("tools") or []
    for tool in tools if isinstance(tools, list) else [tools]:
        kind = tool.get("type", "custom") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or not kind.startswith(_OWN_TOOLS):
            return f"a tool of type '{str(kind)[:60]}' would be run by the service"
    return None


class _Meter:
    """Reads the tokens that an answer reports as it goes by: in lines of a stream of events, or in one JSON object."""

    def __init__(self, bill: Bill, events: bool) -> None:
        self.bill, self.events = bill, events
        self._rest = b""
        self._reported: dict[str, int] = {}

    def read(self, data: bytes) -> None:
        self._rest = (self._rest + data)[-_HELD_BYTES:]
        if self.events:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._look(line.removeprefix(b"data:"))

    def close(self) -> None:
        self._look(self._rest.removeprefix(b"data:"))

    def _look(self, text: bytes) -> None:
        """Counts of one answer only grow; what is more than before is added."""
        if b'"usage"' not in text:
            return
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return
        for holder in (record, record.get("message")) if isinstance(record, dict) else ():
            usage = holder.get("usage") if isinstance(holder, dict) else None
            if isinstance(usage, dict):
                now = {name: _count(value) for name, value in usage.items()}
                more = {name: value - self._reported.get(name, 0) for name, value in now.items()}
                self._reported |= {name: value for name, value in now.items() if more[name] > 0}
                self.bill.add({name: value for name, value in more.items() if value > 0})
