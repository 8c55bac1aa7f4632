"""kill -9 at any moment of a round, then `resume`: nothing is redone, nothing is lost, nothing is left over."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from spt.git.store import Store
from spt.round.journal import Journal
from tests.spt.round.toys import CANARY, FROM, NOOP, SLOW, START, copied, make_round_deployment
from tests.spt.test_crash import child
from tests.spt.toys import git, spt

NAME = "killed"
BEGIN = [*START, FROM, "--name", NAME, "--agent", "memory:canary,noop", "--json"]
ONCE = ("measured", "planned", "direction", "promoted", "declined", "final", "deployment", "ended", "residual")


@pytest.fixture(scope="module")
def pristine_killed(tmp_path_factory):
    return make_round_deployment(tmp_path_factory.mktemp("kills"), [CANARY, NOOP])


def events(folder):
    """The journal as it lies in git, a line an event."""
    store = Store.find(folder)
    return Journal.open(store, NAME).events() if store.reference(f"refs/spt/round/{NAME}") else []


def killed(folder, words, delay_s, *, with_git):
    """Runs `spt` for so many seconds, then kills it, with the git that it started or without; whether it had ended."""
    pid = child(lambda: spt(*words, cwd=folder), own_group=True)
    until_s = time.monotonic() + delay_s
    while time.monotonic() < until_s:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL) if with_git else os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def at_work(folder):
    """The processes whose words name a folder; those of a killed command end once they see that nobody listens."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and int(path.parent.name) != os.getpid():
            found.append(words.decode(errors="replace").replace("\0", " "))
    return found


def ends(folder):
    """What became of a round, without what differs from one run to the next."""
    status = spt("round", "status", NAME, "--json", cwd=folder)
    found = status.json
    directions = {each["id"]: each["outcome"] for each in found["directions"]}
    entries = [(entry["name"], entry["discovery"]) for entry in found["entries"]]
    return found["outcome"], directions, entries, found["best"]["tree"], found["best"]["options"], found["residual"]


def check_whole(folder, before):
    """Between two processes: the journal only grew, git is sound, and every reference that it names is there."""
    after = events(folder)
    assert [event.record() for event in after[: len(before)]] == [event.record() for event in before]
    for name in ONCE:
        told = [(event.direction, event.phase) for event in after if event.event == name]
        assert len(told) == len(set(told)), f"'{name}' stands twice"
    gates = [(event.direction, event.data["gate"]) for event in after if event.event == "gate"]
    assert len(gates) == len(set(gates)), "a gate was asked twice"
    return after


def run_killed(folder, rng, most, begin):
    """A round that is killed up to `most` times, and then left alone; how often it was."""
    kills, before = 0, []
    while kills < most:
        begun = bool(events(folder))
        words = ["round", "resume", NAME, "--json"] if begun else begin
        if killed(folder, words, rng.uniform(0.05, 2.5), with_git=rng.random() < 0.5):
            break
        kills += 1
        before = check_whole(folder, before)
    words = ["round", "resume", NAME, "--json"] if events(folder) else begin
    ran = spt(*words, cwd=folder)
    assert ran.code == 0, ran.err + ran.out
    check_whole(folder, before)
    return kills


def check_clean(folder):
    """Nothing of a killed process is left: no lock, no half of a folder, no campaign, no process."""
    assert git(folder, "fsck", "--strict", "--no-dangling") == ""
    assert git(folder, "status", "--porcelain") == ""
    assert list((folder / ".git").rglob("*.lock")) == []
    assert list((folder / ".git/objects/pack").glob("*.keep")) == []
    assert list((folder / ".git/spt").rglob(".new-*")) == []
    assert list((folder / ".git/spt/campaigns").glob("*")) == []
    until_s = time.monotonic() + 20
    while at_work(folder) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert at_work(folder) == []


@pytest.mark.parametrize("wanted", [30, pytest.param(1000, marks=pytest.mark.full)])
def test_a_round_survives_kills_at_random_moments(pristine_killed, tmp_path, wanted):
    """However often it is killed, a round ends as one that nobody disturbed, with every step done once."""
    seed = random.SystemRandom().getrandbits(32)
    rng, kills, rounds = random.Random(seed), 0, 0
    expected = ("promoted", {"memory-canary": "promoted", "memory-noop": "declined"}, [("canary", False)])
    while kills < wanted:
        folder = copied(pristine_killed, tmp_path / f"d{rounds}")
        begin = [*BEGIN, "--agents", "2"] if rounds % 2 else BEGIN  # one after the other, and side by side
        kills += run_killed(folder, rng, wanted - kills, begin)
        found = ends(folder)
        assert found[:3] == expected, f"seed {seed}: {found} {spt('round', 'status', NAME, cwd=folder).out}"
        assert found[4:] == ({**SLOW, "tau": 16}, []), f"seed {seed}: {found}"
        check_clean(folder)
        assert git(folder, "log", "-1", "--format=%s", "system/toy/1").startswith("system/toy/1: smoke")
        shutil.rmtree(folder)
        rounds += 1


def test_a_stale_lock_of_git_is_cleared_by_the_next_resume(pristine_killed, tmp_path):
    """A git that was killed with its command leaves its lock on a reference: `resume` removes it once it is old."""
    folder = copied(pristine_killed, tmp_path / "d")
    assert not killed(folder, BEGIN, 2.5, with_git=True)
    for name in (f"refs/spt/round/{NAME}.lock", f"refs/spt/best/{NAME}.lock", "refs/spt/verdicts.lock"):
        (folder / ".git" / name).touch()
    ran = spt("round", "resume", NAME, "--max-minutes", "0.03", cwd=folder)
    assert "the time is up" in ran.err, ran.err
    assert list((folder / ".git/refs/spt").rglob("*.lock")) == []


def test_one_process_works_on_a_round(pristine_killed, tmp_path):
    """A second one is refused in one line, `stop` lets the first one end, and the journal says why it did."""
    folder = copied(pristine_killed, tmp_path / "d")
    pid = child(lambda: spt(*BEGIN, cwd=folder), own_group=True)
    until_s = time.monotonic() + 20
    while not any(event.event == "direction" for event in events(folder)) and time.monotonic() < until_s:
        time.sleep(0.05)
    second = spt("round", "resume", NAME, cwd=folder)
    assert (second.code, "another process works on the round" in second.err) == (5, True)
    assert spt("round", "status", NAME, "--json", cwd=folder).json["at_work"] is True
    stopped = spt("round", "stop", NAME, cwd=folder)
    os.waitpid(pid, 0)
    assert (stopped.code, "has stopped" in stopped.out) == (0, True)
    assert events(folder)[-1].event == "stopped"
    assert events(folder)[-1].data == {"reason": "the round was told to stop"}
    assert "was not at work" in spt("round", "stop", NAME, cwd=folder).out
    check_clean_of_processes(folder)


def check_clean_of_processes(folder):
    until_s = time.monotonic() + 20
    while at_work(folder) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert at_work(folder) == []
