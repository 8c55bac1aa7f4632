"""edits.patch: exact both ways, and the same language as git's own `diff` and `apply`."""

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spt.errors import Usage
from spt.git.objects import EXECUTABLE, FILE, LINK, State
from spt.git.patch import apply_edit, blob_id, parse_patch, write_patch
from spt.git.tree import Row

ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
contents = st.one_of(
    st.lists(st.sampled_from([b"a", b"b", b"", b"\r", b"same", b"\xff\xfe", b"-- x", b"\\ no"]), max_size=14).map(
        b"\n".join
    ),
    st.binary(max_size=200),
)
paths = st.sampled_from(["a.py", "d/b c.py", 'q"uote.md', "tab\there", "ünïcode/ß.md", "back\\slash"])
modes = st.sampled_from([FILE, EXECUTABLE])


def git(folder, *arguments, stdin=b""):
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=ENVIRONMENT, input=stdin, capture_output=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("apply")
    git(folder, "init", "-q")
    return folder


def row_of(path, old, new, blobs):
    states = []
    for side in (old, new):
        if side is not None:
            blobs[blob_id(side[1])] = side[1]
        states.append(None if side is None else State(side[0], blob_id(side[1])))
    return Row(path, *states)


sides = st.one_of(st.none(), st.tuples(modes, contents))


@settings(max_examples=300, deadline=None)
@given(paths, sides, sides)
def test_a_written_patch_is_read_back_and_applies(path, old, new):
    """Any change of any content, mode and name survives the way through the patch, byte for byte."""
    if old == new:
        return
    blobs = {}
    row = row_of(path, old, new, blobs)
    (edit,) = parse_patch(write_patch([row], blobs.__getitem__), "edits.patch")

    assert edit.row == row
    assert apply_edit(edit, old[1] if old else b"") == (new[1] if new else b"")


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_git_applies_what_we_write_and_we_apply_what_git_writes(repository, data):
    """`git apply` makes the same blobs from our patch, and our reader the same from `git diff-tree`'s."""
    path = data.draw(paths)
    old, new = data.draw(sides), data.draw(sides)
    if old == new or (old and new and old[1] == new[1]):
        return  # git writes no index line for a change of mode alone, so there is nothing exact to compare
    blobs = {}
    row = row_of(path, old, new, blobs)
    trees = []
    for side in (old, new):
        git(repository, "read-tree", "--empty")
        if side is not None:
            oid = git(repository, "hash-object", "-w", "--stdin", stdin=side[1]).decode().strip()
            git(
                repository,
                "update-index",
                "--add",
                "-z",
                "--index-info",
                stdin=f"{side[0]:06o} {oid}\t{path}\0".encode(),
            )
        trees.append(git(repository, "write-tree").decode().strip())
    git(repository, "read-tree", trees[0])
    git(repository, "apply", "--cached", "--whitespace=nowarn", stdin=write_patch([row], blobs.__getitem__))
    theirs = git(repository, "diff-tree", "-p", "--full-index", "--binary", "--no-renames", *trees)

    assert git(repository, "write-tree").decode().strip() == trees[1]
    if b"\ndelta " in theirs:
        return  # binary deltas are refused: see below
    (edit,) = parse_patch(theirs, "git")
    assert apply_edit(edit, old[1] if old else b"") == (new[1] if new else b"")
    assert edit.row == row


def simple(before=b"a\nb\nc\n", after=b"a\nx\nc\n"):
    blobs = {}
    row = row_of("f.py", (FILE, before), (FILE, after), blobs)
    return write_patch([row], blobs.__getitem__)


def test_the_text_is_what_a_reviewer_expects():
    """The patch reads like git's own, with whole ids."""
    old, new = blob_id(b"a\nb\nc\n"), blob_id(b"a\nx\nc\n")

    assert simple().decode() == (
        f"diff --git a/f.py b/f.py\nindex {old}..{new} 100644\n"
        "--- a/f.py\n+++ b/f.py\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n"
    )


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (b"index ", b"index 0", "no `index` line"),
        (b"diff --git a/f.py b/f.py", b"diff --git a/f.py b/g.py", "renames"),
        (b"diff --git a/f.py b/f.py", b"diff --git f.py f.py", "renames and foreign prefixes"),
        (b"@@ -1,3 +1,3 @@", b"@@ -1,4 +1,4 @@", "shorter"),
        (b"@@ -1,3 +1,3 @@", b"@@ -1,2 +1,3 @@", "longer"),
        (b" 100644\n", b" 160000\n", "mode '160000' is not allowed"),
        (b" 100644\n", b"\n", "a mode is missing"),
        (b"--- a/f.py", b"--- a/../f.py", "`--- a/f.py` expected"),
        (b"+++ b/f.py", b"+++ /dev/null", r"`\+\+\+ b/f.py` expected"),
        (b"diff --git", b"garbage\ndiff --git", "no `diff --git` line"),
        (b"@@ -1,3 +1,3 @@", b"@@ -" + b"9" * 5000 + b",3 +1,3 @@", "no `diff --git` line"),
        (b" c\n", b" c\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n", "before or in the one above"),
        (b" c\n", b" c\n@@ -3,1 +3,1 @@\n c\n", "before or in the one above"),
        (b"--- a/f.py\n+++ b/f.py\n", b"GIT binary patch\nliteral " + b"9" * 5000 + b"\n", "binary literal"),
        (b"--- a/f.py\n+++ b/f.py\n", "GIT binary patch\nliteral ²\n".encode(), "binary literal"),
    ],
)
def test_a_malformed_patch_is_refused(before, after, problem):
    """A patch that says less, more or something else than it must is named with its line."""
    with pytest.raises(Usage, match=problem):
        parse_patch(simple().replace(before, after), "edits.patch")


def test_a_patch_for_another_blob_is_refused():
    """The preimage is known by its id: no context match, fuzz or offset stands in for it."""
    (edit,) = parse_patch(simple(), "edits.patch")
    with pytest.raises(Usage, match="is for blob"):
        apply_edit(edit, b"first\na\nb\nc\n")


def test_a_patch_that_was_edited_by_hand_is_refused():
    """The postimage is known by its id too."""
    (edit,) = parse_patch(simple().replace(b"+x", b"+y"), "edits.patch")
    with pytest.raises(Usage, match=r"not .* as it says"):
        apply_edit(edit, b"a\nb\nc\n")


def test_one_path_twice_is_refused():
    """Two edits of one path would need an order."""
    with pytest.raises(Usage, match="edited twice"):
        parse_patch(simple() + simple(), "edits.patch")


def test_links_and_mode_changes_are_carried():
    """A link's target and a change of mode alone survive; a submodule is refused."""
    blobs = {}
    rows = [
        row_of("link", None, (LINK, b"target"), blobs),
        row_of("run", (FILE, b"x\n"), (EXECUTABLE, b"x\n"), blobs),
    ]

    assert [edit.row for edit in parse_patch(write_patch(rows, blobs.__getitem__), "p")] == rows
    with pytest.raises(Usage, match="submodule"):
        write_patch([Row("sub", None, State(0o160000, "1" * 40))], blobs.__getitem__)


def test_a_bomb_is_not_inflated():
    """A binary literal that claims or holds more than a blob may have is refused."""
    patch = write_patch([row_of("b", None, (FILE, b"\0"), blobs := {})], blobs.__getitem__)
    with pytest.raises(Usage, match="allowed size"):
        parse_patch(patch.replace(b"literal 1\n", b"literal 999999999\n", 1), "p")
    with pytest.raises(Usage, match="another length"):
        parse_patch(patch.replace(b"literal 1\n", b"literal 2\n", 1), "p")
