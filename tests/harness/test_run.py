"""`python -m harness run` with a scripted engine: what it answers, keeps, resumes and refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import Crashed, HarnessError, Missing, Refused, Usage
from harness.run import run
from harness.text import load_text
from harness.tree import tree_id
from tests.harness.schemas import validator
from tests.harness.test_client import is_gone

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
FAST = {"step_ms": 0, "prefill_ms": 0, "stop_rate": 0.1}
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
CHAT = [{"id": "one", "turns": ["Hi"]}, {"id": "two", "turns": ["The answer is", "and 42?", "Why?"]}]


@pytest.fixture
def target(toy_paths):
    return toy_paths["smollm"][0]


@pytest.fixture
def make_job(tmp_path, target):
    """Writes a job for the fake engine; returns its file."""

    def make(requests=CHAT, options=FAST, max_tokens=12, command=FAKE, tree=None, **deployment):
        folder = tmp_path / "job"
        (folder / "system" / "stock").mkdir(parents=True, exist_ok=True)
        (folder / "system" / "stock" / "a.py").write_text("x = 1\n")
        lines = requests if isinstance(requests, str) else "".join(json.dumps(line) + "\n" for line in requests)
        (folder / "requests.jsonl").write_text(lines)
        whole = {
            "name": "toy",
            "target": {"path": str(target), "widen": 1, "jitter": 0},
            "drafter": None,
            "sampling": GREEDY,
            "dtype": "float32",
            "mode": "exact",
            "device": "cpu",
            "engine": {"kind": "command", "command": command},
            "context": 512,
            "load": {"concurrency": 1, "arrival": "closed"},
            **deployment,
        }
        arm = {"dir": "system", "tree": tree or tree_id(folder / "system"), "options": options}
        job = {"v": 1, "kind": "job", "arms": {"a": arm}, "deployment": whole, "requests": "requests.jsonl"}
        job |= {"seed": 0, "rule": "none", "phase": "run", "units": 0}
        job |= {"max_tokens": max_tokens} if max_tokens else {}
        validator("job").validate(job)
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    return make


def go(job, out, minutes=None):
    events = []
    counts = run(job, out, minutes, events.append)
    return counts, events


def answers(out):
    lines = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    for line in lines:
        validator("answer").validate(line)
    return lines


def test_answers_and_events(make_job, tmp_path, target):
    """Every turn gets an answer; the streamed pieces join to its text; counts are those of the wire."""
    counts, events = go(make_job(options={**FAST, "tau": 3}), tmp_path / "out")
    kept, text = answers(tmp_path / "out"), load_text(target)

    assert [(answer["request"], answer["turn"]) for answer in kept] == [("one", 0), ("two", 0), ("two", 1), ("two", 2)]
    assert [event["answer"] for event in events if event["event"] == "answer"] == kept
    for answer in kept:
        pieces = [
            event["text"]
            for event in events
            if event["event"] == "text" and (event["request"], event["turn"]) == (answer["request"], answer["turn"])
        ]
        spoken = answer["ids"][:-1] if answer["reason"] == "stop" else answer["ids"]
        assert "".join(pieces) == answer["text"] == text.decode(spoken)
        assert answer["lines"][0] == 1
        assert sum(answer["lines"]) == len(answer["ids"])
    assert {answer["reason"] for answer in kept} == {"stop", "length"}
    assert events[0]["event"] == "ready"
    validator("card").validate(events[0]["card"])
    assert events[-1]["event"] == "end"
    assert events[-1]["left"] == 0
    assert events[-1]["counts"]["tokens"] == counts.tokens == sum(len(answer["ids"]) for answer in kept)
    assert 1 < counts.tau <= 3


def test_earlier_answers_are_in_the_context(make_job, tmp_path, target):
    """The prompt of a later turn is the chat so far, with the answers as they were."""
    go(make_job(), tmp_path / "out")
    text, two = load_text(target), [answer for answer in answers(tmp_path / "out") if answer["request"] == "two"]

    for turn, answer in enumerate(two):
        prompt = text.chat(CHAT[1]["turns"][: turn + 1], [earlier["text"] for earlier in two[:turn]])
        assert answer["prompt_tok"] == len(prompt)


def test_stop_ids_beyond_the_model(make_job, tmp_path, target):
    """A tokenizer's files may name ids that the model does not have: they never come, and are not asked for."""
    folder = shutil.copytree(target, tmp_path / "target")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 10**9]}))
    counts, _ = go(make_job(target={"path": str(folder), "widen": 1, "jitter": 0}), tmp_path / "out")

    assert counts.answers == 4


def test_several_requests_at_once(make_job, tmp_path):
    """Concurrency changes the order of answers, never the answers."""
    requests = [{"id": str(index), "turns": ["Hi", "Why?"][: 1 + index % 2]} for index in range(5)]
    go(make_job(requests), tmp_path / "alone")
    go(make_job(requests, load={"concurrency": 3, "arrival": "closed"}), tmp_path / "together")
    alone, together = (
        {(answer["request"], answer["turn"]): answer["ids"] for answer in answers(tmp_path / name)}
        for name in ("alone", "together")
    )

    assert alone == together
    assert len(alone) == 7


def test_ids_need_no_tokenizer(make_job, tmp_path):
    """A target without a tokenizer answers requests of bare ids, without text; turns are refused before anything."""
    bare = tmp_path / "bare"
    bare.mkdir()
    at = {"path": str(bare), "widen": 1, "jitter": 0}
    go(make_job([{"id": "x", "ids": [5, 6], "max_tokens": 3, "ignore_eos": True}], target=at), tmp_path / "out")
    with pytest.raises(Missing, match=r"tokenizer\.json"):
        go(make_job(target=at), tmp_path / "other")

    assert [len(answer["ids"]) for answer in answers(tmp_path / "out")] == [3]
    assert "text" not in answers(tmp_path / "out")[0]


def test_ignore_eos(make_job, tmp_path, target):
    """With `ignore_eos` stop ids are ordinary tokens, in the text too; what repeats is counted as looped."""
    ask = [{"id": "x", "turns": ["Hi"], "ignore_eos": True, "max_tokens": 60}]
    counts, _ = go(make_job(ask, {**FAST, "stop_rate": 1}), tmp_path / "out")
    text = load_text(target)

    assert answers(tmp_path / "out")[0]["ids"] == [2] * 60
    assert answers(tmp_path / "out")[0]["text"] == text.decode([2] * 60)
    assert (counts.looped_tokens, counts.tau) == (59, None)


@pytest.mark.parametrize(("crash_after", "crashes"), [(14, 3), (30, 1)])
def test_a_run_goes_on_where_it_was(make_job, tmp_path, crash_after, crashes):
    """After a crash the same command asks only for what is missing, and ends with the same answers."""
    full = {**FAST, "stop_rate": 0}  # four answers of 12 tokens
    go(make_job(options=full), tmp_path / "whole")
    out, job = tmp_path / "out", make_job(options={**full, "crash_after": crash_after})
    kept = []
    for _ in range(crashes):
        with pytest.raises(Crashed):
            go(job, out)
        kept.append((out / "answers.jsonl").read_bytes())
    go(job, out)

    assert all((out / "answers.jsonl").read_bytes().startswith(before) for before in kept)
    assert [len(before.splitlines()) for before in kept] == {14: [1, 2, 3], 30: [2]}[crash_after]
    assert [strip(answer) for answer in answers(out)] == [strip(answer) for answer in answers(tmp_path / "whole")]


def strip(answer):
    return {key: value for key, value in answer.items() if not key.endswith("_s")}


def test_a_torn_line_is_asked_again(make_job, tmp_path):
    """A run that was killed while it wrote an answer leaves half a line; it is dropped and asked again."""
    out, job = tmp_path / "out", make_job()
    go(job, out)
    whole = (out / "answers.jsonl").read_bytes()
    (out / "answers.jsonl").write_bytes(whole[:-20])
    _, events = go(job, out)

    assert [strip(json.loads(line)) for line in (out / "answers.jsonl").read_bytes().splitlines()] == [
        strip(json.loads(line)) for line in whole.splitlines()
    ]
    assert [event["event"] for event in events].count("answer") == 1


def test_a_finished_run_starts_no_engine(make_job, tmp_path):
    """With all answers there the command only counts."""
    out = tmp_path / "out"
    first, _ = go(make_job(), out)
    again, events = go(make_job(), out)

    assert again == first
    assert [event["event"] for event in events] == ["end"]


def test_answers_of_another_job_are_not_mixed(make_job, tmp_path):
    """A folder belongs to one job: other options or requests are refused, another place of the files is not."""
    out = tmp_path / "out"
    go(make_job(), out)
    for other in (make_job(options={**FAST, "tau": 2}), make_job([*CHAT, {"id": "more", "turns": ["x"]}])):
        with pytest.raises(Usage, match="another job"):
            go(other, out)
    (out / "key").unlink()
    with pytest.raises(Usage, match="not of which job"):
        go(make_job(), out)


def test_one_writer_at_a_time(make_job, tmp_path):
    """A second run into the same folder is refused while the first goes on."""
    out, job = tmp_path / "out", make_job()
    problems = []

    def emit(event):
        if event["event"] == "ready":
            with pytest.raises(Usage, match="another run") as caught:
                go(job, out)
            problems.append(caught.value)

    run(job, out, None, emit)

    assert len(problems) == 1


def test_a_session_ends_when_its_context_is_full(make_job, tmp_path):
    """A session answers turns until one does not fit, and that is no error."""
    session = {"v": 1, "kind": "session", "id": "s", "turns": ["The answer is"] * 30, "family": "f"}
    session |= {"cap_tok": 8, "context_tok": 150}
    counts, _ = go(make_job([session], {**FAST, "stop_rate": 0}), tmp_path / "out")

    again, events = go(tmp_path / "job" / "job.json", tmp_path / "out")

    assert 1 < counts.answers < 30
    assert again == counts
    assert [event["event"] for event in events] == ["end"]  # a finished run starts no engine
    assert events[0]["left"] == 0
    assert max(answer["prompt_tok"] for answer in answers(tmp_path / "out")) + 8 <= 150


def test_without_a_limit_an_answer_may_fill_the_context(make_job, tmp_path):
    """Where nobody states a length the context is the limit."""
    job = make_job([{"id": "x", "turns": ["Hi"]}], {**FAST, "stop_rate": 0}, max_tokens=None, context=80)
    go(job, tmp_path / "out")
    answer = answers(tmp_path / "out")[0]

    assert answer["prompt_tok"] + len(answer["ids"]) == 80


def test_a_request_that_does_not_fit_is_named(make_job, tmp_path):
    """A stated length that exceeds the context is an error of the user's, with both numbers."""
    with pytest.raises(
        Usage, match=r"'one' does not fit: \d+ prompt tokens and 500 new ones exceed the context of 512"
    ):
        go(make_job(max_tokens=500), tmp_path / "out")


def test_time_is_up(make_job, tmp_path):
    """--max-minutes ends a run in the middle of an answer; what was whole is kept, and the next run goes on."""
    out, job = tmp_path / "out", make_job(options={**FAST, "stop_rate": 0, "step_ms": 40})
    with pytest.raises(HarnessError, match=r"time is up with \d of 2 requests left") as caught:
        go(job, out, minutes=0.8 / 60)
    before = len(answers(out))
    go(job, out)

    assert caught.value.exit_code == 1
    assert before < 4
    assert len(answers(out)) == 4


def test_crash_leaves_the_last_words(make_job, tmp_path):
    """What the engine printed before it ended lies in the folder, and the hint says so."""
    out = tmp_path / "out"
    with pytest.raises(Crashed) as caught:
        go(make_job(command=[sys.executable, "-c", "print('a\\nb'); 1/0"]), out)

    assert "ZeroDivisionError" in caught.value.message
    assert str(out / "engine.log") in caught.value.hint
    assert (out / "engine.log").read_text().startswith("a\nb\n")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tau": "two"}, Usage, "option 'tau' is 'two', which is no int"),
        ({"depth": 3}, Usage, "no option 'depth'"),
        ({"tau": 99}, Refused, "bad_option"),
    ],
)
def test_bad_options(make_job, tmp_path, options, error, words):
    """Options are read by their declared types; unknown ones and values out of range exit with 2."""
    with pytest.raises(error, match=words) as caught:
        go(make_job(options=options), tmp_path / "out")

    assert caught.value.exit_code == 2


def test_options_in_words(make_job, tmp_path):
    """A word from a command line becomes the declared number."""
    go(make_job(options={"step_ms": "0", "prefill_ms": "0.0", "tau": "4", "stop_rate": "0"}), tmp_path / "out")

    assert answers(tmp_path / "out")[0]["lines"] == [1, 4, 4, 3]


def test_another_tree_is_refused(make_job, tmp_path):
    """An arm whose folder is not the tree that the job names is not run."""
    with pytest.raises(Usage, match="not the tree that the job names"):
        go(make_job(tree="0" * 40), tmp_path / "out")

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "are empty"),
        ("not json\n", ":1: not JSON"),
        ('{"id": "a", "turns": ["x"]}\n\n{"id": "a", "turns": ["x"]}\n', ":3: the id 'a' stands twice"),
        ('{"id": "a"}\n', ":1: the request lacks the key 'turns'"),
        ('{"id": "a", "turns": ["x"], "ids": [1]}\n', ":1: the request has an unknown key 'turns'"),
        ('{"id": "a", "turns": ["\\ud800"]}\n', ":1: the request 'turns'[0] holds half a surrogate pair"),
        ('{"id": "\\udfff", "ids": [1]}\n', ":1: the request 'id' holds half a surrogate pair"),
        ('{"id": "a", "ids": [1], "sampling": {"temperature": 1' + "0" * 400 + "}}\n", ":1: not JSON (a number has"),
        ('{"id": "a", "ids": [1], "sampling": {"temperature": 1e-9, "top_p": 1, "top_k": 0, "seed": 0}}', "1e-05 to"),
        ('{"id": "a", "ids": [1], "sampling": {"temperature": 1e6, "top_p": 1, "top_k": 0, "seed": 0}}', "1e-05 to"),
        ('{"id": "a", "turns": []}\n', ":1: the request 'turns' is not a list of at least 1"),
    ],
)
def test_bad_requests(make_job, tmp_path, lines, words):
    """A line that is no request is named by its number, and the hint says what one is."""
    with pytest.raises(Usage) as caught:
        go(make_job(lines), tmp_path / "out")

    assert words in caught.value.message
    assert (caught.value.hint is None) == ("twice" in words)


# --- as a process ---


def start(job, out, *arguments):
    command = [sys.executable, "-P", "-s", "-m", "harness", "run", "--job", str(job), "--out", str(out), *arguments]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_command_prints_events(make_job, tmp_path):
    """--stream writes one JSON object a line as things happen, and nothing else on standard output."""
    with start(make_job(), tmp_path / "out", "--stream") as child:
        out, err = child.communicate()
    events = [json.loads(line)["event"] for line in out.splitlines()]

    assert (child.returncode, err) == (0, "")
    assert set(events) == {"ready", "text", "answer", "end"}


def test_command_prints_a_summary(make_job, tmp_path):
    """Without --stream it ends with counts, one word and one number a line."""
    with start(make_job(), tmp_path / "out") as child:
        out, _ = child.communicate()
    rows = dict(line.split() for line in out.splitlines())

    assert rows["answers"] == "4"
    assert rows.keys() == {"answers", "tokens", "looped_tokens", "tau"}


@pytest.mark.parametrize(
    ("job", "status", "words"),
    [("/no/job.json", 4, "error: the job '/no/job.json' cannot be read"), (__file__, 2, "not JSON")],
)
def test_command_fails_in_one_line(tmp_path, job, status, words):
    """A user's mistake is one line on standard error and a documented exit code, never a traceback."""
    with start(job, tmp_path / "out") as child:
        out, err = child.communicate()

    assert (child.returncode, out) == (status, "")
    assert words in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--stream"], []])
def test_full_disk_under_standard_output(make_job, tmp_path, arguments):
    """Standard output that takes nothing is an error of one line, and no engine stays behind."""
    command = [sys.executable, "-P", "-s", "-m", "harness", "run", "--job", str(make_job()), "--out"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*command, str(tmp_path / "out"), *arguments],
            env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("word", ["nan", "inf", "-1", "soon"])
def test_minutes_that_are_none(make_job, tmp_path, word):
    """A time limit is a number of minutes."""
    with start(make_job(), tmp_path / "out", f"--max-minutes={word}") as child:
        _, err = child.communicate()

    assert child.returncode == 2
    assert "--max-minutes" in err
    assert "Traceback" not in err


def test_killed_engine_is_reported_at_once(make_job, tmp_path):
    """An engine that is killed in the middle of an answer is one line within a second or so, and is reaped."""
    with start(make_job(options={**FAST, "step_ms": 500}), tmp_path / "out", "--stream") as child:
        child.stdout.readline()
        (group,) = engines_of(child)
        begin = time.monotonic()
        os.kill(group, signal.SIGKILL)
        _, err = child.communicate()
        took_s = time.monotonic() - begin

    assert child.returncode == 1
    assert "SIGKILL" in err
    assert "Traceback" not in err
    assert took_s < 3
    assert is_gone(group)


def engines_of(child):
    """The process groups of the harness's children."""
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return [int(pid) for pid in children]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signals_end_the_engine_too(make_job, tmp_path, number, status):
    """Interrupted or told to end, the harness leaves no engine behind."""
    with start(make_job(options={**FAST, "step_ms": 200}), tmp_path / "out", "--stream") as child:
        child.stdout.readline()
        groups = engines_of(child)
        child.send_signal(number)
        _, err = child.communicate()

    assert child.returncode == status
    assert err == ("interrupted\n" if number == signal.SIGINT else "")
    assert len(groups) == 1
    assert is_gone(groups[0])


def test_a_reader_that_goes_away_ends_it(make_job, tmp_path):
    """When nobody reads the events the engine ends, quietly."""
    with start(make_job(options={**FAST, "step_ms": 20}), tmp_path / "out", "--stream") as child:
        child.stdout.readline()
        groups = engines_of(child)
        child.stdout.close()
        err = child.stderr.read()
        child.wait()

    assert err == ""
    assert is_gone(groups[0])
