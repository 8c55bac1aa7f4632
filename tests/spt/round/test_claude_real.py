"""The agent `claude` with the real command line, against a model's service that is played on loopback.

Collected only where claude-agent-sdk came with its command line (conftest.py).
"""

import http.server
import json
import threading

import pytest

from spt.deployment import Deployment
from spt.round.agents import Limits, Workshop, make_agent
from spt.round.direction import Candidate, Direction, SystemOf
from tests.spt.round.test_command import Tools, clean
from tests.spt.toys import git

SHELL = """
id -u; pwd; echo '# faster' >> stock/engine.py; git commit -qam 'a mechanism'
curl -sS -m 3 http://192.0.2.1; touch /usr/x; env | grep -c the-real-key; true
"""
# What the model does, one after the other: the tools that it calls.
PLAY = (
    ("Bash", {"command": SHELL}),
    ("WebFetch", {"url": "http://elsewhere.invalid", "prompt": "x"}),
    ("mcp__spt__offer", {}),
    ("mcp__spt__measure_quick", {"number": 0}),
    ("Write", {"file_path": "/spt/room/tree/stock/new.py", "content": "x = 1\n"}),
)


def events(model, use, number):
    """The events of one streamed answer: a call of a tool, or the end."""
    usage = {"input_tokens": 100, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    block = (
        {"type": "text", "text": ""}
        if use is None
        else {"type": "tool_use", "id": f"toolu_{number}", "name": use[0], "input": {}}
    )
    delta = {"type": "text_delta", "text": "done"}
    if use is not None:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(use[1])}
    stop = {"stop_reason": "end_turn" if use is None else "tool_use", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]


@pytest.fixture
def service(monkeypatch):
    """What the service was asked: (key, names of tools), and the results of tools that it was told."""
    asked, results = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            lists = [one["content"] for one in body["messages"] if isinstance(one["content"], list)]
            found = [block for content in lists for block in content if block.get("type") == "tool_result"]
            results[:] = [json.dumps(block["content"]) for block in found]
            asked.append((self.headers["x-api-key"], [tool["name"] for tool in body.get("tools", [])]))
            use = PLAY[len(found)] if body.get("tools") and len(found) < len(PLAY) else None
            made = events(body["model"], use, len(found))
            data = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in made).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "the-real-key")
        yield asked, results
        server.shutdown()
        thread.join()


def test_the_real_command_line(deployment, tmp_path, service):
    """It works in the sandbox: its shell and files there, our tools out here, nothing else to reach, and no key."""
    asked, results = service
    base = SystemOf(git(deployment, "rev-parse", "HEAD^{tree}")), git(deployment, "rev-parse", "HEAD")
    workshop = Workshop(deployment, Deployment("toy", tmp_path, "none"), "r-1", Limits(wall_s=120, turns=12, usd=5))
    tools = Tools()
    direction = Direction("claude-1", "explore", "claude", "A mechanism", "It wins.", *base)
    candidate = make_agent("claude:claude-sonnet-4-5@3/15", workshop).implement(direction, tools)

    assert isinstance(candidate, Candidate), candidate
    assert candidate.note == "a mechanism"
    assert git(deployment, "show", f"{candidate.commit}:stock/new.py") == "x = 1"
    shell, web, offered, measured, _ = results
    assert "1000" in shell and "/spt/room/tree" in shell
    assert "Failed to connect" in shell and "Read-only file system" in shell and "the-real-key" not in shell
    assert "No such tool" in web or "there are these tools" in web
    assert "number" in offered and "1.25" in measured
    assert {key for key, _ in asked} == {"the-real-key"}
    assert not {"Task", "Agent", "WebFetch", "WebSearch"} & {name for _, names in asked for name in names}
    assert tools.asked == [0]
    assert tools.spent.input_tok == 100 * len(asked)
    assert clean(deployment)
