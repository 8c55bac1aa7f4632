"""Directions that are worked on side by side: who has what when, and how what was promoted becomes one system."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from spt.errors import Usage
from spt.round.budget import Budget, Stopped, Waiting
from spt.round.slots import Turns, side_by_side
from tests.spt.judged import ROOT
from tests.spt.round.test_kills import at_work
from tests.spt.round.toys import CANARY, FROM, NOOP, SLOWER, START, make_round_deployment
from tests.spt.toys import errors_well, git, spt

LONG = ("long", {"tau": "4"}, {})
LIGHT = ("light", {"step_ms": "1.0"}, {})
TWO = ["--devices", "cpu", "--devices", "cpu"]


def nothing():
    pass


# --- threads ---


def test_a_turn_is_one_slots(tmp_path):
    """Of many that want overlapping names never two have one; nobody waits forever, whatever the order of the names."""
    turns, held, most = Turns(), dict.fromkeys("abc", 0), []
    wanted = [("a", "b"), ("b", "a"), ("c", "b"), ("a", "c"), ("c",)]

    def work(number):
        for _ in range(20):
            with turns.held(wanted[number], nothing):
                for name in wanted[number]:
                    held[name] += 1
                most.append(max(held.values()))
                time.sleep(0.0005)
                for name in wanted[number]:
                    held[name] -= 1

    side_by_side(len(wanted), work, Budget(None, tmp_path / "stop"))
    assert (len(most), set(most)) == (100, {1})


def test_who_waits_for_a_turn_can_be_stopped(tmp_path):
    """The wish to stop is looked for while another has the device, and the turn is then nobody's that stopped."""
    turns, budget = Turns(), Budget(None, tmp_path / "stop")
    (tmp_path / "stop").touch()
    caught = []

    def wait():
        try:
            with turns.held(["cpu"], budget.check):
                caught.append("had it")
        except Stopped as stop:
            caught.append(stop.message)

    with turns.held(["cpu"], nothing):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert caught == ["the round was told to stop"]
    with turns.held(["cpu"], budget.check):
        pass


def test_an_error_in_one_slot_ends_the_others(tmp_path):
    """They stop at their next step, and the error that is told is the first one's own, not that the others stopped."""
    budget, ended = Budget(None, tmp_path / "stop"), []

    def work(number):
        if number == 1:
            raise Usage("this one is wrong")
        with pytest.raises(Stopped, match="what works beside it has ended"):
            while True:
                budget.check()
                time.sleep(0.001)
        ended.append(number)
        budget.check()

    with pytest.raises(Usage, match="this one is wrong"):
        side_by_side(3, work, budget)
    assert sorted(ended) == [0, 2]


def test_who_waits_for_another_machine_ends_nobody(tmp_path):
    """The other slots go on as far as they can, and then it is told that the round waits."""
    budget, done = Budget(None, tmp_path / "stop"), []

    def work(number):
        if number == 0:
            raise Waiting("the round waits")
        time.sleep(0.05)
        budget.check()
        done.append(number)

    with pytest.raises(Waiting):
        side_by_side(2, work, budget)
    assert done == [1]


def test_meters_are_apart_and_the_end_is_shared(tmp_path):
    """Device time of one slot is not that of another; whoever halts, halts all."""
    now = [0.0]
    budget = Budget(1.0, tmp_path / "stop", lambda: now[0])
    one, other = budget.part(), budget.part()
    with one.device():
        now[0] += 5.0
    assert (budget.device_s, one.device_s, other.device_s) == (0.0, 5.0, 0.0)
    other.halt()
    for each in (budget, one, other):
        with pytest.raises(Stopped):
            each.check()


# --- rounds ---


def events(folder, name):
    return [json.loads(line) for line in git(folder, "show", f"refs/spt/round/{name}:events.jsonl").splitlines()]


def named(told, event):
    return [each for each in told if each["event"] == event]


@pytest.fixture(scope="module")
def stacked(tmp_path_factory):
    """A round of two slots, of two entries that pay and one that does not; nobody writes to it.  (folder, its words)"""
    folder = make_round_deployment(tmp_path_factory.mktemp("slots"), [LONG, LIGHT, NOOP])
    agents = ["--agent", "memory:long,light,noop"]
    return folder, spt(*START, SLOWER, "--name", "two", *TWO, *agents, "--json", cwd=folder)


def test_what_is_promoted_side_by_side_becomes_one_system(stacked):
    """Each is judged on the start; the later one is then judged once more, on the other, and the whole on the start."""
    folder, ran = stacked
    assert ran.code == 0, ran.err
    found = {each["id"]: each for each in ran.json["directions"]}
    placed = {each["direction"]: each["data"] for each in named(events(folder, "two"), "direction")}
    start = ran.json["begun"]["start"]

    assert [found[f"memory-{name}"]["outcome"] for name in ("long", "light", "noop")] == [
        "promoted",
        "promoted",
        "declined",
    ]
    assert all(placed[f"memory-{name}"]["base"] == start for name in ("long", "light"))
    assert sum(bool(each["end"].get("beside")) for each in found.values()) == 1
    [name] = [each for each in found if each.endswith("-stacked")]
    later = name.removesuffix("-stacked")  # the one that gained less, or was promoted beside the other
    assert (found[name]["phase"], found[name]["outcome"]) == ("integrate", "promoted")
    assert placed[name]["stacks"] == later
    assert placed[name]["base"] != start
    assert (found["whole"]["outcome"], placed["whole"]["base"]) == ("promoted", start)
    assert found["whole"]["end"]["gain"] > found[later]["end"]["gain"]
    assert ran.json["best"]["options"] == {"tau": 4}
    assert found["whole"]["end"]["system"]["tree"] == ran.json["best"]["tree"]


def test_the_slots_were_at_work_at_the_same_time(stacked):
    """The second direction was begun before the first had an outcome, in another slot; lines name their direction."""
    folder, ran = stacked
    told = events(folder, "two")
    begun = [each["seq"] for each in named(told, "direction") if each["phase"] == "explore"]
    ended = [each["seq"] for each in told if each["event"] in ("promoted", "declined") and each["phase"] == "explore"]
    assert begun[1] < min(ended)
    assert {each["data"]["slot"] for each in named(told, "direction") if each["phase"] == "explore"} == {0, 1}
    assert any(line.startswith("memory-long: confirm: ") for line in ran.err.splitlines())
    assert ran.json["begun"]["modes"]["agents"] == 2


def test_the_wall_time_of_a_phase_is_what_has_passed(stacked):
    """However many work side by side: the sum that a round tells is no more than the time from its first event on."""
    from datetime import datetime

    folder, _ = stacked
    told = events(folder, "two")
    first, last = (datetime.fromisoformat(each["date"]) for each in (told[0], told[-1]))
    wall_s = sum(each["data"]["wall_s"] for each in named(told, "spent"))
    assert 0 < wall_s <= (last - first).total_seconds() + 2.0


def test_a_stacked_system_is_a_series_of_its_entries(stacked):
    """One commit an entry, whichever was first; both entries were reused, and nothing is residual."""
    folder, ran = stacked
    log = git(folder, "log", "--reverse", "--format=%s", "system/toy/1").splitlines()
    assert sorted(log[1:3]) == ["light: do it", "long: do it"]
    assert log[3].startswith("system/toy/1: smoke")
    assert sorted(each["name"] for each in ran.json["entries"]) == ["light", "long"]
    assert ran.json["residual"] == []
    beside, *_ = git(folder, "for-each-ref", "--format=%(refname)", "refs/spt/beside/two").splitlines()
    assert "options:" in git(folder, "show", f"{beside}:.spt/system.yaml")
    git(folder, "fsck", "--strict")
    for words in (["status", "two"], ["review", "two"], ["list"]):
        assert spt("round", *words, cwd=folder).code == 0
    reported = spt("report", "two", "--json", cwd=folder)
    assert reported.code == 0, reported.err


@pytest.mark.full
def test_of_two_that_do_not_compose_the_better_is_kept(tmp_path):
    """Whichever was promoted first, the best is what gained most, and the other is declined with the reason."""
    both = {"more": {"kernels/both.py": "# {0}\n"}}
    slight = ("slight", {"step_ms": "2.0"}, both)
    folder = make_round_deployment(tmp_path, [("long", {"tau": "16"}, both), slight])
    words = ["--agents", "2", "--agent", "memory:long,slight", "--name", "odd", "--json"]
    ran = spt(*START, SLOWER, *words, cwd=folder)
    assert ran.code == 0, ran.err
    found = {each["id"]: each for each in ran.json["directions"]}
    assert [found[f"memory-{name}"]["outcome"] for name in ("long", "slight")] == ["promoted", "promoted"]
    assert (found["memory-slight-stacked"]["outcome"], found["memory-slight-stacked"]["end"]["gate"]) == (
        "declined",
        "agent",
    )
    assert "does not compose" in found["memory-slight-stacked"]["end"]["reason"]
    assert ran.json["best"]["options"] == {"step_ms": 6.0, "tau": 16}
    assert [each["name"] for each in ran.json["entries"]] == ["long", "slight"]
    moved = [each["data"]["line"] for each in named(events(folder, "odd"), "best")]
    assert moved in ([], [["memory-long"]])
    assert git(folder, "log", "--reverse", "--format=%s", "system/toy/1").splitlines()[1:-1] == ["long: do it"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--devices", "gpu"], "'gpu' is none of cpu"),
        (["--devices", "cpu", "--devices", "cuda:0,cuda:0"], "names one device twice"),
        (["--agents", "0"], "'--agents'"),
    ],
)
def test_a_wrong_slot_is_named(repository, words, said):
    """In one line, and no round is begun."""
    assert errors_well(spt(*START, *words, cwd=repository), 2, said)
    assert git(repository, "for-each-ref", "refs/spt/round") == ""


def test_an_interrupt_ends_all_slots(tmp_path):
    """Ctrl-C is told in a line and leaves no process; `resume` then ends the round as if nobody had interrupted it."""
    folder = make_round_deployment(tmp_path, [CANARY, NOOP])
    command = [sys.executable, "-m", "spt", *START, FROM, "--name", "cut", "--agent", "memory", *TWO]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as child:
        for line in child.stderr:
            if ": default: passes" in line:  # a slot is at work on its candidate
                break
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert (child.wait(), "what was measured is kept" in said, "Traceback" in said) == (130, True, False)
    until_s = time.monotonic() + 20
    while at_work(folder) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert at_work(folder) == []
    ran = spt("round", "resume", "cut", "--json", cwd=folder)
    assert ran.code == 0, ran.err
    assert {each["id"]: each["outcome"] for each in ran.json["directions"]} == {
        "memory-canary": "promoted",
        "memory-noop": "declined",
    }


# --- what is stacked, and on what ---

TREE = "a" * 40


def promoted_state(*rows):
    """The state after promotions (name, its base's name or None for the start, gain, beside)."""
    from spt.round.journal import Event
    from spt.round.state import fold

    systems = {None: {"tree": TREE, "options": {}}}
    systems |= {name: {"tree": TREE, "options": {name: 1}} for name, *_ in rows}
    told = [("measure", "begun", None, {"start": systems[None]})]
    for name, base, gain, beside in rows:
        placed = {
            "agent": "hand", "title": name, "hypothesis": "H", "predicted_gain": None, "interval": None, "evidence": [],
            "base": systems[base], "base_commit": "b" * 40, "slot": 0,
        }  # fmt: skip
        end = {"system": systems[name], "commit": "c" * 40, "gain": gain, "beside": beside}
        told += [("explore", "direction", name, placed), ("explore", "promoted", name, end)]
    events = [
        Event("r", number, phase, event, direction, data, "2026-12-01T00:00:00+00:00")
        for number, (phase, event, direction, data) in enumerate(told)
    ]
    return fold(events, "b" * 40)


def names(courses):
    return [course.direction.id for course in courses]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([("a", None, 1.1, False), ("b", None, 1.05, True)], ["a"]),
        ([("a", None, 1.1, False), ("b", None, 1.3, True)], ["b"]),
        ([("a", None, 1.1, False), ("b", None, 1.2, True), ("c", "a", 1.12, False)], ["a", "c"]),
        ([("a", None, 1.1, False), ("b", None, 1.3, True), ("c", "a", 1.12, False)], ["b"]),
        ([("a", None, 1.1, False), ("b", "a", 1.2, False), ("c", "a", 1.3, True)], ["a", "c"]),
    ],
)
def test_the_line_is_the_one_that_gained_most_over_the_start(rows, line):
    """Gains multiply along what each was promoted on, and not across what was promoted side by side."""
    from spt.round.stacking import best_line

    assert names(best_line(promoted_state(*rows))) == line


def test_what_was_promoted_on_another_is_stacked_after_it():
    """However much it gained: without the other its patch has nothing to stand on."""
    from dataclasses import replace

    from spt.round.stacking import to_stack

    state = promoted_state(
        ("a", None, 1.05, False), ("d", "a", 1.2, False), ("b", None, 1.3, True), ("e", None, 1.01, True)
    )
    state = replace(state, line=["b"], aside=["a", "d", "e"])
    assert to_stack(state, "integrate").stacks == "a"
    assert to_stack(replace(state, aside=["d", "e"]), "integrate").stacks == "d"
    assert to_stack(replace(state, aside=["e"]), "integrate").stacks == "e"
    assert to_stack(replace(state, aside=[]), "integrate") is None


def test_a_stacked_direction_has_an_id_of_its_own():
    """Whatever directions there are, and however long their names."""
    from spt.round.stacking import to_stack

    long = "x" * 64
    taken = f"{'x' * 56}-stacked"
    state = promoted_state(("a", None, 1.1, False), (long, None, 1.05, True), (taken, None, 1.02, True))
    found = to_stack(state, "integrate")
    assert (found.stacks, len(found.id), found.id in state.courses) == (long, 64, False)
    state = promoted_state(("a", None, 1.1, False), ("b", None, 1.05, True))
    assert to_stack(state, "integrate").id == "b-stacked"


def test_options_of_what_is_not_there_do_not_compose(repository):
    """A search that set an option of an entry is declined on a system without that entry."""
    from types import SimpleNamespace

    from spt.errors import Conflict
    from spt.memory import Memory
    from spt.round.direction import SystemOf
    from spt.round.stacking import stacked

    memory = Memory.open(repository)
    commit = git(repository, "rev-parse", "refs/spt/stock/current")
    base = SystemOf(memory.stock)
    end = {"commit": commit, "system": {"tree": memory.stock, "options": {"of_another": 8}}}
    course = SimpleNamespace(direction=SimpleNamespace(id="d", base=base, base_commit=commit), end=end)
    with pytest.raises(Conflict, match="'of_another', which is declared by what is not in this system"):
        stacked(memory, course, base, commit)


# --- what threads share ---


def together(count, work):
    """Calls `work` in several threads at once; the errors that they met."""
    errors, start = [], threading.Barrier(count)

    def run(number):
        start.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - it is told by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_share_the_digests_of_models(tmp_path):
    """Each finds them right, and the cache is whole whenever it is read."""
    from spt.deployment import content_digest

    models = [tmp_path / f"m{number}.gguf" for number in range(4)]
    for model in models:
        model.write_bytes(model.name.encode())
    right = [content_digest(model) for model in models]

    def work(number):
        for turn in range(40):
            models[number].touch()
            os.utime(models[number], ns=(turn, turn))
            assert content_digest(models[number], tmp_path / "models.json") == right[number]
            json.loads((tmp_path / "models.json").read_text())

    assert together(4, work) == []
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_threads_share_the_repository(repository):
    """Handles are opened, objects written and locks taken side by side, and nothing is removed under one."""
    from spt.git.objects import FILE, State
    from spt.git.store import Store
    from spt.git.tree import splice

    def work(number):
        for turn in range(12):
            store = Store.find(repository)
            blob = store.objects.add_blob(f"{number} {turn}\n".encode())
            tree = splice(store.objects, None, {"x.txt": State(FILE, blob)})
            if number % 2:
                with store.locked():
                    pass
            with store.written([tree]):
                pass
            assert tree in Store.find(repository).objects

    assert together(4, work) == []
    assert list((repository / ".git/objects/pack").glob("*.keep")) == []


def test_threads_put_jobs_into_one_batch(tmp_path, monkeypatch):
    """Every job of every slot stands in it once, and it is whole whenever it is read."""
    from types import SimpleNamespace

    from spt.round.far import FarBench

    monkeypatch.setattr(FarBench, "jobs", tmp_path)
    settings = SimpleNamespace(slots=(), at_once=4)
    bench = FarBench(None, settings, Budget(None, tmp_path / "stop"))

    def work(number):
        for turn in range(20):
            bench._add(f"run-{number}-{turn % 10}", "run", [])
            json.loads((tmp_path / "batch.json").read_text())

    assert together(4, work) == []
    jobs = [job["name"] for job in json.loads((tmp_path / "batch.json").read_text())["jobs"]]
    assert sorted(jobs) == sorted(f"run-{number}-{turn}" for number in range(4) for turn in range(10))
