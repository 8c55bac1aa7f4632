"""The agent `claude` without a network: its options and hook over a scripted transport, and a fake command line.

Collected only where claude-agent-sdk is installed (conftest.py).
"""

import asyncio
import http.server
import json
import sys
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest

from spt.deployment import Deployment
from spt.errors import Missing, Unsupported, Usage
from spt.round.agents import Limits, Task, Workshop, claude, make_agent
from spt.round.budget import Stopped
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict
from spt.round.enclosure import Caps
from tests.spt.round.enclosed import rescued
from tests.spt.round.test_command import Tools, clean
from tests.spt.toys import git

# Speaks as the real command line does, on stdin and stdout, and plays the part that stands in its own PLAY.
FAKE = r"""#!{python}
import json, os, subprocess, sys, time, urllib.request
counter = 0
def send(record):
    print(json.dumps(record), flush=True)
def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def ask(request):
    global counter
    counter += 1
    send({{"type": "control_request", "request_id": f"c{{counter}}", "request": request}})
    while True:
        record = read()
        if record["type"] == "control_response":
            return record["response"]["response"]
def hook(name, given=None):
    told = ask({{"subtype": "hook_callback", "callback_id": HOOK, "tool_use_id": "t",
                "input": {{"hook_event_name": "PreToolUse", "tool_name": name, "tool_input": given or {{}}}}}})
    return told["hookSpecificOutput"]["permissionDecision"]
def mcp(method, params):
    global counter
    counter += 1
    message = {{"jsonrpc": "2.0", "id": counter, "method": method, "params": params}}
    return ask({{"subtype": "mcp_message", "server_name": "spt", "message": message}})["mcp_response"]
def tool(name, **arguments):
    assert hook(f"mcp__spt__{{name}}") == "allow"
    return json.loads(mcp("tools/call", {{"name": name, "arguments": arguments}})["result"]["content"][0]["text"])
def model(body=None):
    data = json.dumps(body or {{"model": "m", "messages": []}}).encode()
    headers = {{"content-type": "application/json", "x-api-key": os.environ["ANTHROPIC_AUTH_TOKEN"]}}
    request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", data, headers)
    return json.loads(urllib.request.urlopen(request, timeout=20).read())
def end(subtype="success", **more):
    send({{"type": "result", "subtype": subtype, "duration_ms": 1, "duration_api_ms": 1, "is_error": False,
          "num_turns": 1, "session_id": "s", "total_cost_usd": 0.25, **more}})
    sys.stdin.read()
    sys.exit(1 if more.get("is_error") else 0)
first = read()
HOOK = first["request"]["hooks"]["PreToolUse"][0]["hookCallbackIds"][0]
send({{"type": "control_response", "response": {{"subtype": "success", "request_id": first["request_id"],
      "response": {{"hook_on_failure_supported": True, "hooks_applied": True}}}}}})
PROMPT = read()["message"]["content"]
PROMPT = PROMPT if isinstance(PROMPT, str) else PROMPT[0]["text"]
send({{"type": "system", "subtype": "init", "session_id": "s", "claude_code_version": "2.1.332"}})
client = {{"name": "f", "version": "1"}}
mcp("initialize", {{"protocolVersion": "2024-11-05", "capabilities": {{}}, "clientInfo": client}})
{play}
"""
PATCH = """
open("stock/engine.py", "a").write("# faster\\n")
subprocess.run(["git", "commit", "-qam", "a mechanism"], check=True)
"""


class Service(http.server.BaseHTTPRequestHandler):
    """A model's service on loopback."""

    keys: ClassVar = []

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.keys.append(self.headers["x-api-key"])
        data = json.dumps({"content": [], "usage": {"input_tokens": 1000, "output_tokens": 100}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


@pytest.fixture
def service(monkeypatch):
    Service.keys = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("ANTHROPIC_API_KEY", "the-real-key")
        yield Service
        server.shutdown()
        thread.join()


@pytest.fixture
def base(deployment):
    return SystemOf(git(deployment, "rev-parse", "HEAD^{tree}")), git(deployment, "rev-parse", "HEAD")


@pytest.fixture
def direction(base):
    return Direction("claude-1", "explore", "claude", "A mechanism", "It wins.", *base)


@pytest.fixture
def bench(deployment, tmp_path, service, monkeypatch):
    """Makes the agent over a fake command line that plays this part; the rest are its limits."""

    def make(play, word="claude", **limits):
        folder = tmp_path / "programs"
        folder.mkdir(exist_ok=True)
        (folder / "claude").write_text(FAKE.format(python=sys.executable, play=play))
        (folder / "claude").chmod(0o755)
        monkeypatch.setattr(claude, "_find_cli", lambda: folder / "claude")
        workshop = Workshop(deployment, Deployment("toy", tmp_path, "none"), "r-1", Limits(**{"wall_s": 20, **limits}))
        return make_agent(word, workshop)

    return make


# --- a fake command line, in the real sandbox ---


def test_a_patch(deployment, bench, direction, service):
    """The command line works in the sandbox, its tools answer out here, and its commit becomes a candidate."""
    tools = Tools()
    play = (
        PATCH
        + """
assert "A mechanism" in PROMPT and os.getcwd() == "/spt/room/tree" and os.getuid() == 1000
assert model()["usage"]["output_tokens"] == 100
names = {one["name"] for one in mcp("tools/list", {})["result"]["tools"]}
assert names == {"offer", "measure_quick", "try_patch", "walk", "ceiling", "search_memory"}, names
assert tool("offer") == {"number": 0}
assert tool("measure_quick", number=0)["ratio"] == 1.25
assert "refused" in tool("walk", policy="../../x")
end()
"""
    )
    candidate = bench(play).implement(direction, tools)

    assert isinstance(candidate, Candidate), candidate
    assert candidate.note == "a mechanism"
    assert git(deployment, "rev-parse", "refs/spt/try/r-1/claude-1") == candidate.commit
    assert (tools.spent.input_tok, tools.spent.output_tok, tools.spent.usd) == (1000, 100, 0.25)
    assert tools.asked == [0]
    assert service.keys == ["the-real-key"]
    assert clean(deployment)


def test_what_it_is_started_with(bench, direction):
    """Settings of the worktree, other servers, other agents and the network's tools are off, whatever is asked."""
    play = (
        PATCH
        + """
words = sys.argv[1:]
assert "--setting-sources=" in words and "--strict-mcp-config" in words
assert words[words.index("--permission-mode") + 1] == "dontAsk"
assert words[words.index("--tools") + 1] == "Bash,Read,Write,Edit,Glob,Grep"
assert words[words.index("--max-turns") + 1] == "7" and words[words.index("--max-budget-usd") + 1] == "3"
assert words[words.index("--model") + 1] == "some-model"
assert first["request"]["hooks"]["PreToolUse"][0]["onFailure"] == "block" and not first["request"].get("agents")
for name in ("Task", "Agent", "WebFetch", "WebSearch", "mcp__other__x", "Skill", "KillShell"):
    assert hook(name) == "deny", name
for name in ("Bash", "Read", "Edit", "mcp__spt__offer"):
    assert hook(name) == "allow", name
end()
"""
    )
    assert isinstance(bench(play, "claude:some-model@3/15", turns=7, usd=3).implement(direction, Tools()), Candidate)


def test_no_key_in_the_sandbox(bench, direction):
    """The key is in no variable and no file of the sandbox, nor in what a request comes back with."""
    play = (
        PATCH
        + """
key = "-".join(["the", "real", "key"])
assert key not in json.dumps(dict(os.environ)) + json.dumps(model())
for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
    for name in ("environ", "cmdline"):
        assert key not in open(f"/proc/{pid}/{name}", errors="replace").read()
for place, folders, names in os.walk("/spt"):
    for name in names:
        if os.path.isfile(os.path.join(place, name)):
            assert key.encode() not in open(os.path.join(place, name), "rb").read(), name
end()
"""
    )
    assert isinstance(bench(play).implement(direction, Tools()), Candidate)


def test_proposals(bench, base, deployment):
    """The model proposes with one tool; what does not fit is refused."""
    play = """
assert "the words of the task" in PROMPT
assert tool("direction", title="A tree", hypothesis="It wins.", predicted_gain=1.1, low=1.0, high=1.2)["direction"]
assert "refused" in tool("direction", title="x" * 500, hypothesis="x")
end()
"""
    (found,) = bench(play).propose(Task("explore", *base, slots=1, text="the words of the task"))

    assert (found.id, found.title, found.predicted_gain) == ("claude-1", "A tree", 1.1)
    assert clean(deployment)


def test_a_revision(deployment, bench, direction):
    """A revision goes on from the candidate, and knows what the gate said."""
    tools = Tools()
    first = bench(PATCH + "end()").implement(direction, tools)
    play = PATCH + "assert 'token 7' in PROMPT; end()"
    second = bench(play).revise(direction, Verdict("exact", False, "it differs from token 7 on"), tools)

    assert isinstance(second, Candidate), second
    assert git(deployment, "rev-parse", f"{second.commit}^") == first.commit
    assert tools.spent.usd == 0.5


@pytest.mark.parametrize(
    ("play", "limits", "reason"),
    [
        ("time.sleep(60)", {"wall_s": 1}, "it did not end within 1 s, and was stopped"),
        (
            "end('error_max_turns', is_error=True, terminal_reason='max_turns')",
            {},
            "the model's run ended with 'max_turns'",
        ),
        (
            "end(is_error=True, api_error_status=529, terminal_reason='api_error')",
            {},
            "the model's run ended with 'api_error'",
        ),
        ("sys.stderr.write('it broke\\n'); sys.stderr.flush(); sys.exit(3)", {}, "it ended with status 3: it broke"),
        ("print('{broken', flush=True); sys.stdin.read()", {"wall_s": 2}, ""),
        (
            "model()\ntry:\n model()\nexcept OSError:\n end(is_error=True)",
            {"usd": 0.01},
            "the budget of 0.01 dollars is used up",
        ),
        ("subprocess.run(['sh', '-c', 'kill -9 -1'])", {}, ""),
    ],
)
def test_failures(deployment, bench, direction, play, limits, reason):
    """However a run fails it is named in one line, and the commits that it made are rescued."""
    save = 'subprocess.run(["tool", "offer"], check=True, stdout=subprocess.DEVNULL)\n'
    answer = bench(PATCH + save + play, **limits).implement(direction, Tools())

    assert isinstance(answer, Candidate)  # it was offered
    declined = bench(PATCH + play, **limits).implement(direction, Tools())
    assert isinstance(declined, Declined)
    assert declined.failed
    assert declined.reason.startswith(reason)
    assert "\n" not in declined.reason
    assert clean(deployment)


def test_the_round_stops(bench, direction, deployment):
    """What a tool raises for the round, such as its minutes being up, ends the conversation and is raised again."""

    class Busy(Tools):
        def measure_quick(self, number):
            raise Stopped("the minutes are up")

    play = PATCH + "tool('offer'); tool('measure_quick', number=0); time.sleep(60)"
    with pytest.raises(Stopped):
        bench(play).implement(direction, Busy())

    assert len(rescued(deployment, "claude-1")) == 1
    assert clean(deployment)


# --- a scripted transport ---


class Script:
    """A transport whose other side is this class."""

    def __init__(self, *asked):
        self.asked, self.answers = list(asked), []
        self.lines = asyncio.Queue()

    async def connect(self):
        pass

    async def write(self, data):
        record = json.loads(data)
        if record["type"] == "control_request":
            self.hooks = record["request"]["hooks"]
            told = {"hook_on_failure_supported": True, "hooks_applied": True}
            answer = {"subtype": "success", "request_id": record["request_id"], "response": told}
            await self.lines.put({"type": "control_response", "response": answer})
        elif record["type"] == "user":
            await self._next()
        else:
            self.answers.append(record["response"])
            await self._next()

    async def _next(self):
        if self.asked:
            name = self.asked.pop(0)
            request = {
                "subtype": "hook_callback",
                "callback_id": self.hooks["PreToolUse"][0]["hookCallbackIds"][0],
                "tool_use_id": "t",
                "input": {"hook_event_name": "PreToolUse", **({"tool_name": name} if name else {}), "tool_input": {}},
            }
            await self.lines.put({"type": "control_request", "request_id": f"h{len(self.asked)}", "request": request})
        else:
            fields = {"duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1, "session_id": "s"}
            await self.lines.put({"type": "result", "subtype": "success", **fields})
            await self.lines.put(None)

    async def read_messages(self):
        while (line := await self.lines.get()) is not None:
            yield line

    async def close(self):
        pass

    def is_ready(self):
        return True

    async def end_input(self):
        pass


def test_the_hook(bench, tmp_path):
    """Every call passes the hook: what is not on its list is denied, and where it fails it blocks."""
    agent = bench("")
    clone = SimpleNamespace(folder=tmp_path)
    session = SimpleNamespace(clone=clone, launcher=tmp_path / "x", caps=Caps(wall_s=10), fetch=lambda: None)

    async def talk():
        script = Script("Bash", "WebFetch", None)
        said = await agent._converse(session, "words", {"offer": {"type": "object"}}, dict, script)
        return script, said

    script, said = asyncio.run(talk())
    allowed, denied, broken = script.answers

    assert said.finished
    assert said.problem is None
    assert allowed["response"]["hookSpecificOutput"]["permissionDecision"] == "allow"
    assert denied["response"]["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert broken["subtype"] == "error"
    assert script.hooks["PreToolUse"][0]["onFailure"] == "block"


# --- what must be there ---


def test_without_a_key(bench, monkeypatch):
    """Without a key the round does not begin, and hears of agents that need none."""
    agent = bench
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    with pytest.raises(Missing, match="no key") as caught:
        agent("")

    assert "memory" in caught.value.hint


def test_the_key_is_not_shown(bench):
    """An agent that is printed shows no key."""
    assert "the-real-key" not in repr(bench(""))


@pytest.mark.parametrize("word", ["claude:a b", "claude:m@3", "claude:m@x/y", "claude:--flag=1@"])
def test_words_that_are_no_model(bench, word):
    """What is no model, or no price, is refused."""
    with pytest.raises(Usage, match="is no model"):
        bench("", word)


def test_a_broken_proposal(bench, base):
    """A model that ends without a proposal because it failed is an error in one line."""
    with pytest.raises(Unsupported, match="the model proposes nothing: the model's run ended with 'api_error'"):
        bench("end(is_error=True, terminal_reason='api_error')").propose(Task("explore", *base, slots=1))
