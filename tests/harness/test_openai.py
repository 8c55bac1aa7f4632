"""The adapter for OpenAI-compatible servers, against a scripted one on a real socket: what it asks and tells."""

import dataclasses
import json
import os
import socket
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from harness import process
from harness.campaign import time_arms
from harness.client import Engine
from harness.errors import Missing, Refused, Unsupported, Usage
from harness.forcing import Limits
from harness.openai import KEY
from harness.prepared import prepare
from harness.process import Process
from harness.run import run
from harness.samples import read
from harness.scoring import calibrate, force
from harness.target import Facts, read_facts
from harness.tree import tree_id
from harness.wire import Generate, Sampling, Settings, Target, check_reply
from tests.fakes.engine import STOP_ID, VOCABULARY, facts
from tests.fakes.server import Script, serving

ROOT = Path(__file__).parents[2]
ASK = Generate("a", [5, 6], 7, [STOP_ID])
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
PATIENCE_S = 0.8
# What the whole judge lets pass, lowered to what a scripted server says in a second.
LIMITS = Limits(sessions=20, tokens=300, bucket_tokens=200, reference_tokens=300)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A folder with all that the adapter reads of a model."""
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY, "eos_token_id": 7}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [STOP_ID, VOCABULARY]}))
    return folder


@pytest.fixture(scope="module")
def running():
    with serving() as made:
        yield made


@pytest.fixture
def server(running):
    """The server as it is by default; it has been asked nothing, and says nothing more to a client that went away."""
    until = time.monotonic() + 20
    while running.open and time.monotonic() < until:
        time.sleep(0.01)
    assert not running.open
    running.script = Script()
    running.asked.clear()
    running.headers.clear()
    running.most_open = 0
    running.left.clear()
    return running


def command(server, *words, model="toy"):
    url = server if isinstance(server, str) else server.url
    return [sys.executable, "-P", "-s", "-m", "harness.openai", "--url", url, "--model", model, *words]


def settings(target, **changes):
    return dataclasses.replace(Settings(Target(str(target)), dtype="float32", context=256, requests=3), **changes)


@pytest.fixture(scope="module")
def adapter(running, target):
    """One adapter for all tests of answers: whatever a server does to a request, the next one is served."""
    running.script = Script()
    with Engine.start(command(running, "--patience-s", str(PATIENCE_S)), ROOT) as engine:
        engine.load(settings(target))
        yield engine


def ask(**changes):
    return dataclasses.replace(ASK, **changes)


# --- what it says ---


def test_hello_and_ready(server, target):
    """It has no options; the model is told by the target's files, the context by the deployment."""
    with Engine.start(command(server), ROOT) as engine:
        ready = engine.load(settings(target))

        assert (engine.hello.engine, engine.hello.options) == ("openai", {})
        assert (ready.vocabulary, ready.stop_ids, ready.context, ready.bytes) == (VOCABULARY, [STOP_ID], 256, 0)
        assert engine.stats() == {"requests": 0, "steps": 0, "tokens": 0}


def test_every_event_is_a_line(adapter, server):
    """Events become `tokens` lines as they come; what is counted in the end is what they held."""
    server.script.tau = 3
    seen = []
    answer = adapter.generate(ask(max_tokens=8), lambda name, ids: seen.append(list(ids)))

    assert [len(ids) for ids in seen] == answer.lines == [1, 3, 3, 1]
    assert (answer.reason, len(answer.ids), answer.logprobs) == ("length", 8, None)


def test_prefills_token_stands_alone(adapter, server):
    """A server that brings prefill's token with others still makes a well-formed answer."""
    server.script.first, server.script.tau = 4, 2

    assert adapter.generate(ask(max_tokens=7)).lines == [1, 3, 2, 1]


@pytest.mark.parametrize("form", ["token_ids", "words"])
def test_both_forms_of_ids(server, target, form):
    """Ids come by `return_token_ids`, else in place of the words of log-probabilities; the answers are the same."""
    server.script.form = form
    with Engine.start(command(server), ROOT) as engine:
        engine.load(settings(target))
        answer = engine.generate(ask(logprobs=True))
    body = server.asked[-1]

    assert answer.ids == expected(ASK.prompt, 7)
    assert answer.logprobs == [-0.5] * 7
    assert ("return_token_ids" in body, "return_tokens_as_token_ids" in body) == (form == "token_ids", form == "words")


def test_a_strict_server_is_asked_in_the_other_form(server, target):
    """A server that refuses the field it does not know is asked once more, without it."""
    server.script.strict, server.script.form = True, "words"
    with Engine.start(command(server), ROOT) as engine:
        engine.load(settings(target))

        assert engine.generate(ASK).ids == expected(ASK.prompt, 7)


def expected(prompt, count):
    """The best tokens of the scripted language."""
    ids = []
    for _ in range(count):
        ids.append(facts(prompt + ids)[0])
    return ids


def test_what_the_server_is_asked(adapter, server):
    """Every setting goes over the wire, and those too that a server would else take from the model's files."""
    sampling = Sampling(0.5, 0.75, 9, 2**64 - 1)
    adapter.generate(ask(sampling=sampling, stop_ids=[STOP_ID, 11]))
    (body,) = server.asked

    assert body == {
        "model": "toy",
        "prompt": [5, 6],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "max_tokens": 7,
        "ignore_eos": False,
        "stop_token_ids": [STOP_ID, 11],
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 9,
        "seed": 2**63 - 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    }


def test_the_stop_id_is_the_last(adapter, server):
    """A stop id ends the answer and is part of it; with `ignore_eos` nothing does but the length."""
    server.script.stop_rate = 0.3
    stopped = adapter.generate(ask(max_tokens=100))
    ignoring = adapter.generate(ask(max_tokens=100, ignore_eos=True))

    assert stopped.reason == "stop"
    assert stopped.ids.index(STOP_ID) == len(stopped.ids) - 1
    assert (ignoring.reason, len(ignoring.ids)) == ("length", 100)
    assert ignoring.ids[: len(stopped.ids)] == stopped.ids
    assert server.asked[1]["stop_token_ids"] == []


def test_a_stop_id_that_is_left_out_is_put_back(adapter, server):
    """A server that names the stop id without sending it: the answer has it. One that names none is refused."""
    server.script.stop_rate = 0.3
    whole = adapter.generate(ask(max_tokens=100))
    server.script.fault = "stop left out"
    again = adapter.generate(ask(max_tokens=100))
    with pytest.raises(Refused, match="leaves out the stop id"):
        adapter.generate(ask(max_tokens=100, logprobs=True))
    server.script.fault = "fewer"
    with pytest.raises(Refused, match=r"ended with 'stop' after .* no stop id that it was given stands there"):
        adapter.generate(ask(max_tokens=100))

    assert (again.ids, again.reason) == (whole.ids, "stop")


def test_a_stop_id_at_the_length_is_a_stop(adapter, server):
    """The reason is what the ids say, whatever the server calls it."""
    server.script.stop_rate = 0.3
    count = len(adapter.generate(ask(max_tokens=100)).ids)

    assert adapter.generate(ask(max_tokens=count)).reason == "stop"


def test_several_requests_at_once(adapter, server):
    """Requests run beside one another in the server, and each gets its own answer."""
    server.script.step_s = 0.02
    asked = [ask(id=name, prompt=[5, at]) for at, name in enumerate("abc")]
    for each in asked:
        adapter.submit(each)
    answers = {answer.id: answer.ids for answer in (adapter.next_answer() for _ in asked)}

    assert answers == {each.id: expected(each.prompt, 7) for each in asked}
    assert server.most_open == 3


def test_cancel_closes_the_stream(adapter, server):
    """A cancelled request is done at once, its connection is gone, and the next one is served."""
    server.script.step_s = 0.05
    begin_s = time.monotonic()
    answer = adapter.generate(ask(max_tokens=200), lambda name, ids: adapter.cancel(name))
    took_s = time.monotonic() - begin_s

    assert (answer.reason, took_s < 1) == ("cancelled", True)
    assert server.left.wait(5)
    assert adapter.generate(ask(max_tokens=2)).reason == "length"


def test_the_server_is_let_go_with_the_adapter(server, target):
    """An adapter that is ended in the midst of an answer leaves no request behind in the server."""
    server.script.step_s = 0.05
    engine = Engine.start(command(server), ROOT)
    engine.load(settings(target))
    engine.submit(ask(max_tokens=200))
    engine.next_answer(deadline_s=time.monotonic() + 0.3)
    engine.kill()

    assert server.left.wait(5)


# --- servers that are off ---


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("400", "bad_request", r"answered 400: bad \[31m thing of None second line"),
        ("401", "bad_model", "the key is read from OPENAI_API_KEY"),
        ("404", "bad_model", "answered 404"),
        ("429", "internal", "answered 429"),
        ("500", "internal", "answered 500"),
        ("302", "internal", "answered 302"),  # a redirect is not followed
        ("html", "internal", "answered 502: <html><body> Bad Gateway"),
        ("plain", "internal", "'application/json' where a stream was asked for"),
        ("break", "internal", "broke off"),
        ("no end", "internal", "broke off before the end of its stream"),
        ("error", "internal", r"failed: the engine \[2J died"),
        ("garbage", "internal", "not JSON"),
        ("list", "internal", "an event that is no object"),
        ("huge", "internal", "a line of more than 16 MiB"),
        ("silent", "internal", "said nothing for 0.8 s"),
        ("choices", "internal", "the one choice that was asked for"),
        ("odd usage", "internal", "a 'usage' that counts nothing"),
        ("miscounted", "internal", r"counts \(2, 8\) tokens of prompt and answer, and there are \(2, 7\)"),
        ("outside", "internal", f"id {VOCABULARY}, outside the target's vocabulary of {VOCABULARY}"),
        ("negative", "internal", "token ids that are none"),
        ("more", "internal", r"went on after the end of the answer \(length\)"),
        ("fewer", "internal", "ended with 'length' after 6 of 7 tokens"),
        ("abort", "internal", "ended with 'abort'"),
        ("no finish", "internal", "ended with None"),
        ("text", "unsupported", "text without token ids"),
        ("prompt", "internal", "read another prompt than it was given"),
    ],
)
def test_a_bad_answer_is_named(adapter, server, fault, code, words):
    """Whatever a server does wrong ends that request, in one line without control characters; the next is served."""
    server.script.fault = fault
    with pytest.raises(Refused, match=words) as caught:
        adapter.generate(ASK)
    server.script.fault = None

    assert caught.value.code == code
    assert caught.value.message.isprintable()
    assert adapter.generate(ASK).ids == expected(ASK.prompt, 7)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "x", None, [1]])
def test_logprobs_that_are_none(adapter, server, value):
    """A log-probability that no line of the protocol can hold ends its request and no more."""
    server.script.logprob = value
    with pytest.raises(Refused, match=r"not JSON|log-probabilities that are none"):
        adapter.generate(ask(logprobs=True))
    server.script.logprob = -0.5
    assert adapter.generate(ASK).ids == expected(ASK.prompt, 7)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:99999", "is no address"),
        ("http://a..b:80", "no server answers at"),
        (f"http://{'a' * 70}.example:80", "no server answers at"),
    ],
)
def test_addresses_that_lead_nowhere(target, url, words):
    """An address that cannot be one is said to be none; the adapter does not die of it."""
    with Engine.start(command(url), ROOT) as engine, pytest.raises(Refused, match=words) as caught:
        engine.load(settings(target))
    assert caught.value.code == "bad_model"


def test_models_among_other_things(server, target):
    """Whatever else a server lists, the model that is asked for is found with its own context."""
    server.script.models = ["junk", None, {"id": ["toy"]}, {"id": "toy", "max_model_len": 512}]
    with Engine.start(command(server), ROOT) as engine:
        assert engine.load(settings(target, context=512)).context == 512


def test_missing_logprobs_are_named(adapter, server):
    """Each token has its log-probability, or the answer is none."""
    server.script.fault = "logprobs"
    with pytest.raises(Refused, match="sent 0 log-probabilities for 1 tokens"):
        adapter.generate(ask(logprobs=True))


def test_usage_may_be_missing(adapter, server):
    """A server that counts nothing is believed by its ids."""
    server.script.usage = False

    assert adapter.generate(ASK).reason == "length"


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ({"form": "text"}, "unsupported", "must know 'return_token_ids', as vLLM does from 0.10.2"),
        ({"models": [{"id": "other"}, {"id": "b"}]}, "bad_model", "no model 'toy'; it has 'other', 'b'"),
        ({"models": []}, "bad_model", "it has none"),
        ({"models": "odd"}, "bad_model", "it has none"),
        ({"models": b"<html>"}, "internal", "sent for '/models' what is not JSON"),
        ({"models": b"[]"}, "internal", "sent for '/models' what is no object"),
        ({"models": [{"id": "toy", "max_model_len": 255}]}, "bad_request", "256 tokens exceeds the server's 255"),
    ],
)
def test_a_server_that_cannot_be_used(server, target, script, code, words):
    """A server without ids, without the model or with less context is refused when it is loaded."""
    server.script = Script(**script)
    with Engine.start(command(server), ROOT) as engine, pytest.raises(Refused, match=words) as caught:
        engine.load(settings(target))

    assert caught.value.code == code


@pytest.mark.parametrize("models", [[{"id": "toy"}], [{"id": "toy", "max_model_len": None}]])
def test_a_server_that_tells_no_context(server, target, models):
    """The deployment's context then holds."""
    server.script.models = models
    with Engine.start(command(server), ROOT) as engine:
        assert engine.load(settings(target)).context == 256


def test_no_server(target):
    """A refused connection says where nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with (
        Engine.start(command(f"http://127.0.0.1:{port}"), ROOT) as engine,
        pytest.raises(
            Refused, match=rf"no server answers at 'http://127\.0\.0\.1:{port}': Connection refused"
        ) as caught,
    ):
        engine.load(settings(target))

    assert (caught.value.code, caught.value.exit_code) == ("bad_model", 4)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_address_with_and_without_v1(server, target, suffix):
    """Both are common, and both work."""
    with Engine.start(command(server.url + suffix), ROOT) as engine:
        assert engine.load(settings(target)).vocabulary == VOCABULARY


def test_proxies_are_not_used(server, target, monkeypatch):
    """A proxy of the environment never sees what is sent."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    passed = ("http_proxy", "HTTP_PROXY", "all_proxy")
    with Engine.start(command(server), ROOT, passed=passed) as engine:
        engine.load(settings(target))

        assert engine.generate(ASK).reason == "length"


# --- the key ---


def test_the_key_is_sent_and_never_shown(server, target, monkeypatch):
    """The key of the environment goes to the server alone: no message has it, not even one that the server wrote."""
    monkeypatch.setenv(KEY, "sk-secret")
    with Engine.start(command(server), ROOT, passed=(KEY,)) as engine:
        engine.load(settings(target))
        server.script.fault = "400"
        with pytest.raises(Refused, match=r"thing of Bearer \*\*\*") as caught:
            engine.generate(ASK)

    assert {each.get("Authorization") for each in server.headers} == {"Bearer sk-secret"}
    assert "secret" not in caught.value.message


def test_other_engines_get_no_key(monkeypatch, tmp_path):
    """What starts an engine passes the key on only where it is told to."""
    monkeypatch.setenv(KEY, "sk-secret")
    tell = "import json, os; os.write(4, json.dumps(dict(os.environ)).encode() + b'\\n')"
    told = Process([sys.executable, "-I", "-c", tell], tmp_path, None, os.environ)
    variables = json.loads(told.receive(10)[0])
    told.close()

    assert KEY not in variables
    assert KEY not in process.PASSED_ON


def test_a_key_that_is_none(server, target, monkeypatch):
    """A key that no header can hold is an error that does not show it."""
    monkeypatch.setenv(KEY, "sk-\nsecret")
    with Engine.start(command(server), ROOT, passed=(KEY,)) as engine, pytest.raises(Refused) as caught:
        engine.load(settings(target))

    assert KEY in caught.value.message
    assert "secret" not in caught.value.message


# --- what a server cannot do ---


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"mode": "exact"}, "unsupported", "no exact mode"),
        ({"head": "fp32"}, "unsupported", "head"),
        ({"drafter": "x"}, "unsupported", "the drafter that it was started with"),
        ({"options": {"depth": 3}}, "bad_option", "unknown option 'depth'"),
        ({"target": {"widen": 2}}, "unsupported", "not widened"),
        ({"target": {"jitter": 1}}, "unsupported", "not widened"),
        ({"target": {"path": "/nowhere"}}, "bad_model", "no model at '/nowhere'"),
        ({"prepared": True}, "unsupported", "prepares nothing"),
    ],
)
def test_settings_that_no_server_has(adapter, server, target, tmp_path, changes, code, words):
    """Each is refused by name, and nothing is loaded after; a good load then is."""
    made = {**changes, "target": Target(**{"path": str(target), **changes.get("target", {})})}
    if "prepared" in made:
        (tmp_path / "kernel").touch()
        made["prepared"] = str(tmp_path)
    with pytest.raises(Refused, match=words) as caught:
        adapter.load(dataclasses.replace(settings(target), **made))
    with pytest.raises(Refused) as after:
        adapter.generate(ASK)
    adapter.load(settings(target))

    assert caught.value.code == code
    assert after.value.code == "not_loaded"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"digest": True}, "unsupported"),
        ({"prompt": []}, "bad_request"),
        ({"stop_ids": [VOCABULARY]}, "bad_request"),
        ({"max_tokens": 0}, "bad_request"),
        ({"max_tokens": 255}, "too_long"),
        ({"sampling": Sampling(temperature=1e-9)}, "bad_request"),
        ({"sampling": Sampling(top_p=0)}, "bad_request"),
        ({"sampling": Sampling(top_k=-1)}, "bad_request"),
        ({"sampling": Sampling(seed=2**64)}, "bad_request"),
    ],
)
def test_requests_that_are_refused(adapter, server, changes, code):
    """They are refused before the server hears of them, by the protocol's codes."""
    with pytest.raises(Refused) as caught:
        adapter.generate(ask(**changes))

    assert caught.value.code == code
    assert server.asked == []


LOAD = {"v": 1, "op": "load", **Settings(Target("x")).fields()}
GENERATE = {"v": 1, "op": "generate", **dataclasses.asdict(ASK)}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json", "malformed"),
        (b"[]", "malformed"),
        (b'{"v": 1}', "malformed"),
        (b'{"v": 1, "op": "stats", "op": "stats"}', "malformed"),
        ({"v": 2, "op": "stats"}, "malformed"),
        ({"v": 1, "op": "dance"}, "unknown_op"),
        ({"v": 1, "op": "stats", "x": 1}, "malformed"),
        ({"v": 1, "op": "stats"}, "not_loaded"),
        ({**LOAD, "limits": {"context": 0, "requests": 1}}, "malformed"),
        ({**GENERATE, "prompt": [1.5]}, "malformed"),
        ({**GENERATE, "id": "x" * 1025}, "malformed"),
        (GENERATE, "not_loaded"),
        ({**LOAD, "op": "prepare", "dir": "/tmp"}, "unsupported"),
        ({"v": 1, "op": "score", "id": "a", "ids": [1, 2], "start": 1, "sampling": GREEDY}, "unsupported"),
        (
            {"v": 1, "op": "lattice", "id": "a", "ids": [1, 2], "start": 1, "sampling": GREEDY, "file": "x"},
            "unsupported",
        ),
        ({"v": 1, "op": "record", "on": True, "file": "x"}, "unsupported"),
        ({"v": 1, "op": "profile", "on": True, "file": "x"}, "unsupported"),
    ],
)
def test_lines_that_are_refused(lines, line, code):
    """Each line gets one `error` with the protocol's code, and the next line is read."""
    reply = lines(line if isinstance(line, bytes) else json.dumps(line).encode())

    assert (reply["op"], reply["code"]) == ("error", code)


@pytest.fixture(scope="module")
def lines(running):
    """Asks an adapter with nothing loaded line by line; every reply has its form."""
    worker = Process(command(running), ROOT, None, os.environ)
    assert check_reply(worker.receive(10)[0])["op"] == "hello"

    def ask_line(line):
        worker.send(line, 5)
        return check_reply(worker.receive(10)[0])

    yield ask_line
    assert ask_line(b'{"v": 1, "op": "shutdown"}')["op"] == "ok"
    assert worker.wait(5) == 0
    worker.close()


def test_open_requests_are_known_by_name(server, target):
    """An id is open once, no more are open than was said, and only what is open can be cancelled; a load ends all."""
    server.script.step_s = 0.05
    worker = Process(command(server), ROOT, None, os.environ)
    worker.receive(10)

    def tell(**line):
        worker.send(json.dumps({"v": 1, **line}).encode(), 5)

    def hear(*wanted):
        while (reply := check_reply(worker.receive(10)[0]))["op"] not in wanted:
            pass
        return reply

    load = settings(target, requests=1).fields()
    asked = dataclasses.asdict(ask(max_tokens=100))
    tell(op="load", **load)
    assert hear("ready", "error")["op"] == "ready"
    tell(op="generate", **asked)
    tell(op="generate", **asked)
    assert hear("error")["code"] == "duplicate_id"
    tell(op="generate", **{**asked, "id": "b"})
    assert hear("error")["code"] == "busy"
    tell(op="cancel", id="b")
    assert hear("error")["code"] == "unknown_id"
    tell(op="load", **load)
    assert hear("done")["reason"] == "cancelled"
    assert hear("ready", "error")["op"] == "ready"
    worker.close()


# --- in the harness ---


@pytest.fixture
def make_job(tmp_path, target, server):
    """Writes a job whose deployment is the server; its stock is the scripted engine, which has options."""

    def make(requests=None, a_options=None, arms=("a", "b", "stock"), **deployment):
        folder = tmp_path / "job"
        (folder / "system" / "stock").mkdir(parents=True, exist_ok=True)
        worker = f"import runpy\nrunpy.run_path({str(ROOT / 'tests/fakes/engine.py')!r}, run_name='__main__')\n"
        (folder / "system" / "stock" / "worker.py").write_text(worker)
        rows = requests or [{"id": str(at), "ids": [5, at + 3], "max_tokens": 60} for at in range(48)]
        (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole = {
            "name": "toy",
            "target": {"path": str(target), "widen": 1, "jitter": 0},
            "drafter": {"path": str(target)},  # stock's
            "sampling": GREEDY,
            "dtype": "float32",
            "mode": "fast",
            "device": "cpu",
            "engine": {"kind": "openai", "url": server.url, "model": "toy"},
            "context": 256,
            "load": {"concurrency": 2, "arrival": "closed"},
            **deployment,
        }
        tree = tree_id(folder / "system")
        fast = {"step_ms": 0, "prefill_ms": 0}
        options = {"a": a_options or {}, "b": fast, "stock": fast}
        job = {
            "v": 1,
            "kind": "job",
            "arms": {name: {"dir": "system", "tree": tree, "options": options[name]} for name in arms},
            "deployment": whole,
            "requests": "requests.jsonl",
            "seed": 0,
            "rule": "paired-1",
            "phase": "run",
            "units": 0,
        }
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    return make


def test_run(make_job, server, tmp_path):
    """`harness run` needs nothing but the deployment; the stock drafter is stock's, and no key is in what it writes."""
    events = []
    run(make_job(arms=("a",)), tmp_path / "out", None, events.append)
    kept = [json.loads(line) for line in (tmp_path / "out" / "answers.jsonl").read_text().splitlines()]

    assert events[0]["engine"] == "openai"
    assert {each["request"]: each["ids"] for each in kept} == {str(at): expected([5, at + 3], 60) for at in range(48)}
    assert server.most_open == 2


def test_options_are_refused(make_job, tmp_path):
    """A server takes no options of a system."""
    with pytest.raises(Usage, match="no option 'depth'"):
        run(make_job(arms=("a",), a_options={"depth": 3}), tmp_path / "out", None, lambda event: None)


def test_forcing_a_server(make_job, server, tmp_path):
    """Stock is always the stock worker: it calibrates itself, scores what the server says, and accepts an equal one.
    A server that says other words or errs in the midst is rejected; one that is not there is the user's to start.
    """
    server.script.stop_rate = 0.01  # as the scripted engine's
    job = make_job()
    calibrate(job, tmp_path / "own", None, lambda event: None, sandbox=False)
    assert server.asked == []
    reference = tmp_path / "own" / "samples.jsonl"
    same = force(job, tmp_path / "same", reference, None, lambda event: None, sandbox=False, limits=LIMITS)
    server.script.stop_rate = 0.05
    other = force(job, tmp_path / "other", reference, None, lambda event: None, sandbox=False, limits=LIMITS)
    server.script.fault = "outside"
    faulty = force(job, tmp_path / "faulty", reference, None, lambda event: None, sandbox=False, limits=LIMITS)
    gone = make_job(engine={"kind": "openai", "url": "http://127.0.0.1:9", "model": "toy"})
    with pytest.raises(Refused, match="no server answers"):
        force(gone, tmp_path / "gone", reference, None, lambda event: None, sandbox=False, limits=LIMITS)
    samples = read(tmp_path / "same" / "samples.jsonl")

    assert (same["answer"], same["mismatch"]) == ("accept", 0)
    assert (other["answer"], faulty["answer"]) == ("reject", "reject")
    assert samples.cards[-1]["sandbox"] == "unsandboxed"
    assert {said["arm"] for unit in samples.of("force") for said in unit.answers} == {"a"}


WARM = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "seed": 0}


def test_what_cannot_be_judged(make_job, server, tmp_path):
    """A sandbox around a server, drawn tokens and timing are refused with a way out, before anything is written."""
    out, job = tmp_path / "out", make_job()
    with pytest.raises(Usage, match="cannot be enclosed") as enclosed:
        force(job, out, tmp_path / "none", None, lambda event: None)
    with pytest.raises(Usage, match="cannot be enclosed"):
        prepare(job, out)
    with pytest.raises(Unsupported, match="same server"):
        time_arms(job, out, None, lambda event: None, sandbox=False)
    warm = make_job(sampling=WARM)
    for judge in (
        lambda: force(warm, out, tmp_path / "none", None, lambda event: None, sandbox=False),
        lambda: calibrate(warm, out, None, lambda event: None, sandbox=False),
    ):
        with pytest.raises(Unsupported, match=r"request '0' has temperature 0\.7") as drawn:
            judge()

    assert "--no-sandbox" in enclosed.value.hint
    assert "temperature: 0" in drawn.value.hint
    assert not out.exists()
    assert server.asked == []


def test_a_request_of_its_own_temperature_is_refused(make_job, tmp_path):
    """A request may bring sampling of its own; that is seen too."""
    job = make_job([{"id": "x", "ids": [5], "sampling": WARM}])
    with pytest.raises(Unsupported, match="request 'x' has temperature"):
        calibrate(job, tmp_path / "out", None, lambda event: None, sandbox=False)


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://x", "http://user:key@x", "http://x/v1?key=1", "http://", "http://x/#y", "http://x\n"],
)
def test_addresses_that_are_none(make_job, tmp_path, url):
    """An address has no user, no query and no other scheme: a job is no place for a key."""
    with pytest.raises(Usage, match="is not an address"):
        run(make_job(engine={"kind": "openai", "url": url, "model": "x"}), tmp_path / "out", None, lambda event: None)


def test_the_model_of_a_gguf_file(tmp_path):
    """The vocabulary is that of the embedding, whatever the tokenizer holds; ids that end a turn end an answer."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_token_list(["a", "b"])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    writer.add_tensor("token_embd.weight", np.zeros((6, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "torn.gguf").write_bytes((tmp_path / "x.gguf").read_bytes()[:40])

    assert read_facts(tmp_path / "x.gguf") == Facts(6, (2, 5))
    for name, error in (("torn.gguf", Unsupported), ("none", Missing)):
        with pytest.raises(error, match=name):
            read_facts(tmp_path / name)


@pytest.mark.parametrize(
    ("config", "words"),
    [("{", "cannot be read"), ("[]", "not a JSON object"), ("{}", "does not say how many"),
     ('{"vocab_size": 9, "eos_token_id": "x"}', "a stop id that is none")],
)  # fmt: skip
def test_a_target_that_says_nothing(tmp_path, config, words):
    """Files that do not tell the model are named."""
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(Unsupported, match=words):
        read_facts(tmp_path)
