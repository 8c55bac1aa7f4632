"""Rounds whose jobs run on other hosts: by submitit, here and on a pretended Slurm, and by a Ray of this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from spt.errors import Missing, Unsupported, Usage
from spt.git.store import Store
from spt.job import HarnessFailed
from spt.round import remote
from spt.round.bench import Bench
from spt.round.budget import Budget, Stopped
from spt.round.executors import make_executor, slurm
from spt.round.journal import Journal
from spt.round.remote import RemoteBench
from spt.round.runs import Asked
from spt.round.settings import Settings
from tests.spt.judged import ROOT
from tests.spt.round.test_kills import at_work
from tests.spt.round.toys import CANARY, FROM, START, copied, make_round_deployment
from tests.spt.toys import errors_well, snapshot, spt

LOCAL, QUEUED, RAY = "slurm:cluster=local", "slurm:partition=gpu,time=30", "ray"
BEGIN = [*START, FROM, "--name", "far", "--agent", "memory:canary"]
QUICK, LONG = Asked(1, 3, 8), Asked(4, 3, 16)
SLOW = {"step_ms": 2000.0}  # a step of what must still run when something happens to it

# Programs that look like Slurm's: a job is a session of this machine, by the id of its first process.
PROGRAMS = {
    "sbatch": """for script; do :; done
setsid sh -c 'export SLURM_JOB_ID=$$ SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 \
SLURM_LOCALID=0; exec bash "$0"' "$script" >/dev/null 2>&1 &
echo "Submitted batch job $!"
""",
    "srun": """while :; do case "$1" in --unbuffered) shift;; --output|--error) shift 2;; *) break;; esac; done
exec "$@" >/dev/null 2>&1
""",
    "sacct": """echo 'JobID|State|NodeList'
while [ $# -gt 0 ]; do
    if [ "$1" = -j ]; then
        if kill -0 "$2" 2>/dev/null; then echo "$2|RUNNING|here"; else echo "$2|NODE_FAIL|here"; fi
    fi
    shift
done
""",
    "scancel": 'kill -TERM "-$1"\n',
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A round that has begun, and whose time was up before anything was measured."""
    folder = make_round_deployment(tmp_path_factory.mktemp("executors"), [CANARY])
    ran = spt(*BEGIN, "--executor", LOCAL, "--max-minutes", "1e-6", cwd=folder)
    assert "the time is up" in ran.err, ran.err
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The executors by their words; those of Slurm find the pretended one."""
    programs = tmp_path_factory.mktemp("slurm")
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        patch.setattr(slurm, "_FRESH_S", 0.3)
        patch.setattr(remote, "_LAG_S", 1.0)
        found = {word: make_executor(word) for word in (LOCAL, QUEUED, RAY)}
        for executor in found.values():
            executor.check()
            executor.open()
        yield found
        for executor in found.values():
            executor.close()


@pytest.fixture(params=[LOCAL, QUEUED, RAY])
def word(request):
    return request.param


@pytest.fixture
def folder(pristine, tmp_path):
    return copied(pristine, tmp_path / "deployment")


def bench_of(folder, executor, word="fake", emit=lambda event: None):
    """A bench of the round in a folder, as the controller makes one."""
    store = Store.find(folder)
    settings = replace(Settings.of(Journal.open(store, "far").settings()), executor=word)
    return RemoteBench(store, settings, Budget(None, folder.parent / "stop"), emit, executor=executor)


def start_of(bench, **options):
    system = bench.settings.start
    return replace(system, options={**system.options, **options})


def begun(folder):
    """How often a command was begun, by all jobs of the round."""
    files = (folder / ".git/spt/rounds/far/jobs").glob("*/out/events.jsonl")
    return sum(file.read_text().count('"begun"') for file in files)


def is_gone(folder):
    until_s = time.monotonic() + 20
    while at_work(folder) and time.monotonic() < until_s:
        time.sleep(0.1)
    return at_work(folder) == []


def batches(folder):
    """The processes of `harness batch` on the round's jobs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"batch" in words and str(folder / ".git/spt/rounds/far/jobs").encode() in words:
            found.append(int(path.parent.name))
    return found


# --- each executor ---


def test_a_question_is_answered_on_another_host(word, made, folder):
    """The answers are those of this machine; the time on the host is counted, and a second bench asks nothing."""
    bench = bench_of(folder, made[word], word)
    found = bench.answers(start_of(bench), QUICK)
    here = Bench(bench.store, bench.settings, bench.budget).answers(start_of(bench), QUICK)
    assert [each["ids"] for each in found] == [each["ids"] for each in here]
    assert bench.budget.device_s > 0
    assert bench_of(folder, made[word], word).answers(start_of(bench), QUICK) == found
    assert begun(folder) == 1
    assert is_gone(folder)


def test_a_job_that_is_killed_is_submitted_again(word, made, folder):
    """Whoever runs it on its host dies: nothing goes on there, and the next submission ends it."""
    killed = []

    def kill(event):
        if event["event"] == "answer" and not killed:
            [process] = batches(folder)
            parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            killed.append(parent)
            os.kill(parent, signal.SIGKILL)

    bench = bench_of(folder, made[word], word, kill)
    assert len(bench.answers(start_of(bench, step_ms=100.0), LONG)) == LONG.count
    assert (len(killed), begun(folder)) == (1, 2)
    assert is_gone(folder)


def test_who_stops_while_a_job_runs_leaves_no_process(word, made, folder):
    """The wish to stop ends the job on its host, and what it measured is gone on from."""

    def stop(event):
        (folder.parent / "stop").touch()

    bench = bench_of(folder, made[word], word, stop)
    with pytest.raises(Stopped, match="told to stop"):
        bench.answers(start_of(bench, **SLOW), LONG)
    assert is_gone(folder)
    assert not list((folder / ".git/spt/rounds/far/jobs").glob("*/executor.json"))


def test_of_two_that_want_one_job_one_submits_it(word, made, folder):
    """Directions side by side share what stock is asked: it is measured once, and both have it."""
    bench, found = bench_of(folder, made[word], word), []
    benches = [bench.apart(slot, f"d{slot}") for slot in (0, 1)]
    threads = [
        threading.Thread(target=lambda each=each: found.append(each.answers(start_of(each), QUICK))) for each in benches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0] == found[1]
    assert begun(folder) == 1
    assert sum(each.budget.device_s > 0 for each in benches) == 1


def ask(folder, word):
    """What a controller asks that is then killed."""
    executor = make_executor(word)
    executor.open()
    bench = bench_of(folder, executor, word)
    bench.answers(start_of(bench, step_ms=100.0), LONG)


@pytest.mark.parametrize("word", [LOCAL, *(pytest.param(word, marks=pytest.mark.full) for word in (QUEUED, RAY))])
def test_a_killed_controller_finds_its_job_again(word, made, folder):
    """kill -9, then the same question: a job that still runs is waited for; one that died with its controller is
    submitted again, and nothing runs twice at once."""
    call = f"from tests.spt.round.test_executors import ask, Path; ask(Path({str(folder)!r}), {word!r})"
    child = subprocess.Popen([sys.executable, "-c", call], cwd=ROOT)
    until_s = time.monotonic() + 60
    while not begun(folder) and time.monotonic() < until_s:
        time.sleep(0.05)
    child.kill()
    child.wait()
    bench = bench_of(folder, made[word], word)
    assert len(bench.answers(start_of(bench, step_ms=100.0), LONG)) == LONG.count
    if word != RAY:
        assert begun(folder) == 1
    assert is_gone(folder)


# --- what a bench does, with a pretended executor ---


class Fake:
    """An executor whose jobs do what a script says: each is called with the job's folder, and returns its state."""

    minutes = None

    def __init__(self, *scripts):
        self.scripts, self.works, self.cancelled = iter(scripts), [], 0

    def submit(self, work):
        self.works.append(work)
        return FakeHandle(self, next(self.scripts)(work.folder.parent))

    def attach(self, number, folder):
        return FakeHandle(self, next(self.scripts)(folder.parent))

    def close(self):
        pass


class FakeHandle:
    id = "17"

    def __init__(self, executor, state):
        self.executor, self._state = executor, state

    def state(self):
        return self._state

    def cancel(self):
        self.executor.cancelled, self._state = self.executor.cancelled + 1, "ended"


def end(folder, status=0, error=None):
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out/answers.jsonl").touch()
    ended = {"v": 1, "kind": "ended", "status": status, "error": error}
    (folder / "out/ended.json").write_text(json.dumps(ended))
    return "ended"


def lose(folder):
    return "lost"


def get_further(folder):
    (folder / "out").mkdir(exist_ok=True)
    with (folder / "out/samples.jsonl").open("a") as file:
        file.write("{}\n")
    return "lost"


def test_a_job_that_gets_lost_is_no_fault_of_its_candidate(folder):
    """It is submitted three times, and is then an error of the machine, which no gate takes for a decline."""
    executor = Fake(*[lose] * 9)
    bench = bench_of(folder, executor)
    with pytest.raises(Unsupported, match="was lost 3 times on other hosts: its host said nothing") as caught:
        bench.answers(start_of(bench), QUICK)
    assert not isinstance(caught.value, HarnessFailed)
    assert len(executor.works) == 3


def test_a_job_that_gets_further_each_time_is_never_given_up(folder):
    """Preempted ten times, or longer than its host allows: what was measured counts, and it ends."""
    executor = Fake(*[get_further] * 10, lose, lose, end)
    bench = bench_of(folder, executor)
    assert bench.answers(start_of(bench), QUICK) == []
    assert len(executor.works) == 13


@pytest.mark.parametrize(("held", "submitted"), [("fake", 0), ("slurm", 1)])
def test_a_job_that_another_process_submitted_is_attached_to(folder, held, submitted):
    """The id in its folder is enough; what another executor was given is not looked for."""
    with pytest.raises(Unsupported):
        bench = bench_of(folder, Fake(*[lose] * 3))
        bench.answers(start_of(bench), QUICK)
    [job] = (folder / ".git/spt/rounds/far/jobs").glob("run-*")
    (job / "executor.json").write_text(json.dumps({"executor": held, "id": "17"}))
    executor = Fake(end)
    assert bench_of(folder, executor).answers(start_of(bench), QUICK) == []
    assert len(executor.works) == submitted
    assert not (job / "executor.json").exists()


def test_a_job_that_fails_declines_by_its_own_words(folder):
    """What the harness says of a candidate on its host is what a bench here says of it."""
    bench = bench_of(folder, Fake(lambda folder: end(folder, 4, "the engine is gone")))
    with pytest.raises(HarnessFailed, match="the engine is gone") as caught:
        bench.answers(start_of(bench), QUICK)
    assert caught.value.exit_code == 4


def test_a_host_numbers_its_gpus_from_0(folder):
    """Slots on other hosts name how many GPUs a job needs, not which."""
    executor = Fake(end)
    bench = bench_of(folder, executor)
    bench = replace(bench, settings=replace(bench.settings, slots=(("cuda:4", "cuda:7"),)))
    assert (bench.devices, bench.device) == (("cuda:0", "cuda:1"), "cuda:0")
    bench.answers(start_of(bench), QUICK)
    [work] = executor.works
    assert work.devices == 1  # a run needs one


# --- words ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pbs", "there is no executor 'pbs'"),
        ("slurm:queue=long", "'queue=long' is nothing that can be asked of Slurm"),
        ("slurm:partition", "'partition' is nothing"),
        ("slurm:cluster=moon", "'cluster=moon' is nothing"),
        ("slurm:time=soon", "'time=soon' is no number"),
        ("slurm:time=0", "'time=0' is no number"),
    ],
)
def test_words_that_name_no_executor_are_refused(words, said):
    """In the user's own words."""
    with pytest.raises(Usage) as caught:
        make_executor(words)
    assert said in caught.value.message


@pytest.mark.parametrize(("name", "word"), [("submitit", LOCAL), ("ray", RAY)])
def test_a_package_that_is_missing_is_said_before_anything_is_written(name, word, folder, monkeypatch):
    """In one line, with the extra that brings it."""
    monkeypatch.setitem(sys.modules, name, None)
    before = snapshot(folder)
    ran = spt(*START, FROM, "--name", "other", "--executor", word, cwd=folder)
    extra = word.partition(":")[0]
    assert errors_well(ran, Missing.exit_code, f"the package {name} is not installed", f"specpilot[{extra}]"), ran.err
    assert snapshot(folder) == before


def test_an_executor_and_a_person_do_not_both_carry(folder):
    """Two ways to other machines are refused, and nothing is written."""
    before = snapshot(folder)
    ran = spt(*START, FROM, "--name", "other", "--executor", LOCAL, "--elsewhere", cwd=folder)
    assert errors_well(ran, 2, "--executor", "--elsewhere"), ran.err
    assert snapshot(folder) == before


# --- whole rounds ---


def check_ends(folder, words):
    """A command in a process of its own ends the round with the canary promoted, and leaves no process."""
    command = [sys.executable, "-m", "spt", *words, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["outcome"], found["final"]["verdict"]) == ("promoted", "smoke")
    assert {each["id"]: each["outcome"] for each in found["directions"]} == {"memory-canary": "promoted"}
    assert is_gone(folder)


@pytest.mark.full
def test_a_round_ends_on_other_hosts_as_it_does_here(word, made, tmp_path):
    """From its start to a system that passed its final."""
    folder = make_round_deployment(tmp_path, [CANARY])
    check_ends(folder, [*BEGIN, "--executor", word])


@pytest.mark.full
def test_a_round_whose_controller_is_killed_goes_on(word, made, tmp_path):
    """kill -9 while jobs run, more than once: `resume` ends it as one that nobody disturbed."""
    folder = make_round_deployment(tmp_path, [CANARY])
    words = [*BEGIN, "--executor", word]
    for number in (1, 3, 6):
        child = subprocess.Popen(
            [sys.executable, "-m", "spt", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until_s = time.monotonic() + 120
        while begun(folder) < number and time.monotonic() < until_s and child.poll() is None:
            time.sleep(0.05)
        child.kill()
        child.wait()
        words = ["round", "resume", "far"]
    check_ends(folder, ["round", "resume", "far"])
