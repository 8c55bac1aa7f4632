"""The parts of a round by themselves: journal, state, budget, options to try, and how answers are compared."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spt.errors import Unsupported, Usage
from spt.git.store import Store
from spt.job import HarnessFailed
from spt.round.agents import refuse_agent
from spt.round.agents.sweep import Sweep, neighbours
from spt.round.bench import Bench
from spt.round.budget import Budget, Stopped, Waiting, checked_minutes
from spt.round.direction import Candidate, Direction, Figure, SystemOf, Verdict
from spt.round.gates import Subject, compare_answers, timing
from spt.round.journal import Journal, best_reference, rounds
from spt.round.release import newest_branch, next_branch
from spt.round.state import fold
from spt.system import Option
from tests.spt.toys import git

TREE, COMMIT = "a" * 40, "b" * 40
ANSWERS = [("promote", 1, True), ("decline", 0, False), ("decline", 2, False), ("undecided", 2, False)]
START = {"start": {"tree": TREE, "options": {}}}


def opened(folder):
    return Store.find(folder)


def begun(folder, name="r"):
    """A journal with its first event."""
    journal = Journal(opened(folder), name)
    journal.begin({"any": 1}, START, {})
    return journal


# --- the journal ---


def test_an_event_and_its_references_come_together(deployment):
    """Whoever reads the journal finds the reference that an event moved, and the settings of the start."""
    journal = begun(deployment)
    head = git(deployment, "rev-parse", "HEAD")
    journal.append("explore", "promoted", {}, None, {best_reference("r"): head})
    again = Journal.open(opened(deployment), "r")

    assert [(event.seq, event.phase, event.event) for event in again.events()] == [
        (0, "measure", "begun"),
        (1, "explore", "promoted"),
    ]
    assert again.settings() == {"any": 1}
    assert git(deployment, "rev-parse", "refs/spt/best/r") == head
    assert rounds(opened(deployment)) == ["r"]


def test_two_writers_do_not_lose_one_another(deployment):
    """A second process that wrote meanwhile is an error, and its event stays."""
    first = begun(deployment)
    second = Journal.open(opened(deployment), "r")
    second.events()
    first.append("plan", "phase", {"state": "begun", "reason": ""})
    with pytest.raises(Unsupported, match="another process writes"):
        second.append("plan", "phase", {"state": "done", "reason": ""})
    assert len(Journal.open(opened(deployment), "r").events()) == 2
    with pytest.raises(Usage, match="there is a round 'r' already"):
        begun(deployment)


def test_a_journal_that_was_changed_by_hand_is_refused(deployment):
    """Lines out of order are no history."""
    begun(deployment).append("plan", "phase", {"state": "begun", "reason": ""})
    lines = git(deployment, "show", "refs/spt/round/r:events.jsonl").splitlines()
    blob = git(deployment, "hash-object", "-w", "--stdin", stdin="\n".join(lines[::-1]).encode() + b"\n")
    tree = git(deployment, "mktree", stdin=f"100644 blob {blob}\tevents.jsonl\n".encode())
    git(deployment, "update-ref", "refs/spt/round/r", git(deployment, "commit-tree", "-m", "x", tree))
    with pytest.raises(Usage, match="line 1 is event 1"):
        Journal.open(opened(deployment), "r").events()


def test_a_journal_that_holds_nothing_is_none(deployment):
    """A reference to a commit without events, or to no commit at all, is named with the reference."""
    blob = git(deployment, "hash-object", "-w", "--stdin", stdin=b"")
    tree = git(deployment, "mktree", stdin=f"100644 blob {blob}\tevents.jsonl\n".encode())
    for oid in (git(deployment, "commit-tree", "-m", "x", tree), git(deployment, "rev-parse", "HEAD"), blob):
        git(deployment, "update-ref", "refs/spt/round/r", oid)
        with pytest.raises(Usage, match="refs/spt/round/r"):
            Journal.open(opened(deployment), "r").events()


# --- the state ---


def test_the_state_is_what_the_events_say(deployment):
    """A revision forgets the verdicts of the candidate before; a promotion moves the best; what it cost is summed."""
    journal = begun(deployment)
    direction = Direction("d", "explore", "hand", "T", "H", SystemOf(TREE), COMMIT)
    new = SystemOf("c" * 40, {"x": 1})
    journal.append("explore", "direction", direction.record(), "d")
    journal.append("explore", "candidate", Candidate(new, COMMIT).record(), "d")
    no = Verdict("scope", False, "outside", Figure(1.2, None, None, 0.01), "key")
    journal.append("explore", "gate", no.record(), "d")
    state = fold(journal.events(), COMMIT)
    assert state.courses["d"].direction == direction
    assert state.courses["d"].said_no == no
    journal.append("explore", "candidate", Candidate(new, COMMIT).record(), "d")
    assert fold(journal.events(), COMMIT).courses["d"].verdicts == []
    cost = {"wall_s": 1.5, "device_s": 1.0, "input_tok": 3, "output_tok": 1, "usd": 0.25}
    for _ in range(2):
        journal.append("explore", "spent", cost, "d")
    promoted = {"system": new.record(), "commit": "d" * 40, "gain": 1.2}
    journal.append("explore", "promoted", promoted, "d")
    journal.append("explore", "phase", {"state": "done", "reason": ""})
    state = fold(journal.events(), COMMIT)

    assert (state.best, state.commit) == (new, "d" * 40)
    assert [course.direction.id for course in state.promoted] == ["d"]
    assert state.spent["explore"].record() == {name: 2 * value for name, value in cost.items()}
    assert state.phase == "measure"


# --- the rest ---

ON_CPU = SimpleNamespace(slots=(("cpu",),))


def test_a_budget_ends_by_the_clock_and_by_a_wish(tmp_path):
    """Minutes are of the process; device time is counted apart; a file is the wish to stop."""
    now = [100.0]
    budget = Budget(1.0, tmp_path / "stop", lambda: now[0])
    budget.check()
    with budget.device():
        now[0] += 59.0
    budget.check()
    assert (budget.device_s, budget.left_s()) == (59.0, 1.0)
    now[0] += 1.0
    with pytest.raises(Stopped, match="the time is up"):
        budget.check()
    wish = Budget(None, tmp_path / "stop", lambda: now[0])
    wish.check()
    (tmp_path / "stop").touch()
    with pytest.raises(Stopped, match="told to stop"):
        wish.check()


def test_a_harness_that_ends_by_the_clock_says_nothing_of_a_candidate(tmp_path):
    """It ends before a unit that would not fit, with time left: the round stops, and its direction goes on later."""
    bench = Bench(None, ON_CPU, Budget(10.0, tmp_path / "stop"))

    def ask():
        raise HarnessFailed(1, ["error: the time is up before unit 3 of 'confirm'"], [])

    with pytest.raises(Stopped, match="the time is up"):
        bench._judged(ask)


def test_a_device_that_another_has_is_waited_for(tmp_path):
    """A judge at work elsewhere on the machine fails nobody: it is said once, and then the answer comes."""
    said, tries = [], iter([True, True, False])
    bench = Bench(None, ON_CPU, Budget(None, tmp_path / "stop"), said.append)

    def ask():
        if next(tries):
            raise HarnessFailed(1, ["error: another judge measures on 'cpu': process 1"], [])
        return 7

    assert bench._judged(ask) == 7
    assert [event["event"] for event in said] == ["waits"]


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_no_minutes_are_an_error(minutes):
    """In one line, with the flag in it."""
    with pytest.raises(Usage, match="--max-minutes"):
        checked_minutes(minutes, "--max-minutes")


def option(kind, default, values=None, span=None):
    return Option("o", kind, default, "a number", "toy", values, span)


@given(value=st.integers(0, 64), low=st.integers(0, 4), high=st.integers(8, 64))
def test_neighbours_of_a_number_are_others_within_its_range(value, low, high):
    """Never the value itself, never one that the option refuses."""
    declared = option("int", 8, span=(low, high))
    near = list(neighbours(declared, value))
    assert value not in near
    assert len(near) == len(set(near)) <= 2
    for one in near:
        declared.value(one, "here")


def test_neighbours_of_words():
    """All that are listed but the one of now; the other truth value; a share in both directions."""
    assert list(neighbours(option("string", "a", values=("a", "b", "c")), "b")) == ["a", "c"]
    assert list(neighbours(option("bool", True), True)) == [False]
    assert list(neighbours(option("float", 0.5, span=(0.0, 1.0)), 0.5)) == [0.25, 1.0]
    assert list(neighbours(option("float", 0.0, span=(0.0, 1.0)), 0.0)) == [0.0625]
    assert list(neighbours(option("string", "free"), "free")) == []


def test_a_search_that_waits_for_another_machine_asks_for_all_at_once(monkeypatch):
    """Every option's neighbours are offered before it waits: one trip, not one for each option."""
    declared = {name: option("int", 8, span=(0, 64)) for name in ("a", "b", "c")}
    monkeypatch.setattr(Sweep, "_options", lambda *_: declared)
    offered = []

    class Tools:
        def offer(self, candidate):
            offered.append(dict(candidate.system.options))
            return len(offered)

        def measure_quick(self, _):
            raise Waiting("elsewhere")

    direction = Direction("sweep-explore", "explore", "sweep", "t", "h", SystemOf(TREE), COMMIT)
    with pytest.raises(Waiting):
        Sweep(None).implement(direction, Tools())
    assert offered == [{name: value} for name in declared for value in (4, 16)]


def answer(request, ids, digest="x"):
    return {"request": request, "turn": 0, "ids": ids, "logits_sha256": digest}


def test_answers_are_compared_to_the_token():
    """The first difference is named; logits count where they are asked for."""
    stock = [answer("a", [1, 2, 3]), answer("b", [4])]
    assert compare_answers(stock, stock, digests=True) is None
    assert "'b' has no answer" in compare_answers(stock, stock[:1], digests=False)
    assert "from token 2 on" in compare_answers(stock, [answer("a", [1, 2, 9]), stock[1]], digests=False)
    assert "from token 2 on" in compare_answers(stock, [answer("a", [1, 2]), stock[1]], digests=False)
    other = [answer("a", [1, 2, 3], "y"), stock[1]]
    assert compare_answers(stock, other, digests=False) is None
    assert "logits of 'a'" in compare_answers(stock, other, digests=True)


@pytest.mark.parametrize("rule", ["paired-1", "demo"])
@pytest.mark.parametrize(("answer", "look", "passed"), ANSWERS)
def test_what_a_timing_says_of_a_candidate(rule, answer, look, passed):
    """Any answer on a candidate is a gate's; by the judge's own rule one without a look was the screen's."""
    said = {gate.gate: gate.passed for gate in timing(timed(rule, answer, look))}
    screened = {"screen": look > 0} if rule == "paired-1" else {}
    assert said == screened | ({"confirm": passed} if look or rule == "demo" else {})


@pytest.mark.parametrize("rule", ["paired-1", "demo"])
def test_a_refused_timing_is_no_answer_on_a_candidate(rule):
    """No gate speaks, and the direction fails as by any other error of the machine."""
    with pytest.raises(Unsupported, match="the timing is refused: made up"):
        list(timing(timed(rule, "refused", 0)))


def timed(rule, answer, look):
    """A candidate whose timing has this answer."""
    verdict = {"answer": answer, "look": look, "reason": "made up", "gain": 0.1, "interval": None, "noise": 0.01}
    bench = SimpleNamespace(settings=SimpleNamespace(rule=rule), timed=lambda a, b: {**verdict, "key": "k"})
    system = SystemOf(TREE)
    direction = Direction("d", "explore", "memory", "t", "h", system, COMMIT)
    return Subject(bench, direction, Candidate(system, COMMIT, ""), True)


def test_systems_of_a_deployment_are_numbered(deployment):
    """The next number is one more than the largest that there is, whatever else lies beside."""
    assert (newest_branch(opened(deployment), "toy"), next_branch(opened(deployment), "toy")) == (None, "system/toy/1")
    for name in ("system/toy/2", "system/toy/10", "system/toy/x", "system/other/50"):
        git(deployment, "branch", name)
    store = opened(deployment)
    assert (newest_branch(store, "toy"), next_branch(store, "toy")) == ("system/toy/10", "system/toy/11")


def test_agents_have_names():
    """A word that names none says which there are."""
    refuse_agent("memory:a,b")
    with pytest.raises(Usage, match="no agent is called 'nobody:x'"):
        refuse_agent("nobody:x")
