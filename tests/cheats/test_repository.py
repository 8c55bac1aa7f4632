"""Files where none belong, git as a weapon, luck by repetition, and words that steer who reads them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from harness.errors import Refused, Usage
from harness.promotion import decide, next_step
from harness.tree import tree_id
from harness.units import Reading
from harness.verdict import key_of, timing_verdict
from spt.errors import SptError
from spt.git.incoming import fetched
from spt.git.objects import FILE, GITLINK, LINK, Objects, State
from spt.git.tree import splice
from spt.system import SHIPPED, export, layout_of, system_tree
from tests.cheats import catalogue, system
from tests.harness.campaigns import folded, timed_campaign, void, write
from tests.stock.talk import Worker, generate, load

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
PERSON = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def committed(files):
    """The objects of a commit's tree that holds these files, and its id."""
    objects = Objects()
    return objects, splice(
        objects, None, {path: State(FILE, objects.add_blob(text.encode())) for path, text in files.items()}
    )


# --- files where none belong ---


@pytest.mark.parametrize("name", ["harness_edit", "start_up_files"])
def test_files_beside_the_system(files, name):
    """What a patch puts beside the system's folders is not part of the system: it is stock, and so is its verdict."""
    objects, plain = committed(files)
    _, changed = both = committed(getattr(catalogue, name)(files))

    assert changed != plain
    assert layout_of(objects, plain) == SHIPPED
    assert system_tree(both[0], changed, SHIPPED) == plain


def test_harness_of_the_candidate(cheating, tmp_path):
    """A judge that is started where the candidate lies says what the candidate wants; ours comes from elsewhere."""
    folder = cheating(catalogue.harness_edit)
    samples = write(tmp_path / "samples.jsonl", timed_campaign(screen=5))

    def judged(*switches):
        command = [sys.executable, *switches, "-m", "harness", "verdict", str(samples)]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(system.ROOT)}
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        return json.loads(ran.stdout)

    assert judged()["answer"] == "promote"
    assert judged("-P", "-s")["answer"] == "decline"


def test_start_up_files_run_in_the_engine_alone(cheating, runner, tmp_path):
    """A judge with the candidate on its path has its clock patched as it starts; ours shares no process with it."""
    folder = cheating(catalogue.start_up_files)
    told = "import sys; print(getattr(sys, 'cheated', False))"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    naive = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    assert naive.stdout == "True\n"

    with runner.enclosed(folder) as engine:
        engine.generate(system.generate([5, 6, 7], "a", 4))
    assert not hasattr(sys, "cheated")


# --- git ---


def run_git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, env=GIT | PERSON, capture_output=True, text=True, check=True)


def test_link(files, tmp_path):
    """A checkout follows a link out of the tree; the judge takes no link."""
    sealed = tmp_path / "sealed.jsonl"
    sealed.write_text("sealed\n")
    objects, plain = committed(files)
    link = State(LINK, objects.add_blob(os.fsencode(sealed)))
    linked = splice(objects, plain, {"stock/cache.md": link})
    export(objects, linked, tmp_path / "linked")
    assert (tmp_path / "linked" / "stock" / "cache.md").read_text() == "sealed\n"
    with pytest.raises(Usage, match="neither a plain file nor a folder"):
        tree_id(tmp_path / "linked")


def test_submodule(files, tmp_path):
    """A checkout with submodules fetches code that no tree of ours holds; ours names it and writes nothing."""
    hidden, work = tmp_path / "hidden", tmp_path / "work"
    for folder in (hidden, work):
        folder.mkdir()
        (folder / "fast.py").write_text("answers = {}\n")
        run_git(folder, "init", "-q", "-b", "main")
        run_git(folder, "add", ".")
        run_git(folder, "commit", "-qm", "work")
    run_git(work, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(hidden), "stock/module")
    run_git(work, "commit", "-qm", "a submodule")
    words = ("-c", "protocol.file.allow=always", "clone", "-q", "--recurse-submodules", str(work), "naive")
    run_git(tmp_path, *words)
    assert (tmp_path / "naive/stock/module/fast.py").read_text() == "answers = {}\n"
    assert "fast.py" not in run_git(work, "ls-tree", "-r", "--name-only", "HEAD", "stock").stdout

    objects, plain = committed(files)
    commit = run_git(hidden, "rev-parse", "HEAD").stdout.strip()
    with pytest.raises(SptError, match="'stock/module' is a submodule"):
        export(objects, splice(objects, plain, {"stock/module": State(GITLINK, commit)}), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_replaced_git(tmp_path):
    """`git status` in an agent's folder runs what its `.git` says; work that is fetched runs nothing."""
    folder, marker = tmp_path / "agent", tmp_path / "ran"
    (folder / "stock").mkdir(parents=True)
    (folder / "stock" / "worker.py").write_text("x = 1\n")

    run_git(folder, "init", "-q", "-b", "work")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-qm", "work")
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {marker}\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "diff.external", "uploadpack.packObjectsHook", "core.editor"):
        run_git(folder, "config", key, str(trap))
    for hook in ("post-checkout", "pre-auto-gc", "reference-transaction", "post-index-change", "fsmonitor-watchman"):
        (folder / ".git" / "hooks").mkdir(exist_ok=True)
        (folder / ".git" / "hooks" / hook).symlink_to(trap)

    run_git(folder, "status")
    assert marker.exists()
    marker.unlink()
    with fetched(str(folder), ["refs/heads/*"]) as store:
        assert store.reference("refs/heads/work") is not None
    assert not marker.exists()


# --- luck ---


def test_nothing_resubmitted_fifty_times():
    """Fifty tries of nothing pass a bound above 0 more than once; ours is the old verdict, and no try ever passes."""
    dice = np.random.default_rng(8)
    calibrate = dice.normal(0, 0.003, 8)
    lucky = promoted = 0
    for _ in range(50):
        values = dice.normal(0, 0.003, 25)
        lucky += values[:5].mean() > 2.132 * values[:5].std(ddof=1) / 5**0.5  # Student's, one-sided 95 %, 4 degrees
        units = [Reading(value) for value in values]
        outcome = decide(calibrate, units[:5], units[5:])
        promoted += outcome == "confirm" or outcome.answer == "promote"
    assert lucky >= 1
    assert promoted == 0

    verdicts = [timing_verdict(folded(timed_campaign(screen=5, seed=seed))) for seed in range(2)]
    assert verdicts[0]["key"] == verdicts[1]["key"]
    assert verdicts[0]["answer"] == "decline"
    other = folded(timed_campaign(screen=5))
    other.campaign["arms"]["a"]["tree"] = "d" * 40
    assert key_of(other) != verdicts[0]["key"]


# --- words ---


def test_log_injection(cheating, runner, models):
    """Who reads figures from the log reads the engine's own; ours reads none, and quotes it on one plain line."""
    folder = cheating(catalogue.shouting)
    with Worker(system=folder) as naive:
        naive.ask(load(*models, mode="fast"))
        naive.ask(generate(max_tokens=4))
        naive.close_input()
        _, log, _ = naive.wait()
    assert b"verdict: promote" in log.splitlines()

    with runner.enclosed(folder) as engine:
        answer = engine.generate(system.generate([5, 6, 7], "a", 8))
        with pytest.raises(Refused) as caught:
            engine.generate(system.generate([5, 6, 7], "b", 13))

    assert answer.done_ns > answer.written_ns
    assert caught.value.message.isprintable()
    assert "\x1b" in str(caught.value)  # as it came

    lines = [*timed_campaign(), void("screen", 0, arm="a", cause="violation", reason=str(caught.value))]
    outcome = next_step(folded(lines))
    assert outcome.answer == "decline"
    assert outcome.reason.isprintable()
    assert len(outcome.reason) < 260
