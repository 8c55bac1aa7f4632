"""An OpenAI-compatible server, over HTTP: token ids go in, and come back as a stream of pieces.

Only ids count: a server that answers with text alone is refused, since text cannot be turned back into the ids that it
came from.  Connections are direct, whatever proxies the environment names, and each request has one of its own.
"""

import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from harness import shape
from harness.errors import plain
from harness.wire import MAX_LINE

__all__ = ["Piece", "Server", "ServerError", "Stream"]

CONNECT_S = 10.0
SAID_BYTES = 64 << 10  # of an error's body
SAID_LETTERS = 300
_ID = re.compile("token_id:([0-9]{1,10})")
# How a server is asked for ids: vLLM's own field, and ids in place of the words of log-probabilities.
FORMS: tuple[dict[str, Any], ...] = (
    {"return_token_ids": True},
    {"return_tokens_as_token_ids": True, "logprobs": 1},
)


class ServerError(Exception):
    """What is wrong with a server or with what it said: `code` is one of the protocol's, the message one line."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, plain(message)


@dataclass(frozen=True)
class Piece:
    """What one event of a stream brought."""

    ids: list[int]
    logprobs: list[float] | None  # where they were asked for


class Server:
    """A server at `url`, with or without `/v1`, asked for `model`; `key` is sent as a bearer token and never shown."""

    def __init__(self, url: str, model: str, key: str | None, patience_s: float) -> None:
        parts = urlsplit(url)
        self.url, self.model, self.patience_s = url, model, patience_s
        try:
            self._secure, self._host, self._port = parts.scheme == "https", parts.hostname or "", parts.port
        except ValueError as error:
            raise ServerError("bad_model", f"'{url}' is no address: {error}") from None
        path = parts.path.rstrip("/")
        self._base = path if path.endswith("/v1") else f"{path}/v1"
        if key is not None and not re.fullmatch("[!-~]+", key):
            raise ServerError("bad_request", "OPENAI_API_KEY holds what no key can")
        self._key = key
        self._form = FORMS[0]

    def context(self) -> int | None:
        """The most tokens of a request, where the server tells it; `bad_model` where it does not serve the model."""
        value = self._read_json("/models")
        served = value.get("data")
        models = [each for each in served if isinstance(each, dict)] if isinstance(served, list) else []
        names = [each.get("id") for each in models]
        if self.model not in names:
            known = ", ".join(f"'{name}'" for name in names[:8]) or "none"
            raise ServerError("bad_model", f"the server at '{self.url}' has no model '{self.model}'; it has {known}")
        longest = models[names.index(self.model)].get("max_model_len")
        return longest if isinstance(longest, int) and not isinstance(longest, bool) and longest > 0 else None

    def find_form(self) -> None:
        """Learns by an answer of one token how this server gives ids; `unsupported` where it gives none."""
        for self._form in FORMS:
            stream = self.stream([0], {"max_tokens": 1, "temperature": 0, "ignore_eos": True}, logprobs=False)
            try:
                found = [token for piece in stream for token in piece.ids]
            except _NoIds:
                continue
            except ServerError as error:
                if error.code == "bad_request" and self._form is not FORMS[-1]:
                    continue  # a strict server refuses the field that it does not know
                raise
            if found:
                return
        raise ServerError(
            "unsupported",
            f"the server at '{self.url}' gives text without token ids, which cannot be judged:"
            " it must know 'return_token_ids', as vLLM does from 0.10.2, or 'return_tokens_as_token_ids'",
        )

    def stream(self, prompt: Sequence[int], fields: Mapping[str, Any], *, logprobs: bool) -> "Stream":
        """A completion of the ids `prompt` that begins when it is iterated."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._form,
            **({"logprobs": 1} if logprobs else {}),
            **fields,
        }
        return Stream(self, body, logprobs=logprobs)

    def _read_json(self, path: str) -> dict[str, Any]:
        exchange = Exchange()
        try:
            response = self.send(exchange, "GET", path, None)
            value = shape.loads(response.read(MAX_LINE))
        except shape.Mismatch as error:
            raise self.broken(f"sent for '{path}' what is {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise self.broken(f"broke off: {_reason(error)}") from None
        finally:
            exchange.close()
        if not isinstance(value, dict):
            raise self.broken(f"sent for '{path}' what is no object")
        return value

    def send(
        self, exchange: "Exchange", method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        """The response to one request, its body unread; ServerError for any other status than 200."""
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection = self._connect()
        except (OSError, UnicodeError) as error:  # a name of a host that no resolver takes
            raise ServerError("bad_model", f"no server answers at '{self.url}': {_reason(error)}") from None
        exchange.hold(connection)
        connection.request(method, self._base + path, data, headers)
        response = connection.getresponse()
        exchange.response = response
        if response.status != 200:
            raise self._refused(response)
        return response

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_S)
        connection.connect()
        connection.sock.settimeout(self.patience_s)
        return connection

    def _refused(self, response: http.client.HTTPResponse) -> ServerError:
        status = response.status
        said = _said(response.read(SAID_BYTES))
        if self._key is not None:
            said = said.replace(self._key, "***")
        code = {400: "bad_request", 422: "bad_request", 401: "bad_model", 403: "bad_model", 404: "bad_model"}
        way_out = "; the key is read from OPENAI_API_KEY" if status in (401, 403) else ""
        told = f": {said}" if said else ""
        return ServerError(code.get(status, "internal"), f"the server answered {status}{told}{way_out}")

    def broken(self, what: str) -> ServerError:
        """The error for a server that does not keep to the form."""
        return ServerError("internal", f"the server at '{self.url}' {what}")


class _NoIds(ServerError):
    """An event with text and no ids."""

    def __init__(self) -> None:
        super().__init__("unsupported", "the server gave text without token ids")


class Exchange:
    """The connection of one request, which another thread may close."""

    def __init__(self) -> None:
        self.response: http.client.HTTPResponse | None = None
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._over = False

    def hold(self, connection: http.client.HTTPConnection) -> None:
        """Takes a connection; OSError where the exchange was stopped before it stood."""
        with self._lock:
            self._connection, self._socket = connection, connection.sock  # the library lets go of it before the body
            if self._over:
                raise ConnectionAbortedError("stopped")

    def stop(self) -> None:
        """Ends the exchange from another thread: whoever reads it sees its end."""
        with self._lock:
            self._over = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it has ended already
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of the connection, for the thread that reads it."""
        with self._lock:
            self._over, self._socket = True, None
            if self.response is not None:
                self.response.close()
            if self._connection is not None:
                self._connection.close()


class Stream:
    """The answer to one request; iterate it once.  After the last piece `finish` and `usage` say how it ended."""

    def __init__(self, server: Server, body: Mapping[str, Any], *, logprobs: bool) -> None:
        self.finish: str | None = None
        self.stop_id: int | None = None  # that ended it, where the server names it
        self.usage: tuple[int, int] | None = None  # tokens of prompt and answer, where it counts them
        self._server, self._body, self._logprobs = server, body, logprobs
        self._exchange = Exchange()

    def stop(self) -> None:
        """Ends the stream from another thread."""
        self._exchange.stop()

    def __iter__(self) -> Iterator[Piece]:
        """Pieces as they come; ServerError for whatever goes wrong."""
        server = self._server
        try:
            response = server.send(self._exchange, "POST", "/completions", self._body)
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise server.broken(f"answered with '{kind}' where a stream was asked for")
            for event in self._events(response):
                piece = self._piece(event)
                if piece is not None:
                    yield piece
        except TimeoutError:
            raise server.broken(f"said nothing for {server.patience_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise server.broken(f"broke off: {_reason(error)}") from None
        finally:
            self._exchange.close()

    def _events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        while line := response.readline(MAX_LINE + 1):
            if len(line) > MAX_LINE:
                raise self._server.broken(f"sent a line of more than {MAX_LINE >> 20} MiB")
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            try:
                event = shape.loads(data)
            except shape.Mismatch as error:
                raise self._server.broken(f"sent an event that is {error}") from None
            if not isinstance(event, dict):
                raise self._server.broken("sent an event that is no object")
            yield event
        raise self._server.broken("broke off before the end of its stream")

    def _piece(self, event: dict[str, Any]) -> Piece | None:
        if event.get("error"):
            raise self._server.broken(f"failed: {_said(json.dumps(event).encode())}")
        if event.get("usage") is not None:
            self._count(event["usage"])
        choices = event.get("choices")
        if choices == []:
            return None
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._server.broken("sent an event without the one choice that was asked for")
        return self._chosen(choices[0])

    def _count(self, usage: Any) -> None:
        held = usage if isinstance(usage, dict) else {}
        prompt, answer = held.get("prompt_tokens"), held.get("completion_tokens")
        if type(prompt) is not int or type(answer) is not int:
            raise self._server.broken("sent a 'usage' that counts nothing")
        self.usage = (prompt, answer)

    def _chosen(self, choice: dict[str, Any]) -> Piece:
        finish, stop_id = choice.get("finish_reason"), choice.get("stop_reason")
        if finish is not None:
            self.finish = str(finish)
            self.stop_id = stop_id if type(stop_id) is int else None
        if choice.get("prompt_token_ids") not in (None, self._body["prompt"]):
            raise self._server.broken("read another prompt than it was given")
        if choice.get("token_ids") is not None:
            ids = self._ids(choice["token_ids"])
        elif choice.get("logprobs") is not None:
            ids = self._ids(_ids_of_words(choice["logprobs"]))
        elif choice.get("text") or finish is None:
            raise _NoIds
        else:
            ids = []
        return Piece(ids, self._logprobs_of(choice, len(ids)) if self._logprobs else None)

    def _ids(self, value: Any) -> list[int]:
        if not isinstance(value, list) or any(type(token) is not int or token < 0 for token in value):
            raise self._server.broken("sent token ids that are none")
        return value

    def _logprobs_of(self, choice: dict[str, Any], count: int) -> list[float]:
        held = choice.get("logprobs")
        values = (held.get("token_logprobs") if isinstance(held, dict) else None) or []
        if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
            raise self._server.broken("sent log-probabilities that are none")
        if len(values) != count:
            raise self._server.broken(f"sent {len(values)} log-probabilities for {count} tokens")
        return values


def _ids_of_words(logprobs: Any) -> list[int]:
    """The ids that stand in place of words; _NoIds where words do."""
    words = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    found = [_ID.fullmatch(word) if isinstance(word, str) else None for word in words or ()]
    if not isinstance(words, list) or not all(found):
        raise _NoIds
    return [int(match[1]) for match in found if match is not None]


def _said(body: bytes) -> str:
    """The message in the body of an error, on one line."""
    text: Any = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        text = value.get("error", value)
        if isinstance(text, dict):
            text = text.get("message") or text.get("detail") or text
    return " ".join(plain(str(text)).split())[:SAID_LETTERS]


def _reason(error: Exception) -> str:
    """What an error of the network says; never what was sent."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, http.client.HTTPException):
        return type(error).__name__
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
