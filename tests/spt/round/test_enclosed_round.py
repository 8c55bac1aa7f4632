"""Rounds on the fake engine whose agent works in a sandbox: one that writes a patch, and one that tries to cheat."""

import json

import pytest

from tests.spt.round.toys import FROM, START
from tests.spt.toys import git, spt

PATCH = r"""
import json, os, subprocess, sys
def tool(*words):
    return json.loads(subprocess.run(["tool", *words], capture_output=True, check=True).stdout)
os.chdir("/spt/room/tree")
if sys.argv[1] == "propose":
    if "phase explore" in open("/spt/task.md").read():
        tool("direction", "title=Longer steps", "hypothesis=More tokens a step.", "predicted_gain=2")
if sys.argv[1] != "implement":
    sys.exit()
os.makedirs("checks/longer")
open("checks/longer/run.py", "w").write("pass\n")
open("kernels/longer.py", "w").write("# more of them\n")
subprocess.run(["git", "add", "-A"], check=True)
subprocess.run(["git", "commit", "-qm", "longer: more tokens a step\n\nSpt-Option: tau=16"], check=True)
number = tool("offer")["number"]
assert tool("try_patch", f"number={number}")["passed"] is True
assert tool("measure_quick", f"number={number}")["tau"] > 4
"""
# Each cheat is a direction of its own; what it does to the tree, and the gate that says no.
CHEATS = {
    "judge": ("os.makedirs('harness'); open('harness/clock.py', 'w').write('x = 1\\n')", "scope"),
    "worker": ("open('stock/worker.py', 'a').write('# faster\\n')", "scope"),
    "link": ("os.symlink('/etc/passwd', 'stock/link.py')", "scope"),
    "submodule": ("sh('git init -q stock/sub; git -C stock/sub commit -qm x --allow-empty')", "scope"),
    "startup": ("open('stock/sitecustomize.py', 'w').write('x = 1\\n')", "scope"),
    "attributes": ("open('kernels/.gitattributes', 'w').write('* filter=x\\n')", "scope"),
    "answers": ("open('stock/table.py', 'w').write('T = ' + repr(list(range(20000))))", "scope"),
    "records": ("os.makedirs('.spt'); open('.spt/system.yaml', 'w').write('x')", "scope"),
    "undeclared": ("option('nothing=1')", "agent"),
    "other-tokens": ("open('kernels/x.py', 'w').write('# x\\n'); option('mismatch=0.5')", "exact"),
    "never-stops": ("import time; time.sleep(600)", None),
    "forks": ("while True: fork()", None),
}
CHEAT = r"""
import json, os, subprocess, sys
def sh(text):
    subprocess.run(["sh", "-c", text], check=True)
def option(text):
    open("/spt/room/options", "a").write(text + "\n")
def fork():
    try:
        os.fork()
    except OSError:
        pass
os.chdir("/spt/room/tree")
task = open("/spt/task.md").read()
cheats = json.loads(%r)
if sys.argv[1] == "propose":
    for name in cheats if "phase explore" in task else ():
        sh(f"tool direction title={name} hypothesis=x > /dev/null")
elif sys.argv[1] == "implement":
    exec(cheats[task.split("): ")[1].split("\n")[0]])
"""


@pytest.fixture
def begin(repository, tmp_path):
    """Runs a whole round with a scripted agent of this Python text."""

    def run(code, *more):
        (tmp_path / "script.py").write_text(code)
        words = ("--agent", f"scripted:{tmp_path / 'script.py'}", "--name", "one", "--json", *more)
        ran = spt(*START, FROM, *words, cwd=repository)
        assert ran.out, ran.err
        return ran

    return run


def test_an_agent_that_writes_a_patch(repository, begin):
    """Its commit goes through every gate, is promoted, and stands in the system's branch as one commit of its own."""
    ran = begin(PATCH)
    (found,) = ran.json["directions"]

    assert found["outcome"] == "promoted", ran.err
    assert ran.json["outcome"] == "promoted"
    assert ran.json["best"]["options"]["tau"] == 16
    files = git(
        repository, "diff", "--name-only", "refs/spt/stock/current", "system/toy/1", "--", "stock", "kernels", "checks"
    )
    assert files.splitlines() == ["checks/longer/run.py", "kernels/longer.py"]
    assert git(repository, "log", "-1", "--format=%s", "refs/spt/try/one/scripted-1") == "longer: more tokens a step"
    assert not list((repository / ".git" / "spt" / "agents").glob("*/*"))
    assert git(repository, "for-each-ref", "refs/spt/incoming") == ""


def test_an_agent_that_cheats(repository, begin):
    """A dozen cheats end named, each at its gate or as failed, with nothing promoted and what was made kept."""
    code = CHEAT % json.dumps({name: how for name, (how, _) in CHEATS.items()})
    ran = begin(code, "--agent-minutes", "0.05", "--devices", "cpu")
    found = {each["title"]: each for each in ran.json["directions"]}

    assert set(found) == set(CHEATS), ran.err
    assert ran.json["outcome"] == "nothing promoted"
    for name, (_, gate) in CHEATS.items():
        end = found[name]["end"]
        assert found[name]["outcome"] == ("failed" if gate in (None, "agent") else "declined"), (name, end)
        assert gate in (None, "agent", end.get("gate")), (name, end)
        assert end["reason"] and "\n" not in end["reason"]
    assert "did not end within 3 s" in found["never-stops"]["end"]["reason"]
    assert not list((repository / ".git" / "spt" / "agents").glob("*/*"))
    assert git(repository, "status", "--porcelain") == ""
