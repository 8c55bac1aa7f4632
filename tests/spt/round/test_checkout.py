"""`spt round checkout`: linked worktrees for people, on a round's best, its candidates and what was rescued."""

from pathlib import Path

import pytest

from spt.git.store import Store
from spt.round.journal import Journal
from tests.spt.toys import commit_files, errors_well, git, snapshot, spt

LIMITS = {"wall_s": None, "turns": None, "usd": None, "tries": 16}


@pytest.fixture
def works(deployment):
    """A round with a best, a direction that is tried and one of which two works were rescued; commits by name."""
    store = Store.find(deployment)
    begun = {
        "deployment": "toy",
        "digest": "0" * 64,
        "stock": git(deployment, "rev-parse", "HEAD^{tree}"),
        "start": {"tree": git(deployment, "rev-parse", "HEAD^{tree}"), "options": {}},
        "commitment": None,
        "agents": ["scripted"],
        "limits": LIMITS,
        "modes": {"cost_model": False, "agents": 1},
    }
    Journal(store, "toy-1").begin({}, begun, {})
    git(deployment, "switch", "-q", "-c", "side")
    made = {name: commit_files(deployment, {f"stock/{name}.py": "x = 1\n"}) for name in ("best", "tried", "one", "two")}
    git(deployment, "switch", "-q", "main")
    git(deployment, "branch", "-q", "-D", "side")
    git(deployment, "update-ref", "refs/spt/best/toy-1", made["best"])
    git(deployment, "update-ref", "refs/spt/try/toy-1/scripted-1", made["tried"])
    for name in ("one", "two"):
        git(deployment, "update-ref", f"refs/spt/rescue/toy-1/scripted-2/{made[name][:12]}", made[name])
    git(deployment, "update-ref", f"refs/spt/rescue/toy-1/scripted-3/{made['one'][:12]}", made["one"])
    return made


@pytest.mark.parametrize(
    ("words", "name"), [(["toy-1"], "best"), (["toy-1", "scripted-1"], "tried"), (["toy-1", "scripted-3"], "one")]
)
def test_a_worktree(deployment, works, words, name):
    """The worktree has the files of what was asked for, HEAD detached there; again it is the same one."""
    ran = spt("round", "checkout", *words, cwd=deployment)
    folder = Path(ran.out.strip())

    assert ran.code == 0, ran.err
    assert git(folder, "rev-parse", "HEAD") == works[name]
    assert (folder / f"stock/{name}.py").read_text() == "x = 1\n"
    assert git(folder, "status", "--porcelain") == ""
    assert spt("round", "checkout", *words, cwd=deployment).out == ran.out
    assert git(deployment, "status", "--porcelain") == ""
    git(deployment, "worktree", "remove", folder)


def test_a_folder_of_ones_own(deployment, works, tmp_path):
    """--dir names the place, and --json says what there is."""
    told = spt("round", "checkout", "toy-1", "--dir", tmp_path / "w", "--json", cwd=deployment).json

    assert told == {"folder": str(tmp_path / "w"), "commit": works["best"], "reference": "refs/spt/best/toy-1"}
    assert git(tmp_path / "w", "rev-parse", "HEAD") == works["best"]


def test_work_in_it_is_never_touched(deployment, works):
    """A worktree with changes, or on another commit than the best of now, is left as it is, with a way out."""
    folder = Path(spt("round", "checkout", "toy-1", cwd=deployment).out.strip())
    (folder / "stock/best.py").write_text("mine\n")
    assert errors_well(spt("round", "checkout", "toy-1", cwd=deployment), 2, "stock/best.py")

    git(deployment, "update-ref", "refs/spt/best/toy-1", works["tried"])
    assert errors_well(spt("round", "checkout", "toy-1", cwd=deployment), 2, "another commit", "git worktree remove")
    assert (folder / "stock/best.py").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["toy-9"], 4, "'toy-9'"),
        (["toy-1", "nothing"], 4, "there are: scripted-1"),
        (["toy-1", "scripted-2"], 2, "2 rescued works"),
        (["toy-1", "--dir", "stock"], 2, "is not empty"),
        (["toy-1", "--dir", "no/such"], 2, "does not exist"),
    ],
)
def test_bad_input(deployment, works, words, code, said):
    """What is not there or in the way is named, and changes nothing."""
    before = snapshot(deployment)

    assert errors_well(spt("round", "checkout", *words, cwd=deployment), code, said)
    assert snapshot(deployment) == before


def test_before_anything_was_promoted(deployment, works):
    """A round without a best says so."""
    git(deployment, "update-ref", "-d", "refs/spt/best/toy-1")

    assert errors_well(spt("round", "checkout", "toy-1", cwd=deployment), 4, "has no best yet")
