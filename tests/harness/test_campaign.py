"""`python -m harness time`: campaigns on a metronome with a virtual clock, and on real, frozen processes."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from harness.campaign import time_arms
from harness.errors import HarnessError, Refused, Unsupported, Usage
from harness.samples import read
from harness.tree import tree_id
from harness.units import reading
from harness.verdict import verdict
from tests.fakes.metronome import Metronome
from tests.harness.enclosures import works
from tests.harness.schemas import validator

ROOT = Path(__file__).parents[2]
FAKE = [sys.executable, "-P", "-s", str(ROOT / "tests/fakes/engine.py")]
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 0}


@pytest.fixture
def make_job(tmp_path):
    """Writes a job of two arms with these options; returns its file."""

    def make(a, b=None, requests=2500, max_tokens=6, rule="paired-1", seed=3, **deployment):
        folder = tmp_path / "job"
        (folder / "system").mkdir(parents=True, exist_ok=True)
        (folder / "system" / "a.py").write_text("x = 1\n")
        rng = random.Random(1)
        rows = [
            {"id": f"r{number}", "ids": [rng.randrange(3, 999) for _ in range(5)], "max_tokens": max_tokens}
            for number in range(requests)
        ]
        (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "model").write_bytes(b"x" * 100)
        tree = tree_id(folder / "system")
        arms = {name: {"dir": "system", "tree": tree, "options": options} for name, options in
                (("a", a), ("b", b or {}), ("stock", {}))}  # fmt: skip
        whole = {
            "name": "toy",
            "target": {"path": str(folder / "model"), "widen": 1, "jitter": 0},
            "drafter": None,
            "sampling": GREEDY,
            "dtype": "float32",
            "mode": "fast",
            "device": "cpu",
            "engine": {"kind": "command", "command": FAKE},
            "context": 512,
            "load": {"concurrency": 1, "arrival": "closed"},
            **deployment,
        }
        job = {"v": 1, "kind": "job", "arms": arms, "deployment": whole, "requests": "requests.jsonl"}
        job |= {"seed": seed, "rule": rule, "phase": "screen", "units": 0}
        validator("job").validate(job)
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    return make


@pytest.fixture
def judged(make_job, tmp_path):
    """The verdict on arm a with these options, on a metronome; also what happened."""

    def judge(metronome=None, b=None, out="out", events=None, minutes=None, max_tokens=6, device="cpu", **a):
        metronome = metronome or Metronome()
        job = make_job(a, b, max_tokens=max_tokens, device=device)
        emit = (events if events is not None else []).append
        return time_arms(job, tmp_path / out, minutes, emit, sandbox=False, start=metronome.start)

    return judge


def test_a_true_gain_is_promoted(judged, tmp_path):
    """A patch that is 3 % faster, at a noise of 0.05 % a request, is promoted at the first look; its gain is right."""
    found = judged(speed=1.03)

    assert (found["answer"], found["units"], found["look"]) == ("promote", 10, 1)
    assert found["gain"] == pytest.approx(0.03, abs=0.001)
    assert found["interval"][0] < found["gain"] < found["interval"][1]
    assert found["diverged"] == 0
    assert verdict("timing", tmp_path / "out" / "samples.jsonl") == found


def test_nothing_is_not_promoted(judged, tmp_path):
    """A patch that does nothing is declined after the screen, though whoever times once sees a gain often enough."""
    found = judged()
    once = [reading(unit).value > 0 for unit in read(tmp_path / "out" / "samples.jsonl").of("screen")]

    assert any(once)
    assert (found["answer"], found["units"]) == ("decline", 5)
    assert abs(found["gain"]) < 0.001


def test_a_gain_with_other_outputs_needs_three_percent(judged):
    """What is enough for the same words is not enough for other ones."""
    assert judged(speed=1.02)["answer"] == "promote"
    other = judged(speed=1.02, other=1, out="other")
    assert (other["answer"], other["diverged"]) == ("decline", 5 * 48)


def test_a_crash_of_the_candidate_declines(judged):
    """An engine that ends in the middle is no faster engine, and the reason says so."""
    found = judged(fails=True)

    assert found["answer"] == "decline"
    assert "crashed" in found["reason"]


def test_a_crash_of_the_current_best_does_not(judged):
    """What the current best does wrong is not held against the candidate; before that one came, its key stays open."""
    found = judged(b={"fails": True})

    assert found["answer"] == "refused"


def test_a_candidate_cannot_take_a_unit_back(judged):
    """What was asked and is refused ends the campaign: a candidate could refuse wherever it was slow.

    The current best's refusal is its user's to mend.
    """
    found = judged(refuses=True, speed=1.05)
    assert (found["answer"], found["reason"]) == (
        "decline",
        "the candidate broke the protocol: the engine refused (too_long): no room",
    )
    with pytest.raises(Refused) as refused:
        judged(b={"refuses": True}, out="other")
    assert refused.value.exit_code == 2


def test_load_hidden_in_the_first_answer_declines(judged):
    """`ready` may come before the load is done; the cap holds for load and warm-up together."""
    found = judged(late=20.0)

    assert found["answer"] == "decline"
    assert "20.1 s to load and to warm up" in found["reason"]
    assert judged(late=9.0, out="within")["reason"].startswith("screen")


def test_a_kernel_left_running_declines(judged, nvml, monkeypatch, tmp_path):
    """Work that goes on after the freeze slows the other arm and reads as a gain; a device that is asked shows it."""
    judged(lingers=True, out="naive")
    naive = read(tmp_path / "naive" / "samples.jsonl").of("screen")
    assert min(reading(unit).value for unit in naive) > 0.03

    metronome = Metronome()
    busy = lambda handle: types.SimpleNamespace(gpu=0 if metronome.lingering is None else 50)  # noqa: E731
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", busy)
    found = judged(metronome, lingers=True, device="cuda")
    assert found["answer"] == "decline"
    assert "left the device busy 3 times" in found["reason"]


def test_noise_is_refused(judged):
    """A machine with 5 % noise a request times nothing."""
    found = judged(Metronome(noise=0.2))

    assert found["answer"] == "refused"
    assert "noise" in found["reason"]


def test_repetitive_groups_are_drawn_again(judged, tmp_path):
    """A quartet whose groups loop in the current best's arm does not count, and costs a place in no unit."""
    found = judged(b={"loops": 0.02}, loops=0.02, max_tokens=40)
    lines = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    samples = read(tmp_path / "out" / "samples.jsonl")

    assert found["answer"] == "decline"
    assert sum(line["type"] == "redraw" for line in lines) > 0
    assert all(len(unit.groups) == 12 for unit in samples.units)


def test_the_idle_arm_stands_still_and_no_prompt_comes_twice(judged):
    """One engine at a time is thawed; each process sees each prompt once, and a prompt serves one unit only."""
    metronome = Metronome()
    judged(metronome)
    awake: set[int] = set()
    for what, number in metronome.log:
        if what == "generate":
            assert awake == {number}
        elif what == "thaw":
            awake.add(number)
        elif what in ("freeze", "kill"):
            awake.discard(number)
    assert all(len(asked) == len(set(asked)) == 56 for asked in metronome.asked.values() if asked)
    units = [set(asked) for asked in metronome.asked.values() if asked]
    assert all(sum(not one.isdisjoint(other) for other in units) == 2 for one in units)


def test_a_campaign_goes_on_where_it_was(judged, tmp_path):
    """Stopped at any unit, the same command comes to a verdict on the same rule, without asking a prompt again."""
    with pytest.raises(HarnessError, match="the time is up before unit 0 of 'calibrate'"):
        judged(minutes=0, speed=1.03)
    samples = tmp_path / "out" / "samples.jsonl"
    found = judged(speed=1.03)
    whole = samples.read_text().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(whole) if '"screen"' in line) + 3
    samples.write_text("".join(whole[:cut]) + whole[cut][:20])
    second = Metronome(seed=2)
    again = judged(second, speed=1.03)

    assert (again["answer"], again["units"]) == (found["answer"], found["units"])
    before = {request for line in whole[:cut] for request in json.loads(line).get("requests", ())}
    assert before and all(before.isdisjoint(asked) for asked in second.asked.values())


def test_time_that_is_up_ends_a_unit_in_its_midst(judged, tmp_path, monkeypatch):
    """A unit may take longer than all the time there is: it ends between two turns and counts as not begun."""
    metronome, clock = Metronome(), iter(range(10**6))
    monkeypatch.setattr("harness.pair.time.monotonic", lambda: float(next(clock)))
    with pytest.raises(HarnessError, match="in the midst of unit 0 of 'calibrate'") as told:
        judged(metronome, minutes=0.3)
    assert told.value.hint is not None and "anew" in told.value.hint
    assert read(tmp_path / "out" / "samples.jsonl").units == ()
    assert metronome.log[-1][0] == "kill"


def test_another_campaign_does_not_mix_in(judged, make_job, tmp_path):
    """A folder that holds samples of other systems is refused, and stays as it is."""
    judged(out="out")
    held = (tmp_path / "out" / "samples.jsonl").read_bytes()
    with pytest.raises(Usage, match="another campaign: its 'arms' differs"):
        judged(speed=2.0)
    assert (tmp_path / "out" / "samples.jsonl").read_bytes() == held


def test_too_few_requests_begin_nothing(make_job, tmp_path):
    """A campaign begins with as many prompts as the longest one asks, since one that has begun cannot get more."""
    job = make_job({}, requests=1847)
    with pytest.raises(Usage, match="holds 1847 prompts that differ, and a campaign may need 1848"):
        time_arms(job, tmp_path / "out", 0, lambda event: None, sandbox=False, start=Metronome().start)
    with pytest.raises(Usage, match="may need 3696"):
        time_arms(job, tmp_path / "out", 0, lambda event: None, sandbox=False, devices=("cpu", "cuda"))
    assert not (tmp_path / "out").exists()


def test_used_up_requests_are_an_error(make_job, tmp_path, monkeypatch):
    """Prompts are never asked again: where units that did not count took too many, the campaign ends with a hint."""
    monkeypatch.setattr("harness.campaign._check_supply", lambda job, out, halves: None)
    with pytest.raises(HarnessError, match="used up"):
        time_arms(
            make_job({}, requests=60),
            tmp_path / "out",
            None,
            lambda event: None,
            sandbox=False,
            start=Metronome().start,
        )


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"rule": "none"}, Usage, "rule is 'none'"),
        ({"load": {"concurrency": 2, "arrival": "closed"}}, Unsupported, "one at a time"),
    ],
)
def test_jobs_that_cannot_be_timed(changed, error, words, make_job, tmp_path):
    """A job of another kind is refused before anything starts."""
    with pytest.raises(error, match=words):
        time_arms(make_job({}, **changed), tmp_path / "out", None, lambda event: None, sandbox=False)
    assert not (tmp_path / "out" / "samples.jsonl").exists()


def harness_time(job: Path, out: Path, **keywords):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-s", "-m", "harness", "time", "--job", str(job), "--out", str(out), "--stream"]
    command += [] if works() else ["--no-sandbox"]  # a kernel may refuse namespaces; the card says so
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords
    )


def test_real_processes_are_timed_and_survive_a_kill(make_job, tmp_path):
    """Enclosed engines answer in turns; after kill -9 nothing is left running, and the same command goes on."""
    options = {"step_ms": 0.0, "prefill_ms": 0.0, "stop_rate": 0.0, "noise": 0.0}
    job, out = make_job(options, options, max_tokens=2), tmp_path / "out"
    first = harness_time(job, out)
    told = (json.loads(line) for line in first.stdout)
    turns = list(itertools.takewhile(lambda event: event["event"] != "unit", told))
    assert {event["event"] for event in turns} == {"turn"}
    assert (turns[-1]["turns"], turns[-1]["of"]) == (14, 14)  # two warm-ups, and six groups in both arms
    time.sleep(0.3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    deadline = time.monotonic() + 10
    while (left := engines_below(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left

    second = harness_time(job, out)
    told, errors = second.communicate(timeout=120)
    events = [json.loads(line) for line in told.splitlines()]
    assert errors == ""
    assert events[-1]["event"] == "verdict"
    assert events[-1]["verdict"]["answer"] in ("refused", "decline", "undecided")
    assert second.returncode == 1
    samples = read(out / "samples.jsonl")
    assert len(samples.cards) == 2
    assert samples.cards[0]["sandbox"].startswith("bubblewrap" if works() else "unsandboxed")


def engines_below(folder: Path) -> list[int]:
    """Processes whose command line names something in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes() and b"engine.py" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
