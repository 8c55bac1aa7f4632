"""Rounds whose jobs run through an executor: submitted once, gone on with when lost, judged here."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from spt.errors import Missing, Unsupported
from spt.round import remote
from spt.round.budget import Budget, Stopped
from spt.round.executors import make_executor
from spt.round.remote import RemoteBench, _Job
from tests.spt.judged import ROOT
from tests.spt.round.test_kills import at_work
from tests.spt.round.toys import CANARY, FROM, NOOP, START, make_round_deployment
from tests.spt.toys import errors_well, git, snapshot, spt

LOCAL = "slurm:cluster=local"
BEGIN = [*START, FROM, "--name", "far"]


class Fake:
    """An executor whose jobs do what a test says: `run` gets the job's folder in a thread of its own."""

    def __init__(self, run=lambda folder: None):
        self.run, self.submitted, self.cancelled, self.alive = run, [], [], {}

    def open(self):
        pass

    def submit(self, command, folder, devices):
        handle = f"job {len(self.submitted)}"
        self.submitted.append((command, folder, devices))
        self.alive[handle] = threading.Thread(target=self.run, args=[folder.parent])
        self.alive[handle].start()
        return handle

    def is_alive(self, handle):
        return handle in self.alive and self.alive[handle].is_alive()

    def cancel(self, handle):
        self.cancelled.append(handle)

    def close(self):
        pass


def end(folder):
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out/ended.json").write_text(json.dumps({"v": 1, "kind": "ended", "status": 0, "error": None}))


def bench_on(tmp_path, executor, monkeypatch, said=None):
    """A remote bench over a room with the jobs `one` and `two`, of which `two` reads what `one` measured."""
    jobs = tmp_path / "jobs"
    for name in ("one", "two"):
        (jobs / name / "out").mkdir(parents=True)
    words = {"one": [], "two": ["--reference", "@one/out/samples.jsonl"]}
    rows = [{"name": name, "command": "force", "words": words[name]} for name in words]
    (jobs / "batch.json").write_text(json.dumps({"v": 1, "kind": "batch", "jobs": rows}))
    monkeypatch.setattr(RemoteBench, "jobs", jobs)
    monkeypatch.setattr(RemoteBench, "deployment", SimpleNamespace(interpreter=lambda: "python", device="cpu"))
    monkeypatch.setattr(remote, "_POLL_S", 0.01)
    monkeypatch.setattr(remote, "_SLOW_S", 0.02)
    monkeypatch.setattr(remote, "_GRACE_S", 0.0)
    settings = SimpleNamespace(slots=(("cpu",),), round="r", at_once=1)
    emit = ([] if said is None else said).append
    return RemoteBench(None, settings, Budget(None, tmp_path / "stop"), emit, executor=executor)


# --- what becomes of a job, on a fake executor ---


def test_a_job_runs_once_after_what_it_reads(tmp_path, monkeypatch):
    """The job whose samples another reads ends first; asked again, nothing is submitted; device time is counted."""
    executor = Fake(end)
    bench = bench_on(tmp_path, executor, monkeypatch)
    for _ in range(2):
        bench._check("two")
    assert [folder.parent.name for _, folder, _ in executor.submitted] == ["one", "two"]
    command, _, devices = executor.submitted[0]
    assert (command[-2:], devices) == (["--only", "one"], 0)
    assert bench.budget.device_s > 0


def test_two_slots_that_want_one_job_submit_it_once(tmp_path, monkeypatch):
    """Both get their answer when it has ended."""

    def run(folder):
        time.sleep(0.1)
        end(folder)

    executor, done = Fake(run), []
    bench = bench_on(tmp_path, executor, monkeypatch)
    threads = [threading.Thread(target=lambda: done.append(bench._check("one"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(done), len(executor.submitted)) == (4, 1)


def test_what_the_harness_says_is_passed_on(tmp_path, monkeypatch):
    """Each whole line of the job's events is emitted once, in order, also the last ones before its end."""
    said = []

    def run(folder):
        with (folder / "out/events.jsonl").open("a") as file:
            for number in range(5):
                text = json.dumps({"event": "unit", "number": number}) + "\n"
                for part in (text[:7], text[7:]):
                    file.write(part)
                    file.flush()
                    time.sleep(0.01)
        end(folder)

    bench_on(tmp_path, Fake(run), monkeypatch, said)._check("one")
    assert [event["number"] for event in said] == list(range(5))


def test_a_lost_job_is_submitted_again_and_not_for_ever(tmp_path, monkeypatch):
    """A job that ends without a word and without having measured is an error of the machine, after some more tries."""
    executor = Fake()
    bench = bench_on(tmp_path, executor, monkeypatch)
    with pytest.raises(Unsupported, match="the job 'one' ended 4 times without a word"):
        bench._check("one")
    assert len(executor.submitted) == 4
    executor.run = end
    bench._check("one")  # asked again later, it is tried anew


def test_a_job_that_goes_on_may_be_lost_often(tmp_path, monkeypatch):
    """What measured something before it was ended, by its time limit perhaps, is not counted as lost."""
    left = [9]

    def run(folder):
        left[0] -= 1
        with (folder / "out/samples.jsonl").open("a") as file:
            file.write("{}\n")
        if not left[0]:
            end(folder)

    executor = Fake(run)
    bench_on(tmp_path, executor, monkeypatch)._check("one")
    assert len(executor.submitted) == 9


def test_a_job_of_a_killed_controller_is_waited_for(tmp_path, monkeypatch):
    """Whoever resumes finds the handle in the job's folder, and submits nothing while that is alive."""
    go = threading.Event()
    executor = Fake(lambda folder: (go.wait(10), end(folder)))
    bench = bench_on(tmp_path, executor, monkeypatch)
    _Job(bench.jobs / "one", executor).keep_alive(["x"], 0)
    threading.Timer(0.1, go.set).start()
    bench._check("one")
    assert len(executor.submitted) == 1


def test_a_round_that_stops_cancels_its_job(tmp_path, monkeypatch):
    """The wish to stop is seen while a job runs, and the job is ended: it would hold a device for nobody."""
    go = threading.Event()
    executor = Fake(lambda folder: go.wait(10))
    bench = bench_on(tmp_path, executor, monkeypatch)
    threading.Timer(0.1, (tmp_path / "stop").touch).start()
    with pytest.raises(Stopped, match="told to stop"):
        bench._check("one")
    go.set()
    assert executor.cancelled == ["job 0"]


# --- words ---


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--executor", "cloud"], 2, "no executor is called 'cloud'"),
        (["--executor", "slurm:partition"], 2, "'partition' is no word of this executor"),
        (["--executor", "slurm:color=red,cluster=local"], 2, "'color=red' is no word of this executor"),
        (["--executor", "slurm:cluster=moon"], 2, "'cluster=moon' is none"),
        (["--executor", "slurm:cluster=local,time=0"], 2, "'time=0' is no number of minutes"),
        (["--executor", "slurm:cluster=local,time=-5"], 2, "'time=-5' is no number of minutes"),
        (["--executor", LOCAL, "--elsewhere"], 2, "are two ways to measure on another machine"),
        (["--executor", "slurm"], 5, "this host has no Slurm"),
    ],
)
def test_a_wrong_executor_is_named(repository, monkeypatch, words, code, said):
    """In one line, before anything is written."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    before = snapshot(repository)
    assert errors_well(spt(*START, *words, cwd=repository), code, said)
    assert snapshot(repository) == before


@pytest.mark.parametrize(("word", "package"), [(LOCAL, "submitit"), ("ray", "ray")])
def test_a_missing_package_is_named(monkeypatch, word, package):
    """With the words that install it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Missing) as caught:
        make_executor(word)
    assert f"specpilot[{word.partition(':')[0]}]" in caught.value.hint


# --- real ones ---


@pytest.mark.parametrize("word", [LOCAL, "ray"])
def test_a_round_through_an_executor_ends_as_any_other(tmp_path, word):
    """Two slots: what is faster is promoted, judged here from samples that were taken there; no process is left."""
    folder = make_round_deployment(tmp_path, [CANARY, NOOP])
    words = ["--agent", "memory:canary,noop", "--agents", "2", "--executor", word, "--json"]
    command = [sys.executable, "-m", "spt", *BEGIN, *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    outcomes = {each["id"]: each["outcome"] for each in found["directions"]}
    assert outcomes == {"memory-canary": "promoted", "memory-noop": "declined"}
    assert found["best"]["options"] == {"step_ms": 2.0, "tau": 16}
    assert "memory-canary: confirm: 4 of 4" in ran.stderr  # progress of another host is shown
    jobs = folder / ".git/spt/rounds/far/jobs"
    assert all((job / "submitted.json").is_file() for job in jobs.iterdir() if job.is_dir())
    assert git(folder, "log", "--reverse", "--format=%s", "system/toy/1").splitlines()[1] == "canary: do it"
    check_gone(folder)


def check_gone(folder):
    until_s = time.monotonic() + 20
    while at_work(folder) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert at_work(folder) == []


@pytest.mark.full
@pytest.mark.parametrize("word", [LOCAL, "ray"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_controller_that_ends_is_gone_on_from(tmp_path, word, number):
    """Killed or interrupted in the middle of a campaign, a round goes on: nothing is judged twice, nothing is left."""
    folder = make_round_deployment(tmp_path, [CANARY])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = ["--agent", "memory:canary", "--executor", word, "--json"]
    command = [sys.executable, "-m", "spt", *BEGIN, *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as child:
        for line in child.stderr:
            if line.startswith("calibrate: 2 of 4"):
                break
        child.send_signal(number)
        said = child.stderr.read()
    assert "Traceback" not in said
    if number == signal.SIGINT:
        check_gone(folder)
    command = [sys.executable, "-m", "spt", "round", "resume", "far", "--json"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [each["outcome"] for each in json.loads(ran.stdout)["directions"]] == ["promoted"]
    check_gone(folder)
