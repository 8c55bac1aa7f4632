"""`python -m harness calibrate|force` with scripted engines: faithful systems pass, others are told from them."""

import json
import random
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from harness import arena, scoring
from harness.client import Engine
from harness.errors import HarnessError
from harness.samples import read
from harness.scoring import calibrate, force
from harness.tree import tree_id
from harness.verdict import verdict
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
FAST = {"step_ms": 0, "prefill_ms": 0, "tau": 8, "stop_rate": 0.0}
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}
STOCK = {**FAST, "mismatch": 0.006, "seed": 1}  # what a head in half precision does to stock itself


def make_job(folder: Path, a: dict, requests: int, tokens: int, seed: int, looks: int = 0) -> Path:
    folder.mkdir()
    (folder / "system").mkdir()
    (folder / "system" / "a.py").write_text("x = 1\n")
    (folder / "model").write_bytes(b"x" * 100)
    rng = random.Random(seed)
    rows = [
        {"id": f"r{seed}-{number}", "ids": [rng.randrange(3, 999) for _ in range(20)], "max_tokens": tokens,
         "category": ("code", "words")[number % 2]}
        for number in range(requests)
    ]  # fmt: skip
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = tree_id(folder / "system")
    arms = {"a": a, "b": STOCK, "stock": STOCK}
    deployment = {
        "name": "toy",
        "target": {"path": str(folder.parent / "model"), "widen": 1, "jitter": 0},
        "drafter": None,
        "sampling": GREEDY,
        "dtype": "float32",
        "mode": "fast",
        "device": "cpu",
        "engine": {"kind": "command", "command": FAKE},
        "context": 8192,
        "load": {"concurrency": 1, "arrival": "closed"},
    }
    job = {"v": 1, "kind": "job", "deployment": deployment, "requests": "requests.jsonl", "seed": 0, "units": 0}
    job["arms"] = {name: {"dir": "system", "tree": tree, "options": options} for name, options in arms.items()}
    job |= {"rule": "paired-1", "phase": "force"} | ({"units": looks} if looks else {})
    validator("job").validate(job)
    (folder.parent / "model").write_bytes(b"x" * 100)
    (folder / "job.json").write_text(json.dumps(job))
    return folder / "job.json"


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """The folder of all jobs on one deployment: where its model lies is a part of that."""
    return tmp_path_factory.mktemp("room")


@pytest.fixture(scope="module")
def calibration(room):
    """Stock's own rates on 60 requests."""
    job = make_job(room / "reference", STOCK, 60, 1700, seed=1)
    calibrate(job, room / "stock", None, lambda event: None, sandbox=False)
    return room / "stock" / "samples.jsonl"


@pytest.fixture
def forced(room, calibration):
    """The verdict on a system with these options; each test has names of its own."""

    def run(name, requests=55, tokens=600, looks=0, **options):
        job = make_job(room / name, {**FAST, "seed": 2, **options}, requests, tokens, seed=2, looks=looks)
        return force(job, room / f"{name}-out", calibration, None, lambda event: None, sandbox=False)

    return run


def test_verdicts_on_faithful_and_unfaithful_systems(forced, room, calibration):
    """Stock's own rate is accepted, 3 points more are rejected, so are few tokens far from stock's, and early stops."""
    assert forced("same", mismatch=0.006)["answer"] == "accept"
    worse = forced("worse", mismatch=0.036)
    assert (worse["answer"], round(worse["mismatch"], 2)) == ("reject", 0.04)
    far = forced("far", requests=110, looks=55, mismatch=0.006, far=0.002)
    assert (far["answer"], far["look"], far["events"] > 0) == ("reject", 2, True)
    assert all(event["explanation"] is None for event in far["audit"])
    assert forced("short", mismatch=0.006, early_stop=5)["answer"] in ("reject", "malformed")
    few = forced("few", requests=10, mismatch=0.006)
    assert few["answer"] == "smoke"
    assert verdict("forcing", room / "same-out/samples.jsonl", calibration)["answer"] == "accept"


def test_a_killed_run_goes_on(forced, room, calibration):
    """From any line on, the same command asks nothing twice, scores what is not scored, and comes to the same end."""
    first = forced("system", requests=20, tokens=100, mismatch=0.006)
    path = room / "system-out" / "samples.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    for at in (3, 15, len(whole) - 8):
        path.write_text("".join(whole[:at]) + whole[at][:30])
        again = force(room / "system" / "job.json", path.parent, calibration, None, lambda event: None, sandbox=False)
        samples = read(path)
        sessions = [said["session"] for unit in samples.of("force") for said in unit.answers]
        assert len(sessions) == len(set(sessions)) == 20
        assert (again["answer"], again["tokens"]) == (first["answer"], first["tokens"])


def test_a_system_that_crashes_is_no_faithful_one(forced):
    """An engine that ends in the midst of its answers is rejected with that reason."""
    found = forced("crashes", crash_after=300)

    assert found["answer"] == "reject"
    assert "crash" in found["reason"]


def test_time_that_is_up_is_an_error(tmp_path):
    """--max-minutes ends between two answers; what was answered stays."""
    job = make_job(tmp_path / "reference", STOCK, 4, 50, seed=1)
    with pytest.raises(HarnessError, match="the time is up"):
        calibrate(job, tmp_path / "stock", 0, lambda event: None, sandbox=False)


class Numbers:
    """Text whose words are token ids, so that an answer is the same tokens again in the next prompt."""

    stop_ids = ()

    def chat(self, turns, said):
        spoken = [*said, ""]
        return [int(word) for turn, answer in zip(turns, spoken, strict=True) for word in f"{turn} {answer}".split()]

    def decode(self, ids):
        return " ".join(str(token) for token in ids)


class Counting(Engine):
    """The scripted engine, counting what it is asked to score."""

    asked: ClassVar[list] = []

    def score(self, ids, start, sampling):
        self.asked.append((len(ids), start))
        return super().score(ids, start, sampling)


def sessions_job(folder, seed, sessions=5, turns=6):
    job = make_job(folder, {**FAST, "seed": 2, "mismatch": 0.02}, 1, 1, seed=seed)
    rng = random.Random(seed)
    rows = [
        {"v": 1, "kind": "session", "id": f"s{seed}-{number}", "family": "words", "cap_tok": 12, "context_tok": 4096,
         "turns": [" ".join(str(rng.randrange(10, 999)) for _ in range(5)) for _ in range(turns)]}
        for number in range(sessions)
    ]  # fmt: skip
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return job


def test_a_session_is_scored_once(tmp_path, monkeypatch):
    """One question a session and head, and the same lines as turn by turn, which asks for each context anew."""
    monkeypatch.setattr(arena, "load_text_for", lambda path, requests: Numbers())
    Counting.asked = []
    job = sessions_job(tmp_path / "job", 1)
    calibrate(job, tmp_path / "chained", None, lambda event: None, sandbox=False, start=Counting.start)
    together = list(Counting.asked)
    monkeypatch.setattr(scoring, "chained", lambda lines: ([line] for line in lines))
    Counting.asked.clear()
    calibrate(job, tmp_path / "apart", None, lambda event: None, sandbox=False, start=Counting.start)
    chained, apart = (read(tmp_path / name / "samples.jsonl") for name in ("chained", "apart"))

    assert together[:10] == [(6 * (5 + 12), 5)] * 10
    assert len(together) <= 20  # and at most as many for the events, by two other verifiers
    assert (chained.forced, chained.rechecks) == (apart.forced, apart.rechecks)
    assert chained.rechecks
    assert Counting.asked[:30] == [(turn * (5 + 12), turn * (5 + 12) - 12) for turn in range(1, 7)] * 5
