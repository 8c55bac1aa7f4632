"""A round whose agent writes a patch of its own in a sandbox: what is promoted is one commit, and becomes an entry."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.spt.judged import ROOT
from tests.spt.round.test_kills import at_work
from tests.spt.round.toys import FROM, SLOW, SLOWER, START, make_round_deployment
from tests.spt.toys import git, spt

# Its first candidate edits what speaks with the judge; told so, it takes that back.
SCRIPT = """
import json, os, subprocess, sys
def tool(*words):
    return json.loads(subprocess.run(["tool", *words], capture_output=True, check=True).stdout)
if sys.argv[-1] == "propose":
    if "phase explore" in open("/spt/task.md").read():
        print(tool("direction", "title=Longer steps", "hypothesis=A step that says more is a step saved."))
    sys.exit()
os.chdir("/spt/room/tree")
if sys.argv[-1] == "implement":
    open("kernels/longer.py", "w").write("# says more a step\\n")
    open("stock/worker.py", "a").write("# mine\\n")
else:
    assert "scope" in open("/spt/task.md").read()
    subprocess.run(["git", "checkout", "-q", "HEAD~1", "--", "stock/worker.py"], check=True)
subprocess.run(["git", "add", "-A"], check=True)
subprocess.run(["git", "commit", "-qm", sys.argv[-1] + "\\n\\nSpt-Option: tau=16"], check=True)
"""


def test_a_patch_goes_through_the_gates_and_becomes_an_entry(tmp_path):
    """Declined by scope, revised, promoted: one commit in the series with its trailers, one entry that recomposes."""
    folder = make_round_deployment(tmp_path, [])
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = spt(*START, FROM, "--name", "hand", "--agent", f"scripted:{script}", "--json", cwd=folder)
    assert ran.code == 0, ran.err + ran.out
    [course] = ran.json["directions"]

    assert (course["id"], course["outcome"], course["candidates"]) == ("scripted-1", "promoted", 2)
    said = git(folder, "show", "refs/spt/round/hand:events.jsonl")
    assert "stock/worker.py" in said
    assert ran.json["best"]["options"] == {**SLOW, "tau": 16}
    code = ran.json["best"]["commit"]
    assert git(folder, "log", "-1", "--format=%s", code) == "Longer steps"
    trailers = "%(trailers:key=Spt-Round,valueonly)%(trailers:key=Spt-Direction,valueonly)"
    assert git(folder, "log", "-1", f"--format={trailers}", code).split() == ["hand", "scripted-1"]
    assert git(folder, "diff", "--name-status", f"{code}^", code) == "A\tkernels/longer.py"
    assert git(folder, "rev-parse", f"{code}^") == git(folder, "rev-parse", "refs/spt/stock/current")

    [entry] = ran.json["entries"]
    assert (entry["name"], entry["discovery"], entry["promoted"]) == ("scripted-1", True, "scripted-1")
    assert ran.json["residual"] == []
    verified = spt("entry", "verify", "scripted-1", cwd=folder)
    assert verified.code == 0, verified.out + verified.err
    reviewed = spt("round", "review", "hand", cwd=folder)
    assert "as the agent wrote it" in reviewed.out and "kernels/longer.py" in reviewed.out
    git(folder, "fsck", "--strict")


# Two ideas that touch one file in different places: each adds a line of its own and switches an option.
BOTH = """
import json, os, subprocess, sys
def tool(*words):
    return json.loads(subprocess.run(["tool", *words], capture_output=True, check=True).stdout)
task = open("/spt/task.md").read()
if sys.argv[-1] == "propose":
    if "phase explore" in task:
        for title in ("Longer steps", "Lighter steps"):
            print(tool("direction", "title=" + title, "hypothesis=It is faster."))
    sys.exit()
os.chdir("/spt/room/tree")
longer = "Longer steps" in task
lines = open("kernels/both.py").read().splitlines()
lines.insert(0 if longer else len(lines), "# longer" if longer else "# lighter")
open("kernels/both.py", "w").write("".join(line + chr(10) for line in lines))
option = "tau=4" if longer else "step_ms=1.0"
subprocess.run(["git", "commit", "-qam", "do it", "-m", "Spt-Option: " + option], check=True)
"""


@pytest.mark.full
def test_patches_that_were_written_side_by_side_are_merged(tmp_path):
    """Both start from stock; the later one is replayed on the other line by line, with its own author and trailers, and
    each becomes an entry."""
    folder = make_round_deployment(tmp_path, [], {"kernels/both.py": "".join(f"line = {n}\n" for n in range(20))})
    script = tmp_path / "script.py"
    script.write_text(BOTH)
    words = ["--name", "pair", "--agent", f"scripted:{script}", "--devices", "cpu", "--devices", "cpu", "--json"]
    ran = spt(*START, SLOWER, *words, cwd=folder)
    assert ran.code == 0, ran.err + ran.out
    found = {each["id"]: each for each in ran.json["directions"]}
    assert {found[name]["outcome"] for name in ("scripted-1", "scripted-2")} == {"promoted"}, ran.err
    assert sum(bool(each["end"].get("beside")) for each in found.values()) == 1
    [stacked] = [name for name in found if name.endswith("-stacked")]
    assert found[stacked]["outcome"] == "promoted", ran.err
    assert found["whole"]["outcome"] == "promoted", ran.err
    later = stacked.removesuffix("-stacked")  # the one that gained less, or was promoted beside the other
    first = {"scripted-1": "scripted-2", "scripted-2": "scripted-1"}[later]

    assert ran.json["best"]["options"] == {"tau": 4}
    code = ran.json["best"]["commit"]
    lines = git(folder, "show", f"{code}:kernels/both.py").splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("# longer", "# lighter", 22)
    trailers = "%(trailers:key=Spt-Direction,valueonly,separator=%x2C)"
    log = git(folder, "log", "--reverse", f"--format={trailers}", f"refs/spt/stock/current..{code}")
    assert log.split() == [first, later]
    assert [(each["name"], each["discovery"]) for each in ran.json["entries"]] == [(first, True), (later, True)]
    assert ran.json["residual"] == []
    for name in (first, later):
        assert spt("entry", "verify", name, cwd=folder).code == 0
    git(folder, "fsck", "--strict")


SLEEPING = """
import json, subprocess, sys, time
if sys.argv[-1] == "propose":
    for title in ("One", "Two"):
        subprocess.run(["tool", "direction", "title=" + title, "hypothesis=h"], check=True)
    sys.exit()
print(subprocess.run(["tool", "ceiling"], capture_output=True, text=True).stdout)
time.sleep(600)
"""


def test_an_interrupt_ends_agents_that_work_side_by_side(tmp_path):
    """Their sandboxes end at once, and their directions are as they were: neither failed nor declined."""
    folder = make_round_deployment(tmp_path, [])
    script = tmp_path / "script.py"
    script.write_text(SLEEPING)
    words = ["--name", "cut", "--agents", "2", "--agent", f"scripted:{script}"]
    command = [sys.executable, "-m", "spt", *START, FROM, *words]
    with subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}) as child:
        until_s = time.monotonic() + 60
        while len(list((folder / ".git/spt/agents/cut").glob("*/session-*"))) < 2 and time.monotonic() < until_s:
            time.sleep(0.1)
        time.sleep(1.0)  # for both to be asleep
        begun_s = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert time.monotonic() - begun_s < 15
    until_s = time.monotonic() + 20
    while at_work(folder) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert at_work(folder) == []
    status = spt("round", "status", "cut", "--json", cwd=folder)
    assert [(each["id"], each["outcome"]) for each in status.json["directions"]] == [
        ("scripted-1", None),
        ("scripted-2", None),
    ]
