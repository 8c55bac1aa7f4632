"""`python -m harness rehearse|draw|final`: all that can fail fails before the seal is spent, and long answers count."""

import dataclasses
import datetime
import json
import random

import pytest

from harness.errors import HarnessError, Missing, Unsupported, Usage
from harness.final import SIZES, Sizes, draw, final, rehearse
from harness.requests import make_seal
from harness.samples import read
from harness.seal import used_path
from harness.tree import tree_id
from harness.verdict import verdict
from tests.fakes.speaker import Speakers
from tests.harness import toys
from tests.harness.schemas import validator

NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
STOCK = {"mismatch": 0.006, "seed": 1}  # what a head in half precision does to stock itself
TINY = Sizes(stock_units=2, ar_units=1, sessions=0, sampled=3, greedy=2, answer_tok=60, session_tok=64, prompt_tok=32)
# Enough to cover every bucket that the answers reach: 50 of them, and 10,000 tokens beyond token 2,048.
LONG = dataclasses.replace(TINY, ar_units=2, sampled=52, greedy=2, answer_tok=2300)


def rows(sizes, prefix, devices=1):
    """Requests of bare ids, of the sorts that a final draws, both shares."""
    rng = random.Random(prefix)
    fresh = ({"id": f"{prefix}{number}", "ids": [rng.randrange(3, 900) for _ in range(20)]} for number in range(10**6))
    long = {"max_tokens": sizes.answer_tok, "ignore_eos": True}
    for _ in range(2 * sizes.supply(devices)):
        yield {**next(fresh), "max_tokens": 6}
    for seed in range(2 * sizes.sampled):
        yield {**next(fresh), **long, "sampling": {**GREEDY, "temperature": 1.0, "seed": seed}}
    for _ in range(2 * sizes.greedy):
        yield {**next(fresh), **long, "sampling": GREEDY}


@pytest.fixture
def make_job(tmp_path, monkeypatch):
    """Writes the job of a final of `sizes` whose requests are drawn; returns its file."""

    def make(a, sizes=TINY, requests=None, model=None, **fields):
        monkeypatch.setitem(SIZES, "full", sizes)
        folder = tmp_path / f"job-{len(list(tmp_path.glob('job-*')))}"
        (folder / "system").mkdir(parents=True)
        (folder / "system" / "a.py").write_text("x = 1\n")
        (folder / "model").write_bytes(b"x" * 100)
        lines = rows(sizes, "r") if requests is None else requests
        (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
        tree = tree_id(folder / "system")
        arms = {"a": {**STOCK, "seed": 2, **a}, "b": STOCK, "stock": STOCK}
        deployment = {
            "name": "toy",
            "target": {"path": str(model or folder / "model"), "widen": 1, "jitter": 0},
            "drafter": {"path": str(folder / "model")},
            "sampling": GREEDY,
            "dtype": "float32",
            "mode": "fast",
            "device": "cpu",
            "engine": {"kind": "command", "command": ["speaker"]},
            "context": fields.pop("context", 8192),
            "load": {"concurrency": 1, "arrival": "closed"},
        }
        job = {
            "v": 1,
            "kind": "job",
            "arms": {name: {"dir": "system", "tree": tree, "options": options} for name, options in arms.items()},
            "deployment": deployment | fields.pop("deployment", {}),
            "requests": "requests.jsonl",
            "seed": 3,
            "rule": "paired-1",
            "phase": "final",
            "units": 0,
            "commitment": "f" * 64,
            **fields,
        }
        job = {key: value for key, value in job.items() if value is not None}
        validator("job").validate(job)
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    return make


@pytest.fixture
def run(make_job, tmp_path):
    """The verdict of a final of a system with these options, and where its samples lie."""

    def measure(a=None, sizes=TINY, minutes=None, events=None, speakers=None, job=None, **fields):
        job = job or make_job(a or {}, sizes, **fields)
        emit = (events if events is not None else []).append
        start = (speakers or Speakers()).start
        return final(job, job.parent / "out", minutes, emit, sandbox=False, start=start), job

    return measure


def test_a_system_honest_in_everything_is_accepted(run):
    """Stock's own rate at both temperatures is accepted, with both comparisons, tau from the wire and all buckets."""
    speakers = Speakers()
    found, job = run({"speed": 1.5}, LONG, speakers=speakers)

    validator("verdict").validate(found)
    assert (found["what"], found["answer"]) == ("final", "accept")
    assert found["gain"] == found["timing"]["stock"]["gain"] == pytest.approx(0.5, abs=0.002)
    assert found["timing"]["ar"]["gain"] == pytest.approx(3.5, abs=0.02)
    for figure in found["timing"].values():
        assert figure["interval"][0] < figure["gain"] < figure["interval"][1]
        assert figure["units"] == 2
    assert found["timing"]["ar"]["tau"] == {"a": pytest.approx(2.5), "b": 1.0}
    assert {row["sort"]: row["answers"] for row in found["sorts"]} == {
        "timed": 4 * 48,
        "sessions": 0,
        "sampled": 52,
        "greedy": 2,
    }
    covered = {(bucket["axis"], bucket["low"]) for bucket in found["buckets"] if bucket["covered"]}
    assert covered >= {("output", 512), ("output", 2048), ("position", 2048)}
    assert all(len(bucket["events"]) == 2 for bucket in found["buckets"])
    assert found["of"]["seal"] == "f" * 64
    assert verdict("final", job.parent / "out" / "samples.jsonl") == found
    slow = [settings for settings in speakers.loads if settings.options.get("draft") == "none"]
    assert slow and all(settings.drafter is None for settings in slow)
    assert all(settings.drafter for settings in speakers.loads if settings not in slow)


def test_a_fault_that_begins_after_two_thousand_tokens_is_found(run):
    """Two points of mismatch after token 2,048 of an answer spoil no short one, and are rejected in their bucket."""
    late, _ = run({"late": 0.02}, LONG)

    assert late["answer"] == "reject"
    assert "2048-4096 the mismatch exceeds stock's by" in late["reason"]
    assert [bucket["low"] for bucket in late["buckets"] if bucket["rejects"]] == [2048, 2048]
    short, _ = run({"late": 0.02}, dataclasses.replace(LONG, sampled=98, answer_tok=1000))
    assert short["answer"] == "accept"


def test_what_is_wrong_at_a_temperature_alone_is_found(run):
    """A system that is stock when greedy and not at temperature 1 is rejected by the long answers."""
    found, _ = run({"warm": 0.02}, LONG)

    assert found["answer"] == "reject"


def test_a_small_final_accepts_nothing(run):
    """The handful of `smoke` may reject and cannot accept, and says so."""
    found, _ = run(sizes=TINY)
    assert found["answer"] == "smoke"
    assert "fewer than" in found["reason"]


@pytest.mark.parametrize(
    ("options", "answer", "words"),
    [
        ({"fails": "timed"}, "reject", "the candidate crashed"),
        ({"fails": "long"}, "reject", "the candidate crashed"),
        ({"short": True}, "malformed", "do not end as they must"),
    ],
)
def test_faults_of_the_system(run, options, answer, words):
    """What crashes in a timed unit or ends a long answer early is no system; what was not measured has no figure."""
    found, _ = run(options)

    validator("verdict").validate(found)
    assert found["answer"] == answer
    assert words in found["reason"]
    assert found["excess"] is None


def test_from_any_line_on_the_same_command_comes_to_the_same_end(run):
    """Cut anywhere, a final asks no request twice of one side, times no prompt again, and ends with the same answer."""
    first, job = run()
    path = job.parent / "out" / "samples.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    cuts = [2, len(whole) // 3, next(at for at, line in enumerate(whole) if '"force"' in line) + 2, len(whole) - 9]
    for at in cuts:
        path.write_text("".join(whole[:at]) + whole[at][:30])
        before = {line["request"] for line in map(json.loads, whole[:at]) if line["type"] == "answer"}
        speakers = Speakers()
        again, _ = run(job=job, speakers=speakers)
        samples = read(path)
        assert (again["answer"], again["key"]) == (first["answer"], first["key"])
        assert [len(samples.of(phase)) for phase in ("stock", "ar", "force", "reference")] == [2, 1, 1, 19]
        assert not before & {name for _, name in speakers.asked}


def test_a_final_that_is_not_finished_has_no_verdict(run):
    """Samples that end early, in timing or in forcing, are an error that says what is missing."""
    with pytest.raises(HarnessError, match="the time is up"):
        run(minutes=0)
    _, job = run()
    path = job.parent / "out" / "samples.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    for kind, words in (('"stock"', "unit 0 of 'stock'"), ('"force"', "units of 'force'"), ('"forced"', "not scored")):
        at = next(at for at, line in enumerate(whole) if kind in line and '"campaign"' not in line)
        path.write_text("".join(whole[:at]))
        with pytest.raises(HarnessError, match=words):
            verdict("final", path)
    path.write_text("".join(line for line in whole if '"type": "final"' not in line))
    with pytest.raises(Usage, match="not the samples of a final"):
        verdict("final", path)


def test_a_job_of_another_final_does_not_mix_in(run, make_job):
    """Another commitment in a folder that holds samples is refused."""
    _, job = run()
    value = json.loads(job.read_text())
    job.write_text(json.dumps({**value, "commitment": "e" * 64}))
    with pytest.raises(Usage, match="another final: its 'commitment' differs"):
        run(job=job)
    (job.parent / "requests.jsonl").write_text(json.dumps({"id": "x", "ids": [5]}) + "\n")
    with pytest.raises(Usage, match="another campaign: its 'requests' differs"):
        run(job=job)


# --- before the seal is spent ---


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model's folder with a tokenizer."""
    return toys.write_folder(toys.FAMILIES["smollm"], tmp_path_factory.mktemp("model") / "model")


def test_a_rehearsal_loads_every_arm_and_asks_nothing(make_job, model, tmp_path):
    """It says how many tokens a final asks for, and AR loads no drafter."""
    speakers, events = Speakers(), []
    job = make_job({}, requests=[], model=model)
    rehearse(job, tmp_path / "out", events.append, sandbox=False, start=speakers.start)

    assert [event["event"] for event in events] == ["plan"]
    assert events[0]["asked_tok"] == {"timed": 2 * 144 * 128, "forced": 5 * 60, "reference": 144 * 128 + 5 * 60}
    assert speakers.asked == []
    assert [settings.options.get("draft") for settings in speakers.loads].count("none") == 1
    assert not (tmp_path / "out" / "samples.jsonl").exists()


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"context": 123}, Usage, "is too small for a final, which needs 124"),
        ({"commitment": None}, Usage, "names no commitment"),
        ({"commitment": "e" * 64}, HarnessError, "is not what was committed to"),
        ({"rule": "none"}, Usage, "rule is 'none'"),
        ({"deployment": {"load": {"concurrency": 2, "arrival": "closed"}}}, Unsupported, "one at a time"),
    ],
)
def test_whatever_can_fail_leaves_the_seal_whole(make_job, model, tmp_path, fields, error, words):
    """A job that no final can be made of spends nothing."""
    seal = tmp_path / "seal"
    commitment = make_seal(seal, None)
    job = make_job({}, requests=[], model=model, **{"commitment": commitment, **fields})
    with pytest.raises(error, match=words):
        draw(job, seal, "key", (), 1, NOW)

    assert not used_path(seal).exists()
    assert (job.parent / "requests.jsonl").read_bytes() == b""


def test_a_model_without_a_tokenizer_is_found_out_before(make_job, tmp_path):
    """Generated requests are text."""
    with pytest.raises((Missing, Unsupported, Usage)):
        rehearse(make_job({}), tmp_path / "out", print, sandbox=False, start=Speakers().start)


def test_one_job_draws_once(make_job, model, tmp_path):
    """The requests are the same whenever the same job draws, differ from share to share, and are the owner's alone."""
    seal = tmp_path / "seal"
    job = make_job({}, requests=[], model=model, commitment=make_seal(seal, None))
    file = job.parent / "requests.jsonl"
    with pytest.raises(Usage, match="not drawn yet"):
        final(job, tmp_path / "out", None, print, sandbox=False, start=Speakers().start)
    draw(job, seal, "one", ("lists",), 1, NOW)
    drawn = file.read_bytes()
    draw(job, seal, "one", ("lists",), 1, NOW)

    assert file.read_bytes() == drawn
    assert file.stat().st_mode & 0o777 == 0o600
    found = [json.loads(line) for line in drawn.splitlines()]
    assert len({row["id"] for row in found}) == len(found) == 2 * TINY.supply(1) + 10
    assert {row["category"] for row in found} == {"lists", "minutes", "recipes", "seating", "settings"}
    assert [row["sampling"]["temperature"] for row in found if "sampling" in row] == [1.0] * 6 + [0.0] * 4
    with pytest.raises(HarnessError, match="was used"):
        draw(job, seal, "two", ("lists",), 1, NOW)
