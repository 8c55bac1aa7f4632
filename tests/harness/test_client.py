"""harness/client.py: what a conforming engine says arrives, and one that misbehaves is caught, named and killed."""

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from harness import process
from harness.client import Engine
from harness.errors import Crashed, Hung, Missing, Refused, Usage, Violation
from harness.process import environment
from harness.wire import Generate, Prepared, Sampling, Settings, Target
from spt import job
from tests.fakes.parrot import HELLO
from tests.harness.schemas import validator

FAKES = Path(__file__).parents[1] / "fakes"
FAKE = [sys.executable, "-P", "-s", str(FAKES / "engine.py")]
SETTINGS = Settings(Target("toy"), dtype="float32", mode="exact", context=256, requests=2)
ASK = Generate("a", [5, 6], 7, [2], ignore_eos=True)
READY = {"v": 1, "op": "ready", "load_s": 0, "bytes": 0, "vocabulary": 9, "stop_ids": [2], "context": 64}


def settings(**options):
    return dataclasses.replace(SETTINGS, options={"step_ms": 0, "prefill_ms": 0, **options})


@pytest.fixture
def fake(tmp_path):
    """A loaded fake engine, by its options."""
    engines = []

    def start(**options):
        engines.append(Engine.start(FAKE, tmp_path))
        engines[-1].load(settings(**options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.kill()


@pytest.fixture
def parrot(tmp_path):
    """An engine that repeats scripted lines: at the start, and after each line that it reads."""
    engines = []

    def start(*turns, hello=HELLO):
        script = tmp_path / "script.json"
        script.write_text(json.dumps([[hello] if hello else [], *turns]))
        engines.append(Engine.start([sys.executable, "-P", "-s", str(FAKES / "parrot.py"), str(script)], tmp_path))
        return engines[-1]

    yield start
    for engine in engines:
        engine.kill()


def tokens(*ids, name="a", **extra):
    return {"v": 1, "op": "tokens", "id": name, "ids": list(ids), **extra}


def done(reason, completion, steps, name="a", prompt=2, **extra):
    usage = {"prompt_tok": prompt, "completion_tok": completion, "steps": steps}
    return {"v": 1, "op": "done", "id": name, "reason": reason, "usage": usage, **extra}


def error(code, name=None):
    return {"v": 1, "op": "error", "id": name, "code": code, "message": "words"}


def is_gone(group, patience_s=5.0):
    """Whether no process of the group lives any more, or stops living within the patience."""
    deadline = time.monotonic() + patience_s
    while living(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not living(group)


def living(group):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it ended meanwhile
        if int(its_group) == group and state not in "ZX":
            found.append(path.parent.name)
    return found


# --- a conforming engine ---


def test_generate(fake):
    """Tokens come with the callback as they are read, in lines that show tau, with times in order."""
    seen = []
    answer = fake(tau=3).generate(
        dataclasses.replace(ASK, logprobs=True, digest=True), lambda name, ids: seen.append((name, ids))
    )

    assert [len(ids) for _, ids in seen] == answer.lines == [1, 3, 3]
    assert [token for name, ids in seen if name == "a" for token in ids] == answer.ids
    assert (answer.reason, answer.prompt_tok, len(answer.logprobs), len(answer.logits_sha256)) == ("length", 2, 7, 64)
    assert answer.written_ns < answer.read_ns[0] <= answer.read_ns[-1] <= answer.done_ns


def test_clock_is_ours(fake):
    """Prefill and decode times are the engine's waits and no more than the call took."""
    engine = fake(prefill_ms=40, step_ms=50)
    before = time.perf_counter()
    answer = engine.generate(ASK)
    whole_s = time.perf_counter() - before

    assert answer.prefill_s > 0.04
    assert answer.decode_s > 0.2
    assert answer.prefill_s + answer.decode_s < whole_s


def test_lines_that_we_send_are_valid():
    """`load` and `generate` are as the schema wants them."""
    request = validator("protocol", "#/$defs/request")
    both = [settings(), dataclasses.replace(settings(), drafter="/d", prepared="/p", options={"a": "x", "b": True})]

    for load in both:
        request.validate({"v": 1, "op": "load", **load.fields()})
    request.validate({"v": 1, "op": "generate", **dataclasses.asdict(ASK)})


def test_several_requests_are_open_at_once(fake):
    """Each finished answer comes once, whole and under its own id, and tokens of all pass the callback."""
    engine, seen = fake(tau=2), {"a": [], "b": []}
    alone = {
        name: engine.generate(dataclasses.replace(ASK, id=name, prompt=[9, len(name)])).ids for name in ("a", "bb")
    }
    engine.submit(dataclasses.replace(ASK, id="a", prompt=[9, 1]))
    engine.submit(dataclasses.replace(ASK, id="b", prompt=[9, 2]))
    assert engine.open_ids == ["a", "b"]
    answers = [engine.next_answer(lambda name, ids: seen[name].extend(ids)) for _ in range(2)]

    assert {answer.id: answer.ids for answer in answers} == seen == {"a": alone["a"], "b": alone["bb"]}
    assert engine.open_ids == []


def test_one_refused_request_leaves_the_others(fake):
    """`Refused` names the request; the other open one still gets its answer, and the engine goes on."""
    engine = fake(step_ms=5)
    engine.submit(ASK)
    engine.submit(dataclasses.replace(ASK, id="long", max_tokens=10_000))
    with pytest.raises(Refused) as caught:
        while True:
            engine.next_answer()

    assert (caught.value.code, caught.value.request, caught.value.exit_code) == ("too_long", "long", 2)
    if engine.open_ids:
        assert engine.next_answer().id == "a"
    assert len(engine.generate(ASK).ids) == 7


def test_cancel(fake):
    """A cancelled request ends early with reason `cancelled`, and what it had counts."""
    engine = fake(step_ms=5)
    answer = engine.generate(dataclasses.replace(ASK, max_tokens=200), lambda name, ids: engine.cancel(name))

    assert answer.reason == "cancelled"
    assert 1 <= len(answer.ids) < 200
    assert len(engine.generate(ASK).ids) == 7


def test_cancel_that_comes_too_late_is_no_error(parrot):
    """The engine was done before it read our `cancel`: its `unknown_id` is expected, once."""
    late = error("unknown_id", "a")
    engine = parrot(GREETED, [tokens(5)], [tokens(2), done("stop", 2, 1), late], [late])
    engine.load(SETTINGS)
    answer = engine.generate(
        Generate("a", [1, 3], 7, [2]), lambda name, ids: engine.cancel(name) if ids == [5] else None
    )

    assert answer.reason == "stop"
    with pytest.raises(Refused, match="unknown_id"):
        engine.stats()


def test_deadline_leaves_requests_open(fake):
    """When the deadline passes there is no answer yet, and the request goes on."""
    engine = fake(step_ms=30)
    engine.submit(ASK)

    assert engine.next_answer(deadline_s=time.monotonic() + 0.05) is None
    assert engine.open_ids == ["a"]
    assert len(engine.next_answer().ids) == 7


def test_score(fake):
    """What one engine says another scores: margin 0 where it agrees."""
    engine = fake()
    ids = engine.generate(ASK).ids
    scores = engine.score([5, 6, *ids[:3], 999, *ids[4:]], 2, Sampling())

    assert scores.argmax[:3] == ids[:3]
    assert [margin > 0 for margin in scores.margin[:4]] == [False, False, False, True]
    assert len(scores.kept) == len(ids)


def test_stats(fake):
    """Counters come as they are."""
    engine = fake()
    engine.generate(ASK)

    assert engine.stats() == {"requests": 1, "steps": 6, "tokens": 7}


def test_prepare(tmp_path):
    """What `prepare` wrote is checked against what it says, and the engine has ended."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    with Engine.start(FAKE, tmp_path) as engine:
        group = engine.pid
        prepared = engine.prepare(settings(), folder)

    assert prepared.files == 1
    assert prepared.bytes == len((folder / "fake.txt").read_bytes())
    assert is_gone(group)


def test_prepare_that_states_something_else(parrot, tmp_path):
    """A count, a size or a digest that the folder does not bear out breaks the protocol."""
    (tmp_path / "empty").mkdir()
    said = {"v": 1, "op": "prepared", **dataclasses.asdict(Prepared(1, 0, "0" * 64))}
    with pytest.raises(Violation, match="does not state what the folder holds"):
        parrot([said, {"exit": 0}]).prepare(SETTINGS, tmp_path / "empty")


def test_stray_prints_do_no_harm(fake):
    """Lines on standard output and standard error cannot get between the replies."""
    assert len(fake(stray=1).generate(ASK).ids) == 7


def test_a_flood_of_prints_does_no_harm(parrot):
    """More output than a pipe holds is drained, and only the last of it is kept."""
    flood = {"print": "x" * 99, "times": 20_000}
    engine = parrot([flood, READY], [flood, {"print": "the end"}, {"exit": 3}])
    engine.load(SETTINGS)
    with pytest.raises(Crashed) as caught:
        engine.stats()

    assert caught.value.message.endswith("ended with status 3; it last said: the end")
    assert len(caught.value.tail) < 2 * process.TAIL_BYTES


def test_long_lines_both_ways(parrot, monkeypatch):
    """Lines longer than a pipe pass whole, even when the engine prints before it reads."""
    ids = [token % 9 for token in range(200_000)]
    row = [0.5] * 200_000
    scores = {"start": 1, "argmax": ids, "margin": row, "rank": ids, "logit": row, "kept": [True] * 200_000}
    engine = parrot([READY, {"print": "x" * 99, "times": 5000}], [{"v": 1, "op": "scores", "id": "score-1", **scores}])
    engine.load(SETTINGS)

    assert engine.score([1, *ids], 1, Sampling()).argmax == ids


# --- an engine that misbehaves ---

GREETED = [READY]
BAD_ANSWERS = {
    "not JSON": (["{not json"], "not JSON"),
    "an unknown op": ([{"v": 1, "op": "sing"}], "no known 'op'"),
    "an unknown key": ([tokens(5, speed=3)], "unknown key 'speed'"),
    "a missing key": ([{"v": 1, "op": "tokens", "id": "a"}], "lacks the key 'ids'"),
    "a wrong type": ([tokens("5")], "is not a whole number"),
    "a float for an id": ([tokens(5.0)], "is not a whole number"),
    "another version": ([{**tokens(5), "v": 2}], "is not 1"),
    "an id outside the vocabulary": ([tokens(9)], "outside the vocabulary of 9"),
    "a request never asked": ([tokens(5, name="b")], "'tokens' for 'b', which was never asked"),
    "two tokens of prefill": ([tokens(5, 6)], "not prefill's alone"),
    "too many tokens": ([tokens(5), tokens(5, 5, 5, 5)], "more than 4 tokens"),
    "tokens after a stop id": ([tokens(5), tokens(2, 5)], "after a stop id"),
    "a line after a stop id": ([tokens(2), tokens(5)], "after a stop id"),
    "log-probabilities unasked": ([tokens(5, logprobs=[0])], "log-probabilities"),
    "a digest unasked": ([tokens(2), done("stop", 1, 0, logits_sha256="0" * 64)], "digest"),
    "a wrong count": ([tokens(5), tokens(2), done("stop", 3, 1)], "its lines add up to"),
    "a wrong count of steps": ([tokens(5), tokens(2), done("stop", 2, 2)], "its lines add up to"),
    "stopped without a stop id": ([tokens(5), done("stop", 1, 0)], "its tokens say None"),
    "too short": ([tokens(5), done("length", 1, 0)], "its tokens say None"),
    "length for a stop": ([tokens(2), done("length", 1, 0)], "its tokens say 'stop'"),
    "cancelled by nobody": ([tokens(5), done("cancelled", 1, 0)], "its tokens say None"),
    "a reply to nothing": ([{"v": 1, "op": "ok", "to": "record"}], "'ok' while requests are open"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_violations(parrot, case):
    """Each way to break the protocol is named in one line, and the engine is killed."""
    lines, words = BAD_ANSWERS[case]
    engine = parrot(GREETED, lines)
    engine.load(SETTINGS)
    group = engine.pid
    with pytest.raises(Violation) as caught:
        engine.generate(Generate("a", [1, 3], 4, [2]))

    assert words in caught.value.message
    assert "\n" not in caught.value.message
    assert is_gone(group)


def test_tokens_after_done(parrot):
    """A finished answer cannot grow, not while another is open and not after."""
    last = [tokens(2), done("stop", 1, 0), tokens(5)]
    for script, words in (([[], last], "'tokens' for 'a', which is done"), ([last, []], "before it was asked")):
        engine = parrot(GREETED, *script)
        engine.load(SETTINGS)
        with pytest.raises(Violation, match=words):
            engine.submit(Generate("a", [1, 3], 4, [2]))
            if script[0]:
                engine.next_answer()
                time.sleep(0.1)
            engine.submit(Generate("b", [1, 3], 4, [2]))
            while True:
                engine.next_answer()


def test_line_over_16_mib(parrot):
    """A line without an end is cut off at 16 MiB."""
    with pytest.raises(Violation, match="more than 16 MiB"):
        parrot([{"length": 17 << 20}, {"sleep": 60}]).load(SETTINGS)


@pytest.mark.parametrize("hello", [{**HELLO, "extra": 1}, {**HELLO, "op": "ok", "to": "record"}, READY])
def test_bad_hello(parrot, hello):
    """The first words are held to the protocol too."""
    with pytest.raises(Violation):
        parrot([], hello=hello).load(SETTINGS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "other"}, "another question"),
        ({"start": 2}, "another question"),
        ({"rank": []}, "one item for each of 2"),
        ({"argmax": [9, 1]}, "outside the vocabulary"),
    ],
)
def test_bad_scores(parrot, change, words):
    """Scores answer the question that was asked, one item a position, in the vocabulary."""
    scores = {"argmax": [1, 1], "margin": [0, 0], "rank": [0, 0], "logit": [1, 1], "kept": [True, True]}
    engine = parrot(GREETED, [{"v": 1, "op": "scores", "id": "score-1", "start": 1, **scores, **change}])
    engine.load(SETTINGS)
    with pytest.raises(Violation, match=words):
        engine.score([1, 1, 1], 1, Sampling())


def test_error_for_no_request_ends_the_engine(parrot):
    """An error that names no request leaves nobody to wait for."""
    engine = parrot(GREETED, [error("internal")])
    engine.load(SETTINGS)
    group = engine.pid
    with pytest.raises(Refused, match="internal"):
        engine.generate(Generate("a", [1, 3], 4, [2]))

    assert is_gone(group)


def test_a_record_that_ends_is_no_harm(parrot):
    """The one error that belongs to nobody: a record is advice, and what was asked is answered."""
    ended = error("record_ended")
    counters = {"v": 1, "op": "stats", "counters": {}}
    engine = parrot(GREETED, [tokens(5), ended, tokens(2), done("stop", 2, 1)], [ended, counters])
    engine.load(SETTINGS)

    assert engine.generate(Generate("a", [1, 3], 4, [2])).ids == [5, 2]
    assert engine.stats() == {}


def test_error_in_place_of_hello(parrot):
    """A system whose options clash says so and ends: a mistake of the user's, no broken protocol."""
    engine = parrot(hello=error("bad_option"))
    group = engine.pid
    with pytest.raises(Refused, match="words") as caught:
        engine.load(SETTINGS)

    assert (caught.value.code, caught.value.exit_code) == ("bad_option", 2)
    assert is_gone(group)


def test_crash(fake):
    """An engine that ends in the middle of an answer is reported with its status."""
    with pytest.raises(Crashed, match="ended with status 7"):
        fake(crash_after=3).generate(ASK)


def test_crash_tells_the_last_words(tmp_path):
    """A start that fails says why: the last line that was printed, and the whole tail beside."""
    with pytest.raises(Crashed) as caught, Engine.start([sys.executable, "-c", "1/0"], tmp_path) as engine:
        engine.load(SETTINGS)

    assert caught.value.message == ("the engine ended with status 1; it last said: ZeroDivisionError: division by zero")
    assert "Traceback" in caught.value.tail


def test_signal_is_named(parrot):
    """A worker that a signal ended is told apart, by a number where the signal has no name."""
    for number, name in ((9, "SIGKILL"), (signal.SIGRTMIN + 3, "signal 37")):
        engine = parrot(GREETED)
        engine.load(SETTINGS)
        os.kill(engine.pid, number)
        with pytest.raises(Crashed, match=name):
            engine.stats()


def test_closed_pipe(parrot, monkeypatch):
    """An engine that closes its pipe and lives on is as good as ended."""
    monkeypatch.setattr(process, "SHUTDOWN_S", 0.2)
    engine = parrot(GREETED, [{"close": True}, {"sleep": 60}])
    engine.load(SETTINGS)
    group = engine.pid
    with pytest.raises(Crashed, match="closed its pipe"):
        engine.stats()

    assert is_gone(group)


def test_hang(fake):
    """Silence longer than our patience ends the engine."""
    engine = fake(hang_after=3)
    engine.patience_s = 0.2
    group = engine.pid
    with pytest.raises(Hung, match=r"said nothing for 0\.2 s"):
        engine.generate(ASK)

    assert is_gone(group)


def test_engine_that_does_not_read(parrot, monkeypatch):
    """A line that nobody reads does not block us for ever."""
    engine = parrot([READY, {"sleep": 60}])
    engine.load(SETTINGS)
    engine.patience_s = 0.2
    monkeypatch.setattr(process, "SLICE_S", 0.05)
    with pytest.raises(Hung, match="does not read"):
        engine.score([1] * 200_000, 1, Sampling())


def test_missing_program(tmp_path):
    """A command that does not exist is named."""
    with pytest.raises(Missing, match="'/no/such/engine'"):
        Engine.start(["/no/such/engine"], tmp_path)


def test_refused_load(fake):
    """A bad option is refused with the exit code of the user's mistakes."""
    with pytest.raises(Refused) as caught:
        fake(nonsense=1)

    assert (caught.value.code, caught.value.exit_code) == ("bad_option", 2)


@pytest.mark.parametrize(
    ("code", "words"),
    [("bad_option", "entry"), ("no_device", "cpu"), ("too_long", "context"), ("out_of_memory", "context")],
)
def test_refusals_that_a_user_can_mend_have_a_hint(code, words):
    """Where there is a way out, the error names it; a fault of the engine has none."""
    assert words in Refused(code, "words", None).hint
    assert Refused("internal", "words", None).hint is None


def test_prompt_outside_the_vocabulary(fake):
    """An id that the engine cannot know is never sent."""
    with pytest.raises(Usage, match="outside the vocabulary of 1000"):
        fake().generate(Generate("a", [1000], 4, [2]))


# --- how it runs ---

LOOK = """
import json, os, stat, sys
kinds = {fd: stat.S_ISFIFO(os.fstat(fd).st_mode) for fd in (3, 4)}
facts = {"env": dict(os.environ), "cwd": os.getcwd(), "listing": os.listdir(), "pid": os.getpid(),
         "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")), "fifo": kinds,
         "home": os.listdir(os.environ["HOME"]), "tmp": os.listdir(os.environ["TMPDIR"]),
         "group": os.getpgid(0), "session": os.getsid(0), "stdin": os.read(0, 1).decode()}
hello = {"v": 1, "op": "hello", "engine": json.dumps(facts), "version": "1", "options": {}}
os.write(4, json.dumps(hello).encode() + b"\\n")
sys.stdin.read(); os.read(3, 1)
"""


def test_the_worker_is_alone(tmp_path, monkeypatch):
    """Own group and session, pipes on 3 and 4 and nothing else open, a made environment, empty folders that vanish."""
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with Engine.start([sys.executable, "-P", "-s", "-c", LOOK], tmp_path, tmp_path / "cache") as engine:
        facts = json.loads(engine.hello.engine)
        variables = facts["env"]

    assert set(variables) <= {
        "PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED", "PYTHONUNBUFFERED", "LC_ALL", "HOME", "TMPDIR", "TRITON_CACHE_DIR",
    }  # fmt: skip
    assert (variables["PYTHONPATH"], variables["CUDA_VISIBLE_DEVICES"]) == (str(tmp_path), "1")
    assert variables["TRITON_CACHE_DIR"] == str(tmp_path / "cache")
    assert [facts[name] for name in ("listing", "home", "tmp", "stdin")] == [[], [], [], ""]
    assert facts["fifo"] == {"3": True, "4": True}
    assert [fd for fd in facts["fds"] if fd <= 4] == [0, 1, 2, 3, 4]
    assert len(facts["fds"]) == 6  # and the listing's own
    assert facts["group"] == facts["session"] == facts["pid"] != os.getpgid(0)
    assert not Path(facts["cwd"]).exists()
    assert not Path(variables["HOME"]).exists()


def test_environment_is_a_function_of_its_arguments(tmp_path):
    """Two arms with the same folders and the same outside see the same environment."""
    outside = {"PATH": "/bin", "SECRET": "x"}
    made = environment(tmp_path / "system", tmp_path, tmp_path / "cache", outside)

    assert made["PATH"] == "/bin"
    assert "SECRET" not in made
    assert made == environment(tmp_path / "system", tmp_path, tmp_path / "cache", {**outside, "SECRET": "y"})


def test_harness_and_engine_see_the_same_of_the_outside():
    """`spt` passes on to the harness what the harness passes on to the engine, and where judges lock devices."""
    assert (*process.PASSED_ON, "SPT_LOCKS") == job.PASSED_ON


def test_close_ends_the_whole_group(parrot):
    """A child that the engine left behind goes with it, in good order or not."""
    for turns in ([[READY, {"fork": True}], [{"v": 1, "op": "ok", "to": "shutdown"}]], [[READY, {"fork": True}]]):
        engine = parrot(*turns)
        engine.load(SETTINGS)
        group = engine.pid
        if len(turns) == 2:
            engine.close()
        else:
            engine.kill()

        assert is_gone(group)


def test_an_error_inside_the_block_kills_the_engine(tmp_path):
    """Whatever goes wrong on our side, the engine does not stay behind."""
    with pytest.raises(KeyboardInterrupt), Engine.start(FAKE, tmp_path) as engine:
        engine.load(settings(step_ms=50))
        group = engine.pid
        engine.submit(ASK)
        raise KeyboardInterrupt

    assert is_gone(group)


def test_descriptors_do_not_leak(tmp_path):
    """Starting and ending engines leaves no descriptor open."""
    before = sorted(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with Engine.start(FAKE, tmp_path) as engine:
            engine.load(settings())
    with pytest.raises(Missing):
        Engine.start(["/no/such/engine"], tmp_path)

    assert sorted(Path("/proc/self/fd").iterdir()) == before
