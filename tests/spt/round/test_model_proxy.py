"""spt/round/model_proxy.py: what passes from a sandbox to the model, what does not, and what it cost."""

import contextlib
import http.client
import http.server
import json
import socket
import threading

import pytest

from spt.errors import Usage
from spt.round.model_proxy import MAX_REQUESTS, Bill, ModelProxy, Prices

KEY = {"x-api-key": "the-real-key"}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
EVENTS = [
    {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 100, "cache_read_input_tokens": 1000, "output_tokens": 1}},
    },
    {"type": "content_block_delta", "delta": {"text": '"usage" is a word here'}},
    {"type": "message_delta", "usage": {"output_tokens": 50}},
]


class Service:
    """A model's service on loopback: answers what it was given, and notes what it was asked."""

    def __init__(self):
        self.asked = []
        self.stream, self.status = False, 200
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                service.asked.append((self.path, dict(self.headers), json.loads(body)))
                if service.stream:
                    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS]
                    kind, data = "text/event-stream", "".join(lines).encode()
                else:
                    kind = "application/json"
                    data = json.dumps(
                        {"content": [], "usage": {"input_tokens": 7, "output_tokens": 3}}, indent=1
                    ).encode()
                self.send_response(service.status)
                self.send_header("content-type", kind)
                self.send_header("set-cookie", "secret=1")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def service():
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


class Client(http.client.HTTPConnection):
    """As a sandbox's loopback port leads to the socket."""

    def __init__(self, path):
        super().__init__("sandbox", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


@contextlib.contextmanager
def proxied(folder, service, bill=None):
    """Asks through a proxy: (method, path, body, headers) -> (status, headers, body)."""
    with ModelProxy(folder / "m", service.url, KEY, bill or Bill()).serving():

        def ask(method="POST", path="/v1/messages", body=ASKED, headers=None):
            client = Client(folder / "m")
            data = json.dumps(body) if isinstance(body, dict | list) else body
            client.request(method, path, data, headers or {"content-type": "application/json"})
            answer = client.getresponse()
            found = answer.status, dict(answer.headers), answer.read()
            client.close()
            return found

        yield ask


def test_a_message(tmp_path, service):
    """A message reaches the service with the key, and with nothing else that the sandbox sent along."""
    bill = Bill(Prices(10, 50))
    with proxied(tmp_path, service, bill) as ask:
        sent = {
            "x-api-key": "forged",
            "authorization": "Bearer forged",
            "cookie": "a=b",
            "anthropic-version": "2023-06-01",
        }
        status, headers, body = ask(path="/v1/messages?beta=true", headers=sent)
    path, got, asked = service.asked[0]

    assert (status, json.loads(body)["usage"]["output_tokens"]) == (200, 3)
    assert (path, asked) == ("/v1/messages?beta=true", ASKED)
    assert got["x-api-key"] == "the-real-key"
    assert got["anthropic-version"] == "2023-06-01"
    assert not {"authorization", "cookie"} & {name.lower() for name in got}
    assert "set-cookie" not in {name.lower() for name in headers}
    assert (bill.requests, bill.input_tok, bill.output_tok) == (1, 7, 3)
    assert bill.usd == pytest.approx(7 * 10e-6 + 3 * 50e-6)


def test_a_stream(tmp_path, service):
    """Events go by as they come, and their tokens are counted once, cached ones at their own price."""
    service.stream, bill = True, Bill(Prices(10, 50))
    with proxied(tmp_path, service, bill) as ask:
        status, headers, body = ask()

    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert body.count(b"data: ") == 3
    assert (bill.input_tok, bill.output_tok) == (1100, 50)
    assert bill.usd == pytest.approx((100 + 1000 / 10) * 10e-6 + 50 * 50e-6)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/models", None, 404),
        ("POST", "/v1/files", ASKED, 404),
        ("POST", "/v1/messages/batches", ASKED, 404),
        ("POST", "/v1/messages/../x", ASKED, 404),
        ("POST", "/v1/messages?to=elsewhere", ASKED, 404),
        ("POST", "http://elsewhere.invalid/v1/messages/x", ASKED, 404),
        ("CONNECT", "elsewhere.invalid:443", None, 404),
        ("POST", "/v1/messages", "not json", 400),
        ("POST", "/v1/messages", "[" * 100_000, 400),
        ("POST", "/v1/messages", [], 403),
        ("POST", "/v1/messages", {**ASKED, "mcp_servers": [{"url": "http://elsewhere.invalid"}]}, 403),
        ("POST", "/v1/messages", {**ASKED, "container": "x"}, 403),
        ("POST", "/v1/messages", {**ASKED, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 403),
        ("POST", "/v1/messages", {**ASKED, "tools": [{"type": "code_execution_20250522", "name": "c"}]}, 403),
        ("POST", "/v1/messages", {**ASKED, "tools": ["web_fetch"]}, 403),
    ],
)
def test_what_does_not_pass(tmp_path, service, method, path, body, status):
    """Nothing but messages to the model passes, and no tool by which the service would reach further for the agent."""
    with proxied(tmp_path, service) as ask:
        found = ask(method, path, body)

    assert found[0] == status
    assert service.asked == []
    assert b"the-real-key" not in found[2]


def test_tools_of_its_own_pass(tmp_path, service):
    """Tools that the sandbox runs itself are the model's to call."""
    tools = [
        {"name": "Bash", "input_schema": {}},
        {"type": "custom", "name": "x"},
        {"type": "bash_20250124", "name": "bash"},
    ]
    with proxied(tmp_path, service) as ask:
        assert ask(body={**ASKED, "tools": tools})[0] == 200


@pytest.mark.parametrize(
    "headers", [{"transfer-encoding": "chunked"}, {"content-length": "-1"}, {"content-length": "1e9"}]
)
def test_lengths(tmp_path, service, headers):
    """A request whose length is not stated plainly is refused."""
    with proxied(tmp_path, service) as ask:
        assert ask(body=b"", headers=headers)[0] == 413

    assert service.asked == []


def test_the_budget(tmp_path, service):
    """The request that comes after the budget was used up is refused, whatever the agent thinks of its budget."""
    bill = Bill(Prices(1e6, 1e6), limit_usd=5)
    with proxied(tmp_path, service, bill) as ask:
        first, second = ask()[0], ask()

    assert (first, second[0]) == (200, 403)
    assert b"the budget of 5 dollars is used up" in second[2]
    assert len(service.asked) == 1


def test_many_requests(tmp_path, service):
    """A loop of requests comes to an end."""
    bill = Bill(requests=MAX_REQUESTS)
    with proxied(tmp_path, service, bill) as ask:
        assert ask()[0] == 403


def test_a_service_that_is_not_there(tmp_path, service):
    """A service that cannot be reached is an answer, without the key or the address."""
    service.url = "http://127.0.0.1:1"
    with proxied(tmp_path, service) as ask:
        status, _, body = ask()

    assert status == 502
    assert b"cannot be reached" in body
    assert b"127.0.0.1" not in body


def test_errors_of_the_service_pass(tmp_path, service):
    """A refusal of the service's own reaches the agent as it is."""
    service.status = 529
    with proxied(tmp_path, service) as ask:
        assert ask()[0] == 529


@pytest.mark.parametrize("url", ["ftp://x", "x", "https://user:secret@x", ""])
def test_addresses(tmp_path, url):
    """What is no address of a service is refused, and not repeated, since it may hold a secret."""
    with pytest.raises(Usage) as caught:
        ModelProxy(tmp_path / "m", url, KEY, Bill())

    assert "secret" not in caught.value.message
    assert "the-real-key" not in repr(Bill())
