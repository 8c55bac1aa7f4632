"""spt entry apply: exactly, in order, or not at all; and the user's work is never touched."""

import os
import shutil

import pytest

from tests.spt.toys import (
    ENGINE,
    INT_OPTION,
    card,
    commit_files,
    engine,
    errors_well,
    git,
    make_root,
    snapshot,
    spt,
    write,
    write_entry,
)


def head(folder, revision="HEAD"):
    return git(folder, "rev-parse", revision)


def test_requirements_come_first_one_commit_each(deployment):
    """Applying commits the closure in composition order, with the entry's author, message and trailers."""
    ran = spt("entry", "apply", "tuned", "tree-select", cwd=deployment)

    assert ran.code == 0
    assert git(deployment, "log", "--reverse", "--format=%s|%an|%at", "refs/spt/stock/current..") == (
        "fast-linear: do it|A U Thor|1767323045\n"
        "tree-select: do it|A U Thor|1767323045\n"
        "tuned: do it|A U Thor|1767323045"
    )
    assert git(deployment, "log", "-1", "--format=%(trailers:key=Spt-Entry,valueonly)") == "tuned"
    assert (deployment / "stock/engine.py").read_text() == engine(line3="33", line9="99")
    assert git(deployment, "status", "--porcelain") == ""
    assert "to switch fast-linear on (small, any): linear=w12 w12-block=64" in ran.err


def test_a_first_entry_is_the_entrys_own_commit(deployment):
    """On stock, applying gives the very commit that the entry's branch has: same content, same id everywhere."""
    assert spt("entry", "apply", "fast-linear", cwd=deployment).code == 0
    assert head(deployment) == head(deployment, "entry/fast-linear~1")


def test_again_is_already(deployment):
    """An entry that is there is not applied twice, alone or as a requirement."""
    spt("entry", "apply", "fast-linear", cwd=deployment)
    before = head(deployment)
    again = spt("entry", "apply", "fast-linear", cwd=deployment)
    more = spt("entry", "apply", "tuned", "--json", cwd=deployment)

    assert (again.code, "fast-linear: applied already" in again.err) == (0, True)
    assert head(deployment, "HEAD~1") == before
    assert [made["entry"] for made in more.json["made"]] == ["tuned"]
    assert more.json["already"] == ["fast-linear"]


def test_one_after_another_is_all_at_once(deployment):
    """Whatever the order in which entries are applied, the tree is the same."""
    for names in (["tuned", "tree-select"], ["tree-select", "tuned"]):
        git(deployment, "switch", "-q", "-C", "try", "refs/spt/stock/current")
        for name in names:
            assert spt("entry", "apply", name, cwd=deployment).code == 0
        one = head(deployment, "HEAD^{tree}")
        assert (
            spt("entry", "apply", *names, "--onto", "refs/spt/stock/current", "--tree-only", cwd=deployment).out.strip()
            == one
        )


def test_work_beside_entries_is_kept(deployment):
    """Commits of the user's own, on other files, stay; applying adds to them."""
    commit_files(deployment, {"stock/mine.py": "mine\n", "notes.md": "mine\n"})

    assert spt("entry", "apply", "fast-linear", cwd=deployment).code == 0
    assert git(deployment, "show", "HEAD:notes.md") == "mine"
    assert git(deployment, "diff", "--name-only", "HEAD~1").split() == [
        "checks/fast-linear/run.py",
        "kernels/w12.py",
        "stock/engine.py",
        "stock/linear/w12.py",
        "stock/options/fast-linear.toml",
    ]


def test_a_reverted_entry_is_not_there(deployment):
    """After `git revert` the entry can be applied again."""
    spt("entry", "apply", "tree-select", cwd=deployment)
    git(deployment, "revert", "--no-edit", "HEAD")

    assert spt("entry", "apply", "tree-select", cwd=deployment).code == 0
    assert (deployment / "stock/engine.py").read_text() == engine(line9="99")


def test_a_changed_preimage_is_a_conflict(deployment):
    """A file that is not what the entry was made from is never merged: exit 3, and the way out is named."""
    commit_files(deployment, {"stock/engine.py": ENGINE + "extra = 1\n"})
    before = snapshot(deployment)

    assert errors_well(
        spt("entry", "apply", "fast-linear", cwd=deployment), 3, "'stock/engine.py'", "refresh fast-linear"
    )
    assert snapshot(deployment) == before


def test_entries_that_clash_are_a_conflict(tmp_path):
    """Two entries that edit neighbouring lines do not compose: exit 3, both named, nothing written."""
    root = make_root(tmp_path / "root")
    write_entry(root, "clash", None, {"stock/engine.py": (ENGINE, engine(line4="44"))})
    folder = tmp_path / "new"
    spt("init", folder, "--from", root, cwd=tmp_path)
    before = snapshot(folder)

    assert errors_well(
        spt("entry", "apply", "clash", "tuned", cwd=folder), 3, "'clash' and 'fast-linear'", "stock/engine.py"
    )
    assert snapshot(folder) == before


@pytest.mark.parametrize("staged", [False, True])
def test_a_dirty_tree_is_refused(deployment, staged):
    """Uncommitted changes, staged or not, are named and kept."""
    write(deployment, {"stock/engine.py": "mine\n"})
    if staged:
        git(deployment, "add", "-A")
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", "fast-linear", cwd=deployment), 2, "'stock/engine.py' has changes")
    assert snapshot(deployment) == before


@pytest.mark.parametrize(
    "files",
    [
        {"stock/linear/w12.py": "mine\n"},
        {"checks": "a file where a folder must be\n"},
        {"kernels/w12.py/x": "a folder where a file must be\n"},
    ],
    ids=["file", "file-for-folder", "folder-for-file"],
)
def test_untracked_files_are_never_overwritten(deployment, files):
    """A file of the user's at a place that is to be written is named and kept."""
    write(deployment, files)
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", "fast-linear", cwd=deployment), 2, next(iter(files)))
    assert snapshot(deployment) == before


def test_ignored_files_are_never_overwritten(deployment):
    """That git ignores a file does not make it anyone's to lose."""
    write(deployment, {".git/info/exclude": "w12.py\n", "kernels/w12.py": "mine\n"})

    assert errors_well(spt("entry", "apply", "fast-linear", cwd=deployment), 2, "'kernels/w12.py'")
    assert (deployment / "kernels/w12.py").read_text() == "mine\n"


def test_other_untracked_files_are_no_obstacle(deployment):
    """Files that nothing is written over stay where they are."""
    write(deployment, {"mine/notes.txt": "mine\n", "stock/__pycache__/x.pyc": "x"})

    assert spt("entry", "apply", "fast-linear", cwd=deployment).code == 0
    assert (deployment / "mine/notes.txt").read_text() == "mine\n"


def test_hooks_and_signing_stay_out_of_it(deployment, tmp_path):
    """No hook of the repository fires, and no key is asked for."""
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-commit"):
        write(deployment / ".git" / "hooks", {name: f"#!/bin/sh\ntouch {tmp_path}/fired\nexit 1\n"})
        (deployment / ".git" / "hooks" / name).chmod(0o755)
    git(deployment, "config", "commit.gpgSign", "true")
    git(deployment, "config", "core.fsmonitor", f"touch {tmp_path}/fired")

    assert spt("entry", "apply", "tuned", cwd=deployment).code == 0
    assert not (tmp_path / "fired").exists()


def test_branch_leaves_head_alone(deployment):
    """--branch commits onto another branch, made from here or continued."""
    before = head(deployment)
    first = spt("entry", "apply", "fast-linear", "--branch", "try", cwd=deployment)
    second = spt("entry", "apply", "tuned", "--branch", "try", cwd=deployment)

    assert (first.code, second.code) == (0, 0)
    assert head(deployment) == before
    assert git(deployment, "log", "--format=%s", "main..try").splitlines() == ["tuned: do it", "fast-linear: do it"]
    assert git(deployment, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--branch", "main"], "is checked out in"),
        (["--branch", "-x"], "cannot be a branch"),
        (["--branch", "entry/mine"], "is not yours"),
        (["--branch", "a..b"], "cannot be a branch"),
        (["--onto", "HEAD"], "--onto needs"),
        (["--tree-only", "--branch", "x"], "exclude each other"),
        (["--branch", "x", "--enable"], "--enable goes with"),
        (["--variant", "small"], "--variant 'small'"),
    ],
)
def test_bad_targets_are_refused(deployment, arguments, word):
    """What cannot be written is refused with its name, and nothing is written."""
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", "fast-linear", *arguments, cwd=deployment), 2, word)
    assert snapshot(deployment) == before


def test_one_option_of_two_entries_is_a_conflict(tmp_path):
    """Entries that declare the same option do not compose, though no line of theirs meets: nothing is written."""
    root = make_root(tmp_path / "root")
    for name in ("one", "two"):
        write_entry(root, name, {f"stock/options/{name}.toml": INT_OPTION.format("same", 32)}, options=["same"])
    folder = tmp_path / "new"
    spt("init", folder, "--from", root, cwd=tmp_path)
    before = snapshot(folder)

    assert errors_well(spt("entry", "apply", "one", "two", cwd=folder), 3, "option 'same' is declared twice")
    assert snapshot(folder) == before
    assert spt("entry", "apply", "one", cwd=folder).code == 0
    assert errors_well(spt("entry", "apply", "two", "--branch", "b", cwd=folder), 3, "'same' is declared twice")


def test_an_entrys_text_takes_nothing_back(deployment, tmp_path):
    """An entry whose message speaks of a revert, as a real one would, leaves what is applied applied."""
    spt("entry", "apply", "tree-select", cwd=deployment)
    said = {"author": "A <a@b.c>", "date": "2026-01-02T03:04:05Z", "subject": "s"}
    said["body"] = f"This reverts commit {head(deployment)}."
    liar = write_entry(tmp_path, "liar", {"kernels/liar.py": "x\n"}, commit=said)
    spt("entry", "import", liar, cwd=deployment)
    spt("entry", "apply", "liar", cwd=deployment)

    assert spt("entry", "apply", "tree-select", "--json", cwd=deployment).json["already"] == ["tree-select"]


def test_the_branch_of_an_entry_is_never_built_upon(deployment):
    """Standing on entry/NAME, applying is refused: its branch would be no entry any more."""
    git(deployment, "switch", "-q", "entry/tuned")
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", "tree-select", cwd=deployment), 2, "'entry/tuned' is an entry's own")
    assert snapshot(deployment) == before


@pytest.mark.parametrize("arguments", [["init", ".", "--from", "newer"], ["entry", "import", "newer/entries"]])
def test_a_branch_never_moves_under_a_working_tree(deployment, arguments):
    """An entry whose branch is checked out stays where it is: the files there would be left behind."""
    newer = make_root(deployment / "newer")
    write(newer, {"stock/linear/dense.py": "# moved\n"} if arguments[0] == "init" else {})
    write(newer / "entries/tuned", {"entry.yaml": card("tuned", requires=["fast-linear"], title="Another")})
    git(deployment, "worktree", "add", "-q", deployment.parent / "elsewhere", "entry/tuned")
    before = snapshot(deployment)

    assert errors_well(spt(*arguments, cwd=deployment), 2, "'entry/tuned' is to move", "elsewhere")
    assert snapshot(deployment) == before
    git(deployment, "worktree", "remove", deployment.parent / "elsewhere")
    assert spt(*arguments, cwd=deployment).code == 0


def test_a_bare_repository_knows_its_working_trees(deployment, tmp_path):
    """A branch that a linked working tree of a bare repository stands on is not moved under it."""
    git(deployment, "branch", "try")
    bare = tmp_path / "bare.git"
    shutil.copytree(deployment / ".git", bare)
    git(bare, "config", "core.bare", "true")
    git(bare, "worktree", "add", "-q", tmp_path / "linked", "try")
    before = git(bare, "for-each-ref")

    assert errors_well(spt("entry", "apply", "tuned", "--branch", "try", cwd=bare), 2, "'try' is checked out in")
    assert errors_well(spt("entry", "apply", "tuned", cwd=bare), 2, "bare")
    assert git(bare, "for-each-ref") == before
    assert spt("entry", "apply", "tuned", "--branch", "other", cwd=bare).code == 0


def test_an_unfinished_merge_is_left_to_its_end(deployment):
    """In the midst of a merge nothing is committed: the merge's own commit would take it for its side."""
    git(deployment, "switch", "-q", "-c", "side")
    commit_files(deployment, {"side.md": "x\n"})
    git(deployment, "switch", "-q", "main")
    git(deployment, "merge", "-q", "-s", "ours", "--no-commit", "side")
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", "tuned", cwd=deployment), 2, "a merge is not concluded")
    assert snapshot(deployment) == before


def test_names_are_bytes(deployment):
    """A branch, a folder and an exclude file that are no UTF-8 are as good as any."""
    folder = deployment.with_name(os.fsdecode(b"caf\xe9\n:x"))
    shutil.copytree(deployment, folder)
    (folder / ".git/info/exclude").write_bytes(b"caf\xe9\n")
    git(folder, "switch", "-q", "-c", os.fsdecode(b"br\xe9"))

    assert spt("init", ".", "--stock", "HEAD", cwd=folder).code == 0
    assert (folder / ".git/info/exclude").read_bytes().startswith(b"caf\xe9\n")
    assert spt("entry", "apply", "tuned", cwd=folder).code == 0
    assert git(folder, "status", "--porcelain") == ""
    assert spt("entry", "edit", "tree-select", cwd=folder).code == 0
    assert spt("entry", "export", "tree-select", cwd=folder).code == 0
    assert spt("entry", "apply", "tuned", "--worktree", folder.with_name("w"), cwd=folder).code == 0


def test_unknown_names_are_missing(deployment):
    """An entry or a revision that is not there is exit 4."""
    assert errors_well(spt("entry", "apply", "nobody", cwd=deployment), 4, "'nobody'")
    assert errors_well(
        spt("entry", "apply", "tuned", "--onto", "nowhere", "--tree-only", cwd=deployment), 4, "'nowhere'"
    )


def test_detached_head_is_refused(deployment):
    """Without a branch there is nothing to commit onto."""
    git(deployment, "switch", "-q", "--detach")

    assert errors_well(spt("entry", "apply", "tuned", cwd=deployment), 2, "HEAD is detached")


def test_tree_only_and_export_write_no_commit(deployment, tmp_path):
    """The tree can be had alone, as an id that git knows or as files."""
    before = git(deployment, "for-each-ref")
    tree = spt("entry", "apply", "tuned", "--tree-only", cwd=deployment).out.strip()
    ran = spt("entry", "apply", "tuned", "--export", tmp_path / "files", cwd=deployment)

    assert ran.code == 0
    assert git(deployment, "for-each-ref") == before
    listed = git(deployment, "ls-tree", "-r", "--name-only", tree).splitlines()
    assert (
        sorted(
            path.relative_to(tmp_path / "files").as_posix()
            for path in (tmp_path / "files").rglob("*")
            if path.is_file()
        )
        == listed
    )


def test_worktree_is_complete_and_linked(deployment, tmp_path):
    """--worktree checks the result out beside, detached; HEAD and its files stay."""
    assert spt("entry", "apply", "tuned", "--worktree", tmp_path / "w", cwd=deployment).code == 0
    assert git(tmp_path / "w", "status", "--porcelain") == ""
    assert (tmp_path / "w/stock/linear/w12.py").read_text() == "# 12 bits\ntuned = True\n"
    assert str(tmp_path / "w") in git(deployment, "worktree", "list")
    assert git(deployment, "status", "--porcelain") == ""


def test_apply_works_in_a_linked_worktree(deployment, tmp_path):
    """A linked worktree has its own branch and files, and the same memory."""
    git(deployment, "worktree", "add", "-q", "-b", "other", tmp_path / "w", "main")

    assert spt("entry", "apply", "tree-select", cwd=tmp_path / "w").code == 0
    assert git(tmp_path / "w", "status", "--porcelain") == ""
    assert head(deployment, "other~1") == head(deployment, "main")


def test_a_full_disk_is_no_mistake_of_the_user(deployment, tmp_path, monkeypatch):
    """Where git finds no space, the answer is exit 5, whatever git was doing."""
    program = tmp_path / "bin/git"
    full = "echo 'fatal: could not write: No space left on device' >&2; exit 128"
    write(
        program.parent,
        {"git": f'#!/bin/sh\ncase "$*" in *"worktree add"*) {full};; esac\nexec {shutil.which("git")} "$@"\n'},
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    ran = spt("entry", "apply", "tree-select", "--worktree", tmp_path / "w", cwd=deployment)

    assert errors_well(ran, 5, "no space left on device")


DEPLOYMENT = "# my words\nspt: 1\nname: toy   # of mine\ntarget: {path: x}\noptions:\n  select: chain\n"


def test_enable_switches_on_in_the_deployment_file(deployment):
    """--enable writes the variant's values, typed, and keeps comments, order and everything else."""
    write(deployment, {"deployment.yaml": DEPLOYMENT})

    ran = spt("entry", "apply", "fast-linear", "--enable", cwd=deployment)
    assert (deployment / "deployment.yaml").read_text() == DEPLOYMENT + "  linear: w12\n  w12-block: 64\n"
    assert "deployment.yaml switches fast-linear on (small): linear=w12 w12-block=64\n" in ran.err
    assert "to switch" not in ran.err


@pytest.mark.parametrize(
    ("text", "arguments", "code", "word"),
    [
        (None, ["fast-linear", "--enable"], 4, "printf 'spt: 1\\nname: demo"),
        (DEPLOYMENT, ["tree-select", "--enable"], 4, "has no variant"),
        (DEPLOYMENT, ["fast-linear", "--enable", "--variant", "big"], 2, "no variant 'big'"),
        ("a: [\n", ["fast-linear", "--enable"], 2, "deployment.yaml"),
    ],
)
def test_enable_is_checked_before_anything_is_written(deployment, text, arguments, code, word):
    """A deployment file or variant that will not do stops the command before it commits."""
    if text is not None:
        write(deployment, {"deployment.yaml": text})
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", *arguments, cwd=deployment), code, word)
    assert snapshot(deployment) == before


@pytest.mark.parametrize("text", ["- a\n", "word\n", "spt: 1\noptions: [a]\n", "spt: 1\noptions: b\n"])
def test_enable_needs_a_mapping(deployment, text):
    """A deployment file that is something else is refused before anything is written."""
    write(deployment, {"deployment.yaml": text})
    before = snapshot(deployment)

    assert errors_well(spt("entry", "apply", "fast-linear", "--enable", cwd=deployment), 2, "deployment.yaml")
    assert snapshot(deployment) == before


def test_enable_keeps_mode_and_link(deployment, tmp_path):
    """A private deployment file stays private, and one that is a link stays a link."""
    write(tmp_path, {"mine.yaml": "spt: 1\n"})
    (tmp_path / "mine.yaml").chmod(0o600)
    (deployment / "deployment.yaml").symlink_to(tmp_path / "mine.yaml")

    assert spt("entry", "apply", "fast-linear", "--enable", cwd=deployment).code == 0
    assert (deployment / "deployment.yaml").is_symlink()
    assert "w12" in (tmp_path / "mine.yaml").read_text()
    assert (tmp_path / "mine.yaml").stat().st_mode & 0o777 == 0o600


def test_outside_a_deployment_repository_there_is_a_hint(tmp_path):
    """A folder that is no repository, or one without a stock, says what to do."""
    git(tmp_path, "init", "-q", "repo")

    assert errors_well(spt("entry", "apply", "tuned", cwd=tmp_path), 2, "not in a git repository", "spt init DIR")
    assert errors_well(spt("entry", "apply", "tuned", cwd=tmp_path / "repo"), 2, "no stock yet", "spt init --stock REV")


def test_a_locked_index_is_explained(deployment):
    """A lock that git left is named, never removed."""
    write(deployment, {".git/index.lock": ""})

    assert errors_well(spt("entry", "apply", "tuned", cwd=deployment), 5, "index.lock")
    assert (deployment / ".git/index.lock").exists()
    (deployment / ".git/index.lock").unlink()
    assert spt("entry", "apply", "tuned", cwd=deployment).code == 0
