"""refresh, edit, export: entries follow stock, and people settle what cannot follow by itself."""

import shutil
from pathlib import Path

import pytest

from tests.spt.toys import (
    ENGINE,
    card,
    commit_files,
    edit_and_write_back,
    engine,
    errors_well,
    git,
    make_root,
    snapshot,
    spt,
    write,
    write_entry,
)


def move_stock(folder, files):
    """Makes a commit with some files the new stock."""
    git(folder, "switch", "-q", "--detach", "refs/spt/stock/current")
    commit = commit_files(folder, files, "stock moves")
    git(folder, "switch", "-q", "main")
    ran = spt("init", ".", "--stock", commit, cwd=folder)
    assert ran.code == 0, ran.err


def test_untouched_entries_are_carried(deployment):
    """Where stock changed other files the delta keeps its id, base and tree move, and old tips stay."""
    tips = {name: git(deployment, "rev-parse", f"entry/{name}") for name in ("fast-linear", "tuned")}
    move_stock(deployment, {"kernels/mm.py": "# moved\n"})
    ran = spt("entry", "refresh", "--all", "--json", cwd=deployment)

    assert ran.json == {"fast-linear": "carried", "tree-select": "carried", "tuned": "carried"}
    assert git(deployment, "show", "entry/tuned:kernels/mm.py") == "# moved"
    for name, tip in tips.items():
        assert git(deployment, "rev-parse", f"refs/spt/rescue/{name}/{tip[:12]}") == tip
    assert spt("entry", "verify", "--all", cwd=deployment).code == 4  # no source: the toy's entries are hand-made
    assert spt("entry", "refresh", "--all", "--json", cwd=deployment).json == dict.fromkeys(ran.json, "unchanged")


def test_an_edit_follows_a_moved_file(deployment):
    """Where stock changed other lines of a file that an entry edits, the edit is merged and verified anew."""
    move_stock(deployment, {"stock/engine.py": "first\n" + ENGINE})
    refused = spt("entry", "apply", "fast-linear", "--onto", "refs/spt/stock/current", "--tree-only", cwd=deployment)
    ran = spt("entry", "refresh", "tuned", "--json", cwd=deployment)

    assert errors_well(refused, 3, "spt entry refresh fast-linear")
    assert ran.json == {"fast-linear": "changed", "tuned": "carried"}
    assert git(deployment, "show", "entry/tuned:stock/engine.py") == ("first\n" + engine(line3="33")).strip()
    assert len(git(deployment, "for-each-ref", "refs/spt/patch/fast-linear").splitlines()) == 2


def test_a_conflict_stops_everything(deployment):
    """Where stock and an entry changed the same lines nothing is refreshed: exit 3, entry and file named."""
    move_stock(deployment, {"stock/engine.py": engine(line9="nine")})
    before = snapshot(deployment)

    assert errors_well(
        spt("entry", "refresh", "--all", cwd=deployment),
        3,
        "'tree-select'",
        "'stock/engine.py'",
        "spt entry edit tree-select",
    )
    assert snapshot(deployment) == before


def test_a_conflict_is_settled_in_an_edit(deployment):
    """`edit` opens the conflict with markers, `export` refuses them, and takes the settled files."""
    move_stock(deployment, {"stock/engine.py": engine(line9="nine")})
    opened = spt("entry", "edit", "tree-select", cwd=deployment)
    work = Path(opened.out.strip())

    assert "conflict: stock/engine.py" in opened.err
    assert "<<<<<<< " in (work / "stock/engine.py").read_text()
    assert errors_well(spt("entry", "export", "tree-select", cwd=deployment), 2, "conflict markers")
    write(work, {"stock/engine.py": engine(line9="nine + 90")})
    assert spt("entry", "export", "tree-select", cwd=deployment).code == 0
    assert git(deployment, "diff", "entry/tree-select~2", "entry/tree-select~1", "--", "stock/engine.py").splitlines()[
        -8:
    ][3:5] == [
        "-line9 = nine",
        "+line9 = nine + 90",
    ]
    assert spt("entry", "refresh", "--all", cwd=deployment).code == 0


def test_an_absorbed_entry_is_said_to_be_done(deployment):
    """Where stock holds all that an entry does, there is nothing left to carry."""
    move_stock(deployment, {"stock/engine.py": engine(line9="99"), "stock/select/best.py": "# best first\n"})

    assert errors_well(spt("entry", "refresh", "tree-select", cwd=deployment), 3, "stock holds all")


def test_edit_shows_the_entry_as_a_diff(deployment):
    """What differs from HEAD in the worktree is the entry; written back as it is, it changes nothing."""
    opened = spt("entry", "edit", "tuned", cwd=deployment)
    work = Path(opened.out.strip())

    assert git(work, "diff", "HEAD", "--name-only").split() == [
        ".spt/entries/tuned/entry.yaml",
        "checks/tuned/run.py",
        "stock/linear/w12.py",
    ]
    tip = git(deployment, "rev-parse", "entry/tuned")
    assert spt("entry", "export", "tuned", cwd=deployment).code == 0
    assert git(deployment, "rev-parse", "entry/tuned") == tip


def test_edit_twice_keeps_what_is_open(deployment):
    """An edit that is open already is not touched by opening it again."""
    work = Path(spt("entry", "edit", "tuned", cwd=deployment).out.strip())
    write(work, {"stock/linear/w12.py": "# mine\n"})
    again = spt("entry", "edit", "tuned", cwd=deployment)

    assert "is open already" in again.err
    assert (work / "stock/linear/w12.py").read_text() == "# mine\n"


def test_an_edit_changes_code_card_and_requirements(deployment):
    """What is written back is the worktree's code and card; build products stay behind; the old tip stays."""
    old = git(deployment, "rev-parse", "entry/tree-select")
    text = card("tree-select", requires=["fast-linear"], seams={"select": ["best"]})
    files = {
        "stock/select/best.py": "# better\n",
        ".spt/entries/tree-select/entry.yaml": text,
        "stock/select/__pycache__/x.pyc": "x",
    }
    assert edit_and_write_back(deployment, "tree-select", files).code == 0

    assert git(deployment, "show", "entry/tree-select:stock/select/best.py") == "# better"
    assert "Spt-Requires: fast-linear@" in git(deployment, "log", "-1", "--format=%B", "entry/tree-select")
    assert git(deployment, "show", "entry/tree-select:stock/engine.py") == engine(line3="33", line9="99").strip()
    assert git(deployment, "rev-parse", f"refs/spt/rescue/tree-select/{old[:12]}") == old
    assert spt("entry", "verify", "tree-select", cwd=deployment).code == 4


@pytest.mark.parametrize(
    ("files", "code", "word"),
    [
        ({"harness/x.py": "x\n"}, 2, "'harness/x.py'"),
        ({"stock/new.sh": "x\n"}, 2, "'stock/new.sh'"),
        ({"stock/select/second.py": "x\n"}, 2, "`seams` in entry.yaml says"),
        ({".spt/entries/tree-select/entry.yaml": "x: [\n"}, 2, "entry.yaml: line"),
        ({".spt/entries/tree-select/entry.yaml": card("renamed")}, 2, "keeps its name"),
        ({".spt/entries/tree-select/entry.yaml": card("tree-select", ["tuned", "nobody"])}, 4, "'nobody'"),
    ],
)
def test_a_bad_edit_is_refused(deployment, files, code, word):
    """What an entry may not hold is not written back; the edit stays open with its files."""
    spt("entry", "edit", "tree-select", cwd=deployment)
    before = git(deployment, "for-each-ref")
    work = deployment / ".git/spt/worktrees/tree-select"
    write(work, files)

    assert errors_well(spt("entry", "export", "tree-select", cwd=deployment), code, word)
    assert git(deployment, "for-each-ref") == before
    assert all((work / path).exists() for path in files)


def test_an_edit_on_an_old_base_is_refused(deployment):
    """When stock moves under an open edit, writing it back would mix the two."""
    spt("entry", "edit", "tuned", cwd=deployment)
    move_stock(deployment, {"kernels/mm.py": "# moved\n"})
    spt("entry", "refresh", "--all", cwd=deployment)

    assert errors_well(spt("entry", "export", "tuned", cwd=deployment), 3, "another base")
    assert errors_well(spt("entry", "edit", "tuned", cwd=deployment), 3, "another base", "`git worktree remove`")


def test_an_edit_that_was_overtaken_is_refused(deployment, tmp_path, shipped):
    """What came into an entry while it was edited is not written over, and the edit is not lost either."""
    work = Path(spt("entry", "edit", "tree-select", cwd=deployment).out.strip())
    write(work, {"stock/select/best.py": "# mine\n"})
    root = tmp_path / "other"
    shutil.copytree(shipped, root)
    write(root / "entries/tree-select/tree", {"stock/select/best.py": "# theirs\n"})
    assert spt("entry", "import", root / "entries/tree-select", cwd=deployment).code == 0
    before = snapshot(deployment)

    for verb in ("edit", "export"):
        assert errors_well(spt("entry", verb, "tree-select", cwd=deployment), 3, "began with delta")
    assert snapshot(deployment) == before
    assert (work / "stock/select/best.py").read_text() == "# mine\n"


def test_export_says_what_came_of_it(deployment, tmp_path):
    """The new delta, where the old tip is, that the edit is still open; and it may be written back again."""
    old = git(deployment, "rev-parse", "entry/tree-select")
    first = edit_and_write_back(deployment, "tree-select", {"stock/select/best.py": "# better\n"})
    second = edit_and_write_back(deployment, "tree-select", {"stock/select/best.py": "# best\n"})
    written = spt("entry", "export", "tree-select", "--to", tmp_path / "made", cwd=deployment)
    delta = git(deployment, "log", "-1", "--format=%(trailers:key=Spt-Delta,valueonly)", "entry/tree-select")

    assert f"its old tip is 'refs/spt/rescue/tree-select/{old[:12]}'" in first.err
    assert f"tree-select: delta {delta[:12]}" in second.err
    assert "the edit stays open in" in second.err
    assert (second.code, written.code) == (0, 0)
    assert (tmp_path / "made/tree-select/tree/stock/select/best.py").read_text() == "# best\n"
    assert errors_well(spt("entry", "export", "tuned", "--to", "a/b", cwd=deployment), 2, "'a/b' can be no folder")


def test_what_stock_holds_is_retired(deployment, tmp_path):
    """The way out that refresh names takes the entry out of the list, and its P stays."""
    newer = make_root(tmp_path / "newer", entries=False)
    write(newer, {"stock/select/best.py": "# best first\n", "stock/engine.py": engine(line9="99")})
    assert spt("init", deployment, "--from", newer, cwd=tmp_path).code == 0
    refused = spt("entry", "refresh", "tree-select", cwd=deployment)
    command = "git branch -m entry/tree-select retired/tree-select"
    git(deployment, *command.split()[1:])

    assert errors_well(refused, 3, "stock holds all that entry 'tree-select' does", f"`{command}`")
    assert "tree-select" not in spt("entry", "list", cwd=deployment).out
    assert git(deployment, "for-each-ref", "refs/spt/patch/tree-select") != ""


def test_export_needs_something_to_do(deployment):
    """Without an open edit or a folder there is nothing to export."""
    assert errors_well(spt("entry", "export", "tuned", cwd=deployment), 2, "--to DIR")
    assert errors_well(spt("entry", "export", "nobody", "--to", ".", cwd=deployment), 4, "'nobody'")


# The project's own checkout: entries are folders.


@pytest.fixture
def checkout(tmp_path):
    """A checkout like the project's: stock, kernels and entries in one git repository, the lock made."""
    root = make_root(tmp_path / "checkout")
    git(root, "init", "-q", "-b", "main")
    assert spt("entry", "refresh", "--all", cwd=root).code == 0
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "all")
    return root


def test_refresh_makes_the_lock(checkout, pristine):
    """The lock holds what a deployment repository of the same files has, and refreshing again changes nothing."""
    lines = (checkout / "entries/lock.jsonl").read_text().splitlines()

    assert [line.split('"name":"')[1].split('"')[0] for line in lines] == ["fast-linear", "tree-select", "tuned"]
    for line in lines:
        name = line.split('"name":"')[1].split('"')[0]
        assert git(pristine, "log", "-1", "--format=%(trailers:key=Spt-Delta,valueonly)", f"entry/{name}") in line
        assert git(pristine, "rev-parse", f"entry/{name}~1^{{tree}}") in line
    assert spt("entry", "refresh", "--all", "--json", cwd=checkout).json == dict.fromkeys(
        ["fast-linear", "tree-select", "tuned"], "unchanged"
    )
    assert git(checkout, "status", "--porcelain") == ""


def test_refresh_follows_the_working_tree(checkout, tmp_path):
    """After a change of stock, patches and lock follow, and a fresh clone makes a deployment repository of it."""
    write(checkout, {"stock/engine.py": "first\n" + ENGINE, "stock/linear/dense.py": "# moved\n"})
    stale = spt("init", tmp_path / "stale", "--from", checkout, cwd=tmp_path)
    ran = spt("entry", "refresh", "--all", "--json", cwd=checkout / "stock")

    assert errors_well(stale, 3, "was made from another 'stock/engine.py'")
    assert ran.json == {"fast-linear": "changed", "tree-select": "changed", "tuned": "carried"}
    assert git(checkout, "status", "--porcelain").split() == [
        *("M", "entries/fast-linear/edits.patch", "M", "entries/lock.jsonl", "M", "entries/tree-select/edits.patch"),
        *("M", "stock/engine.py", "M", "stock/linear/dense.py"),
    ]
    assert spt("init", tmp_path / "new", "--from", checkout, cwd=tmp_path).code == 0


def test_a_conflict_in_the_checkout_changes_no_file(checkout):
    """A conflict stops before anything is written."""
    write(checkout, {"stock/engine.py": engine(line3="three", line25="25 + 0")})
    before = snapshot(checkout)

    assert errors_well(spt("entry", "refresh", "--all", cwd=checkout), 3, "'fast-linear'", "'stock/engine.py'")
    assert snapshot(checkout) == before


def test_a_conflict_in_the_checkout_is_settled_in_an_edit(checkout, tmp_path):
    """The author of a stock change opens the entry, settles it, writes it back, and refreshes the others."""
    write(checkout, {"stock/engine.py": engine(line3="three")})
    opened = spt("entry", "edit", "fast-linear", cwd=checkout)
    work = Path(opened.out.strip())
    assert "conflict: stock/engine.py" in opened.err
    write(work, {"stock/engine.py": engine(line3="three + 30")})

    assert spt("entry", "export", "fast-linear", cwd=checkout).code == 0
    assert spt("entry", "refresh", "--all", cwd=checkout).code == 0
    assert spt("init", tmp_path / "new", "--from", checkout, cwd=tmp_path).code == 0
    assert "+line3 = three + 30" in (checkout / "entries/fast-linear/edits.patch").read_text()


def test_old_content_that_is_gone_is_missing(checkout):
    """Without the history that holds the old file there is nothing to merge from: exit 4."""
    write(checkout, {"stock/engine.py": "first\n" + ENGINE})
    git(checkout, "commit", "-qam", "moved")
    shallow = checkout.parent / "shallow"
    git(checkout.parent, "clone", "-q", "--depth=1", f"file://{checkout}", "shallow")

    assert errors_well(spt("entry", "refresh", "--all", cwd=shallow), 4, "is not here", "--unshallow")


def test_shipped_entries_can_be_read_in_a_checkout(checkout):
    """list, show and verify work on the folders as they are."""
    assert [row["name"] for row in spt("entry", "list", "--json", cwd=checkout).json] == [
        "fast-linear",
        "tree-select",
        "tuned",
    ]
    assert spt("entry", "show", "tuned", cwd=checkout).code == 0
    assert spt("entry", "verify", "--all", cwd=checkout).code == 4
    assert errors_well(spt("entry", "apply", "tuned", cwd=checkout), 2, "no stock yet")


def test_independent_edits_of_one_file_follow_together(tmp_path):
    """An entry above two that share a file is carried from their merge, which no history holds."""
    root = make_root(tmp_path / "checkout")
    both = engine(line3="33", line9="99")
    write_entry(
        root,
        "above",
        None,
        {"stock/engine.py": (both, both.replace("line20 = 20", "line20 = 2000"))},
        requires=["fast-linear", "tree-select"],
    )
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "all")
    write(root, {"stock/engine.py": "first\n" + ENGINE})

    assert spt("entry", "refresh", "--all", "--json", cwd=root).json["above"] == "changed"
    assert spt("init", tmp_path / "new", "--from", root, cwd=tmp_path).code == 0
    assert (
        git(tmp_path / "new", "show", "entry/above:stock/engine.py")
        == ("first\n" + both.replace("line20 = 20", "line20 = 2000")).strip()
    )
