"""The agents that run a program in a sandbox, `command` and `scripted`: what they are told, and what becomes of it."""

import sys

import pytest

from spt.deployment import Deployment
from spt.errors import Missing, Unsupported, Usage
from spt.round.agents import Limits, Spent, Task, Workshop, make_agent
from spt.round.direction import Candidate, Declined, Direction, SystemOf, Verdict
from tests.spt.round.enclosed import is_incoming, rescued
from tests.spt.toys import INT_OPTION, git

OPTION = INT_OPTION.format("budget", 8)
FASTER = f"""
import os, subprocess, sys
os.chdir("/spt/room/tree")
open("stock/engine.py", "a").write("# faster\\n")
open("stock/options/scripted.toml", "w").write({OPTION!r})
subprocess.run(["git", "add", "-A"], check=True)
subprocess.run(["git", "commit", "-qm", "a budget\\n\\nSpt-Option: budget=64"], check=True)
"""


class Tools:
    """A controller's tools, that note what they are asked."""

    def __init__(self):
        self.spent = Spent()
        self.offered, self.asked = [], []

    def offer(self, candidate):
        if candidate not in self.offered:
            self.offered.append(candidate)
        return self.offered.index(candidate)

    def measure_quick(self, number):
        self.asked.append(number)
        return {"ratio": 1.25, "same": 1.0}

    def try_patch(self, number):
        return {"passed": True, "gate": "exact", "reason": ""}

    def walk(self, policy):
        self.asked.append(policy)
        return {"policy": policy, "tau": 4.0, "nodes": 16.0}

    def ceiling(self):
        return {"tau": 2.0}

    def search_memory(self, words):
        self.asked.append(words)
        return [{"name": f"n{number}", "text": "x" * 1900} for number in range(20)]


@pytest.fixture
def base(deployment):
    commit = git(deployment, "rev-parse", "HEAD")
    return SystemOf(git(deployment, "rev-parse", "HEAD^{tree}")), commit


@pytest.fixture
def direction(base):
    return Direction("scripted-1", "explore", "scripted", "A budget", "It wins.", *base)


@pytest.fixture
def bench(deployment, tmp_path):
    """Makes an agent whose program is this Python text; `words` are its command line where it is a command."""

    def make(code, kind="scripted", wall_s=20.0):
        script = tmp_path / "script.py"
        script.write_text(code)
        word = f"scripted:{script}" if kind == "scripted" else f"command:{sys.executable} -c 'exec(open(0).read())'"
        limits = Limits(wall_s=wall_s)
        return make_agent(word, Workshop(deployment, Deployment("toy", tmp_path, "none"), "r-1", limits))

    return make


def clean(deployment):
    """Whether nothing of a clone is left."""
    return not list((deployment / ".git" / "spt" / "agents").glob("*/*")) and not is_incoming(deployment)


def test_a_patch(deployment, bench, direction):
    """A script's commits become a candidate: its own commit under the try reference, its tree, its option values."""
    tools = Tools()
    candidate = bench(FASTER).implement(direction, tools)

    assert isinstance(candidate, Candidate)
    assert candidate.system.options == {"budget": 64}
    assert candidate.note == "a budget"
    assert git(deployment, "rev-parse", "refs/spt/try/r-1/scripted-1") == candidate.commit
    assert git(deployment, "rev-parse", f"{candidate.commit}^{{tree}}") == candidate.system.tree
    assert git(deployment, "rev-parse", f"{candidate.commit}^") == direction.base_commit
    assert tools.offered == [candidate]
    assert rescued(deployment, "scripted-1") == {}
    assert clean(deployment)


def test_the_task_and_the_tools(bench, direction):
    """A script has the task's text and the tools of a model's agent; what does not fit is refused in words."""
    tools = Tools()
    code = """
import json, subprocess
task = open("/spt/task.md").read()
assert "A budget" in task and "It wins." in task and "/spt/room/tree" in task and "stock/worker.py" in task
def tool(*words):
    return json.loads(subprocess.run(["tool", *words], capture_output=True, check=True).stdout)
assert tool("offer") == {"refused": "it changed nothing"}
open("/spt/room/tree/stock/new.py", "w").write("x = 1\\n")
assert tool("offer") == {"number": 0}
assert tool("offer") == {"number": 0}
assert tool("measure_quick", "number=0") == {"ratio": 1.25, "same": 1.0}
assert tool("walk", "policy=best-first 16:7")["tau"] == 4.0
assert tool("ceiling") == {"tau": 2.0}
assert len(tool("search_memory", "words=tree budget")["found"]) == 3
for words in (["measure_quick"], ["measure_quick", "number=true"], ["measure_quick", "number=0", "path=/etc"],
              ["walk", "policy=../../x"], ["walk", "policy=$(id)"], ["search_memory", "words=" + "x" * 500],
              ["shell", "words=id"], ["try_patch", "number=0x1"]):
    assert "refused" in tool(*words), words
"""
    candidate = bench(code).implement(direction, tools)

    assert isinstance(candidate, Candidate), candidate
    assert tools.asked == [0, "best-first 16:7", "tree budget"]


def test_proposals(deployment, bench, base):
    """A script proposes with one tool, as many as are asked for; each has a name that is free."""
    code = """
import subprocess, sys
assert sys.argv[1] == "propose" and "the words of the task" in open("/spt/task.md").read()
for title in ["A tree", "A kernel", *["More"] * 14, "One too many"]:
    gain = ["predicted_gain=1.1", "low=1.02", "high=1.2"]
    told = subprocess.run(["tool", "direction", f"title={title}", "hypothesis=It wins.", *gain], capture_output=True)
    assert (b"refused" in told.stdout) == (title == "One too many")
open("/spt/room/tree/stock/new.py", "w").write("x = 1\\n")
"""
    task = Task("explore", *base, slots=2, taken=frozenset({"scripted-1"}), text="the words of the task")
    found = bench(code).propose(task)

    assert len(found) == 16
    assert [(one.id, one.title, one.slot) for one in found[:2]] == [
        ("scripted-2", "A tree", 0),
        ("scripted-3", "A kernel", 1),
    ]
    assert (found[0].predicted_gain, found[0].interval) == (1.1, (1.02, 1.2))
    assert found[0].base_commit == base[1]
    assert rescued(deployment, "") == {}
    assert clean(deployment)


def test_proposals_of_a_broken_script(bench, base):
    """A script that breaks down over its proposals is an error, in one line."""
    with pytest.raises(Unsupported, match="proposes nothing: it ended with status 1") as caught:
        bench("raise ValueError('no idea')").propose(Task("explore", *base, slots=1))

    assert caught.value.hint == "ValueError: no idea"


def test_a_revision(deployment, bench, direction):
    """A revision begins with the candidate's own commits and the gate's words, and ends as a candidate on top."""
    code = (
        FASTER.replace('"a"', '"a" if sys.argv[1] == "implement" else "w"')
        + """
if sys.argv[1] == "revise":
    assert "exact" in open("/spt/task.md").read() and "token 7" in open("/spt/task.md").read()
"""
    )
    tools = Tools()
    agent = bench(code)
    first = agent.implement(direction, tools)
    second = agent.revise(direction, Verdict("exact", False, "it differs from token 7 on"), tools)

    assert git(deployment, "rev-parse", f"{second.commit}^") == first.commit
    assert git(deployment, "show", f"{second.commit}:stock/engine.py") == "# faster"
    assert git(deployment, "rev-parse", "refs/spt/try/r-1/scripted-1") == second.commit
    assert isinstance(bench("pass").revise(direction, Verdict("exact", False, "no"), tools), Declined)


def test_nothing_done(deployment, bench, direction):
    """An agent that changes nothing gives its direction up."""
    assert bench("pass").implement(direction, Tools()) == Declined("it changed nothing")
    assert clean(deployment)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (FASTER + "sys.exit(3)", "it ended with status 3"),
        (FASTER + "print('first'); sys.exit('\x1b[31mno GPU')", "it ended with status 1: "),
        (FASTER + "raise ValueError('no idea')", "it ended with status 1: ValueError: no idea"),
        (FASTER + "import time; time.sleep(60)", "it did not end within 2 s, and was stopped"),
        (FASTER.replace("budget=64", "budget=65"), "its commits: option 'budget' cannot be '65'"),
        (FASTER.replace("budget=64", "other=64"), "its commits: no option is named 'other'"),
        (FASTER + "os.chmod('stock/engine.py', 0)", "its work cannot be taken out"),
    ],
)
def test_failures(deployment, bench, direction, code, reason):
    """What fails is named in one line, and what the agent made has a rescue reference."""
    declined = bench(code, wall_s=2).implement(direction, Tools())

    assert declined.failed
    assert declined.reason.startswith(reason)
    assert git(deployment, "log", "-1", "--format=%s", declined.rescue) in (
        "a budget",
        "what the agent left uncommitted",
    )
    assert clean(deployment)


def test_an_offer_survives_a_failure(deployment, bench, direction):
    """What an agent offered before it was stopped is its candidate; what it did afterwards is rescued."""
    code = (
        FASTER
        + """
subprocess.run(["tool", "offer"], check=True)
open("stock/engine.py", "w").write("half of something")
import time; time.sleep(60)
"""
    )
    candidate = bench(code, wall_s=3).implement(direction, Tools())
    (rescue,) = rescued(deployment, "scripted-1").values()

    assert candidate.note == "a budget"
    assert git(deployment, "rev-parse", f"{rescue}^") == candidate.commit
    assert clean(deployment)


def test_edits_outside_its_scope_are_seen(deployment, bench, direction):
    """Files beside the system are in the candidate's tree, so that the gate of scope sees them."""
    code = FASTER + "open('README.md', 'w').write('x'); os.mkdir('.spt'); open('.spt/system.yaml', 'w').write('x')"
    candidate = bench(code).implement(direction, Tools())
    names = git(deployment, "ls-tree", "--name-only", candidate.system.tree).splitlines()

    assert {"README.md", ".spt"} <= set(names)


def test_records_of_the_base(deployment, bench, direction):
    """A base commit that carries records has a system tree without them, and so has the candidate."""
    (deployment / ".spt").mkdir()
    (deployment / ".spt" / "note").write_text("a record\n")
    git(deployment, "add", "-A")
    git(deployment, "commit", "-qm", "record")
    base = SystemOf(direction.base.tree), git(deployment, "rev-parse", "HEAD")
    candidate = bench(FASTER).implement(Direction("scripted-2", "explore", "scripted", "t", "h", *base), Tools())

    assert git(deployment, "ls-tree", "--name-only", candidate.system.tree).splitlines() == ["kernels", "stock"]


def test_a_command(deployment, bench, base, tmp_path):
    """Any program edits the working tree; it finds its task, and what it leaves uncommitted is its work."""
    program = tmp_path / "coder"
    program.write_text(
        '#!/bin/sh\ntest "$1" = "$SPT_TASK" && grep -q Direction "$1" && echo "# x" >> stock/engine.py\n'
    )
    program.chmod(0o755)
    workshop = Workshop(deployment, Deployment("toy", tmp_path, "none"), "r-1", Limits(wall_s=20))
    agent = make_agent(f"command:{program} {{task}}", workshop)
    task = Task("explore", *base, slots=3, text="the task")
    (direction,) = agent.propose(task)
    candidate = agent.implement(direction, Tools())

    assert direction.id == "command-1"
    assert "coder" in direction.title
    assert agent.propose(Task("explore", *base, slots=3, taken=frozenset({"command-1"}))) == []
    assert agent.propose(Task("tune", *base, slots=3)) == []
    assert git(deployment, "diff", "--stat", base[1], candidate.commit).endswith("1 insertion(+)")


@pytest.mark.parametrize(
    ("word", "kind", "words"),
    [
        ("command:", Usage, "needs a program"),
        ("command:'", Usage, "no command line"),
        ("command:no-such-program x", Missing, "'no-such-program'"),
        ("scripted:", Usage, "needs a Python file"),
        ("scripted:no/such.py", Missing, "'no/such.py'"),
    ],
)
def test_words_that_name_no_agent(deployment, tmp_path, word, kind, words):
    """An agent that cannot be made says so before the round does anything."""
    with pytest.raises(kind, match=words):
        make_agent(word, Workshop(deployment, Deployment("toy", tmp_path, "none"), "r-1", Limits()))
