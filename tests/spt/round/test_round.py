"""`spt round` from start to end on the fake engine: what is promoted, what is not, and what is left behind."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from spt.deployment import read
from spt.errors import Usage
from spt.git.store import Store
from spt.memory import Memory
from spt.record import line_of
from spt.round.journal import PHASES, Journal
from spt.round.settings import Settings
from spt.round.tools import search
from spt.round.working import state_of
from spt.verdicts import Ledger
from tests.spt.round.toys import FROM, PAIRED, START, copied, make_round_deployment
from tests.spt.toys import errors_well, git, snapshot, spt


def outcomes(found):
    return {each["id"]: (each["outcome"], each["end"].get("gate")) for each in found["directions"]}


def test_what_is_faster_is_promoted_and_nothing_else(ended):
    """Of a canary, an entry without effect, one that breaks its contract and one that says other tokens, the canary."""
    _, ran = ended
    assert ran.code == 0, ran.err
    found = outcomes(ran.json)

    assert found["memory-canary"] == ("promoted", None)
    assert found["memory-noop"][0] == "declined" and found["memory-noop"][1] in ("predicted", "confirm")
    assert found["memory-unchecked"] == ("declined", "checks")
    assert found["memory-wrong"] == ("declined", "exact")
    assert found["sweep-explore"] == ("promoted", None)  # fewer steps, before the canary came on top
    assert found["whole"] == ("promoted", None)
    assert ran.json["outcome"] == "promoted"
    assert list(ran.json["phases"]) == list(PHASES)
    assert set(ran.json["phases"].values()) <= {"done", "skipped"}


def test_every_line_of_a_demo_says_so(ended):
    """The rule is named with every promotion; figures are raw ratios with noise beside; its final is a smoke."""
    folder, ran = ended
    promoted = [each for each in ran.json["directions"] if each["outcome"] == "promoted"]
    for each in promoted:
        assert (each["end"]["kind"], each["end"]["rule"]) == ("raw ratio", "demo")
        assert each["end"]["noise"] is not None
    lines = [line for line in ran.err.splitlines() if " promoted, " in line or ": confirm: " in line]
    assert lines and all("rule demo" in line for line in lines)
    assert "speedup" not in ran.err
    assert ran.json["final"]["verdict"] == "smoke"
    assert ran.json["final"]["against_stock"]["gain"] > 1
    assert all(held.verdict["rule"] == "demo" for held in Ledger.find(folder).all())


def test_a_round_leaves_a_branch_of_commits_one_mechanism_each(ended):
    """Stock, a commit an entry with its trailers, and a record of tree, options and deployment on top."""
    folder, ran = ended
    [deployment] = [ran.json["deployment"]]
    assert deployment["branch"] == "system/toy/1"
    log = git(
        folder, "log", "--reverse", "--format=%s|%(trailers:key=Spt-Entry,valueonly,separator=%x2C)", "system/toy/1"
    )
    _, canary, record = log.splitlines()
    assert canary == "canary: do it|canary"
    assert record.startswith("system/toy/1: smoke in the final of round one")
    assert ran.json["final"]["key"] in git(folder, "log", "-1", "--format=%B", "system/toy/1")
    assert git(folder, "rev-parse", "system/toy/1^") == ran.json["best"]["commit"]
    assert git(folder, "rev-parse", f"{ran.json['best']['reference']}^") == ran.json["best"]["commit"]
    assert "tau: 16" in git(folder, "show", "system/toy/1:.spt/system.yaml")
    git(folder, "fsck", "--strict")
    assert git(folder, "status", "--porcelain") == ""


def test_the_deployment_that_is_written_runs_the_system(ended):
    """`deployment.yaml` names branch and options, and reads the same from any folder."""
    folder, ran = ended
    found = read(Path(ran.json["deployment"]["path"]))
    assert found.system == "system/toy/1"
    assert found.options == {name: str(value) for name, value in ran.json["best"]["options"].items()}
    assert found.digest() == ran.json["begun"]["digest"]
    exported = spt("export", found.system, folder.parent / "out", cwd=folder)
    assert exported.code == 0, exported.err


def test_an_entry_that_was_reused_is_no_discovery(ended):
    """The memory keeps what was used; a verdict of the rule `demo` is no evidence, and nothing is residual."""
    folder, ran = ended
    [entry] = ran.json["entries"]
    assert (entry["name"], entry["discovery"], entry["evidence"]) == ("canary", False, None)
    assert ran.json["residual"] == []
    key = next(each["end"]["timing"] for each in ran.json["directions"] if each["outcome"] == "promoted")
    with pytest.raises(Usage, match="is of the rule 'demo'"):
        line_of(Memory.open(folder), Ledger.find(folder), read(folder / "deployment.yaml"), "canary", key)


def test_the_journal_is_append_only_and_all_there_is(ended):
    """One commit an event, one parent each, and the state is a fold of the events alone."""
    folder, ran = ended
    reference = "refs/spt/round/one"
    counts = git(folder, "rev-list", "--parents", reference).splitlines()
    assert len(counts) == ran.json["events"]
    assert all(len(line.split()) == 2 for line in counts[:-1])
    newest = git(folder, "show", f"{reference}:events.jsonl").splitlines()
    for back in (1, 10):
        assert git(folder, "show", f"{reference}~{back}:events.jsonl").splitlines() == newest[:-back]
    assert git(folder, "log", "-1", "--format=%(trailers:key=Spt-Seq,valueonly)", reference) == str(len(newest) - 1)
    status = spt("round", "status", "one", "--json", cwd=folder)
    assert {key: value for key, value in status.json.items() if key != "at_work"} == ran.json


def test_what_a_round_did_can_be_read(ended):
    """`list`, `status`, `watch` and `review` say it in words; an ended round is not worked on again."""
    folder, ran = ended
    assert "one" in spt("round", "list", cwd=folder).out
    shown = spt("round", "status", cwd=folder)
    assert "final: smoke" in shown.out
    directions = {each["id"] for each in spt("round", "status", "--json", cwd=folder).json["directions"]}
    assert "memory-canary" in directions
    assert all(part in shown.out for part in ("memory", "canary"))  # a narrow terminal may fold a name
    watched = spt("round", "watch", "one", cwd=folder)
    assert len(watched.out.splitlines()) == ran.json["events"]
    assert "gate memory-wrong: exact, no, the answer to" in watched.out
    assert "gate memory-canary: exact, passes, ids are" in watched.out
    reviewed = spt("round", "review", "one", cwd=folder)
    assert "canary: do it" in reviewed.out and "confirm: passes" in reviewed.out
    again = spt("round", "resume", "one", "--json", cwd=folder)
    assert (again.code, again.json) == (0, ran.json)


def test_a_review_is_the_same_for_every_user(ended, tmp_path):
    """Colours, signatures and formats that a user set for `git log` change nothing of it."""
    folder = copied(ended[0], tmp_path / "deployment")
    before = spt("round", "review", "one", cwd=folder).out
    for name, value in (("color.ui", "always"), ("format.pretty", "oneline"), ("log.decorate", "full")):
        git(folder, "config", name, value)
    assert spt("round", "review", "one", cwd=folder).out == before
    assert "x1b" not in before


def test_the_next_round_starts_from_the_system_of_the_last(ended, tmp_path):
    """It needs no word for that; entries that are in the system are not proposed again."""
    folder = copied(ended[0], tmp_path / "deployment")
    ran = spt(*START, "--agent", "memory", "--max-minutes", "0.0001", cwd=folder)
    assert (ran.code, "the time is up" in ran.err) == (1, True)
    journal = Journal.open(Store.find(folder), "toy-1")
    state = state_of(journal)
    assert state.begun["start"]["tree"] == ended[1].json["best"]["tree"]
    assert state.begun["start"]["options"] == ended[1].json["best"]["options"]
    assert state.stopped == "the time is up"
    ran = spt("round", "resume", "--json", cwd=folder)
    assert "memory-canary" not in outcomes(ran.json)
    assert (ran.code, ran.json["outcome"]) == (1, "nothing promoted")


BAD = [
    (["--max-minutes", "0"], 2, "--max-minutes 0: no round"),
    (["--explore-minutes", "-1"], 2, "--explore-minutes -1"),
    (["--usd", "nan"], 2, "--usd nan is no number of dollars"),
    (["--usd", "inf"], 2, "--usd inf is no number of dollars"),
    (["--directions", "99999999999999999999"], 2, "'--directions'"),
    (["--tries", "99999999999999999999"], 2, "'--tries'"),
    (["--turns", "99999999999999999999"], 2, "'--turns'"),
    (["--agent", "nobody"], 2, "no agent is called 'nobody'"),
    (["--agent", "memory:nothing"], 4, "there is no entry 'nothing'"),
    (["--rule", "mine"], 2, "--rule 'mine'"),
    (["--name", "NO"], 2, "'NO' cannot be a name"),
    (["--deployment", "none.yaml"], 4, "'none.yaml'"),
    (["nothing-so"], 4, "nothing-so"),
]


@pytest.mark.parametrize(("words", "code", "said"), BAD)
def test_a_wrong_word_changes_nothing(repository, words, code, said):
    """It is named in one line before anything is written."""
    before = snapshot(repository)
    assert errors_well(spt(*START, *words, cwd=repository), code, said)
    assert snapshot(repository) == before


@pytest.mark.parametrize(
    ("words", "changes", "code", "said"),
    [
        (PAIRED, {}, 2, "context of 512 is too small for the final, which needs 5120"),
        (START, {"load": {"concurrency": "2"}}, 5, "one at a time, not 2 at once"),
    ],
)
def test_what_no_timing_or_final_takes_is_said_before_anything(repository, words, changes, code, said):
    """A deployment cannot be mended within a round, so that it is held against the last steps first."""
    file = repository / "deployment.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    before = snapshot(repository)
    assert errors_well(spt(*words, "stock", cwd=repository), code, said)
    assert snapshot(repository) == before


def test_a_round_on_named_devices_is_of_these(repository):
    """What an entry wants of a device, and the deployment that a round leaves, are held against them, not the file."""
    spt(*START, "--name", "one", "--devices", "cuda:1", "--max-minutes", "1e-6", cwd=repository)
    settings = Settings.of(Journal(Store.find(repository), "one").settings())
    assert (settings.parsed().device, settings.slots) == ("cuda:1", (("cuda:1",),))


def test_an_entry_that_is_named_and_does_not_fit_is_told_of(tmp_path):
    """It is declined in words; among all entries it is no direction."""
    folder = make_round_deployment(tmp_path, [("gpu-only", {"tau": "4"}, {"device": ["sm_90"]})])
    named = spt(*START, FROM, "--name", "one", "--agent", "memory:gpu-only", "--json", cwd=folder).json
    [direction] = named["directions"]
    assert (direction["outcome"], direction["end"]["reason"]) == ("declined", "it does not fit: it wants sm_90")
    assert not spt(*START, FROM, "--name", "two", "--agent", "memory", "--json", cwd=folder).json["directions"]


def test_a_round_without_a_drafter_needs_no_cost_model(repository):
    """Where nothing can be measured the error names the flag that goes without."""
    words = [word for word in START if word != "--no-cost-model"]
    ran = spt(*words, cwd=repository)
    assert errors_well(ran, 4, "no drafter")
    assert "--no-cost-model" in ran.err


def test_a_round_needs_a_repository_and_a_round(repository, tmp_path):
    """Outside of one, and where no round is, the error says what makes one."""
    assert errors_well(spt("round", "status", cwd=repository), 4, "there is no round here")
    assert errors_well(spt("round", "resume", "gone", cwd=repository), 4, "no round is called 'gone'")
    (tmp_path / "nowhere").mkdir()
    assert errors_well(spt("round", "list", cwd=tmp_path / "nowhere"), 2, "git repository")


def test_a_start_beside_another_is_told_of_the_round(repository, monkeypatch):
    """Of two that begin at once one begins; the other hears of the round that is there, not of the seal that it has."""
    from spt.round import start

    make_seal, begin = start.make_seal, start._begin

    def beaten(*words):
        make_seal(*words)
        return make_seal(*words)

    def late(*words):
        begin(*words)
        return begin(*words)

    monkeypatch.setattr(start, "make_seal", beaten)
    monkeypatch.setattr(start, "_begin", late)
    words = [*START, "--agent", "memory:canary", "--max-minutes", "0.0001"]
    assert errors_well(spt(*words, cwd=repository), 2, "there is a round 'toy-1' already")
    assert errors_well(spt(*words, "--name", "x.used", cwd=repository), 2, "'x.used' cannot be a name")


def test_a_dirty_repository_is_named(repository):
    """A round from HEAD is one of what is committed."""
    (repository / "stock/engine.py").write_text("# changed\n")
    before = snapshot(repository)
    assert errors_well(spt(*START, "HEAD", cwd=repository), 2, "'stock/engine.py' is not committed")
    assert snapshot(repository) == before


def test_a_system_beside_other_files_outlives_a_gc(repository):
    """A repository has more than a system in it: the trees of a round are kept though no commit is them."""
    (repository / "README.md").write_text("what this is for\n")
    (repository / "kernels/own.py").write_text("own = 1\n")
    git(repository, "add", "README.md", "kernels/own.py")
    git(repository, "commit", "-qm", "mine")
    words = ["HEAD@slow.yaml", "--name", "own", "--agent", "memory:canary"]
    stopped = spt(*START, *words, "--max-minutes", "0.05", cwd=repository)
    assert (stopped.code, "the time is up" in stopped.err) == (1, True), stopped.err
    git(repository, "gc", "-q", "--prune=now")
    ran = spt("round", "resume", "own", "--json", cwd=repository)
    assert ran.code == 0, ran.err
    assert outcomes(ran.json) == {"memory-canary": ("promoted", None)}
    files = git(repository, "ls-tree", "-r", "--name-only", "system/toy/1").splitlines()
    assert {"README.md", "kernels/own.py", "kernels/canary.py"} <= set(files)
    assert git(repository, "fsck", "--strict", "--no-dangling") == ""


def test_settings_survive_the_journal(ended):
    """What a round was started with is what whoever resumes it reads."""
    from spt.round.settings import Settings

    settings = Journal.open(Store.find(ended[0]), "one").settings()
    assert Settings.of(settings).record() == settings
    assert json.loads(git(ended[0], "show", "refs/spt/round/one:round.yaml")) == settings


def test_settings_that_are_not_whole_are_refused():
    """Those of a damaged journal, or of another version, are an error of one line."""
    from spt.round.settings import Settings

    for record in ({}, {"start": {"tree": "a" * 40, "options": {}}}, {"start": None}):
        with pytest.raises(Usage, match="the settings of a round are damaged"):
            Settings.of(record)


def test_a_damaged_round_does_not_hide_the_others(ended, tmp_path):
    """Where one journal cannot be read it is named and left out: others are listed, found without a name, searched."""
    folder = copied(ended[0], tmp_path / "d")
    git(folder, "update-ref", "refs/spt/round/broken", "main")
    for words in (["list"], ["status"], ["watch", "--once"], ["review"]):
        ran = spt("round", *words, cwd=folder)
        assert (ran.code, "one" in ran.out or "sweep" in ran.out) == (0, True), ran.err
        assert "a round is left out: refs/spt/round/broken" in ran.err
    found = search(SimpleNamespace(store=Store.find(folder)), "the contract is broken")
    assert "one/memory-unchecked" in [each["name"] for each in found]
    assert errors_well(spt("round", "status", "broken", cwd=folder), 2, "refs/spt/round/broken")
    git(folder, "update-ref", "-d", "refs/spt/round/one")
    assert errors_well(spt("round", "status", cwd=folder), 2, "refs/spt/round/broken")
