"""spt init: the same ids everywhere, from plain files, and nothing made of bad input."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spt.toys import (
    ENGINE,
    ENVIRONMENT,
    STOCK,
    card,
    edit_and_write_back,
    errors_well,
    evidence_line,
    git,
    make_root,
    snapshot,
    spt,
    write,
    write_entry,
)

ROOT = Path(__file__).parents[2]
# Whatever changes these changes the ids of everyone's entries.
LITERAL = [
    "77b405272ae4c570628503729c71065c338feacb refs/heads/entry/fast-linear",
    "39c727a2a08ae1c479a1096e3055e075e58a15c2 refs/heads/entry/tree-select",
    "c821541b2b1acbc48999a945375558ec8a42e5ad refs/heads/entry/tuned",
    "5277fdeb721c75b969009907bfcb93132b3d41e8 refs/heads/main",
    "b1f1283982b3033a9495063580917a61d6c2c513 refs/spt/patch/fast-linear/fed80f99dcb0",
    "89627ae025effc0611aefa7c4a75c095adfd3ee3 refs/spt/patch/tree-select/74ea29ffcdc4",
    "bcf26c44d7f4fb60f29abfed2c5d7f8cff04d3a0 refs/spt/patch/tuned/a528fe09e9cf",
    "77b405272ae4c570628503729c71065c338feacb refs/spt/shipped/fast-linear/77b405272ae4",
    "39c727a2a08ae1c479a1096e3055e075e58a15c2 refs/spt/shipped/tree-select/39c727a2a08a",
    "c821541b2b1acbc48999a945375558ec8a42e5ad refs/spt/shipped/tuned/c821541b2b1a",
    "5277fdeb721c75b969009907bfcb93132b3d41e8 refs/spt/stock/b763d10cd7b5",
    "5277fdeb721c75b969009907bfcb93132b3d41e8 refs/spt/stock/current",
]


def references(folder):
    return git(folder, "for-each-ref", "--format=%(objectname) %(refname)")


def test_the_repository_is_what_the_docs_say(deployment):
    """Stock is a root commit named by its tree, each entry is base, P, R, and HEAD is stock, checked out and clean."""
    tree = git(deployment, "rev-parse", "HEAD^{tree}")

    assert git(deployment, "log", "-1", "--format=%an|%ae|%at|%cn|%s", "main") == f"spt|spt@invalid|0|spt|{tree}"
    assert (
        git(deployment, "rev-parse", "refs/spt/stock/current", f"refs/spt/stock/{tree[:12]}").split()
        == [git(deployment, "rev-parse", "HEAD")] * 2
    )
    assert git(deployment, "symbolic-ref", "refs/spt/stock/current") == f"refs/spt/stock/{tree[:12]}"
    assert git(deployment, "status", "--porcelain") == ""
    assert (deployment / "stock/engine.py").read_text() == ENGINE
    assert git(deployment, "rev-list", "--count", "entry/tuned") == "4"
    assert git(deployment, "diff", "--name-only", "entry/tuned~2", "entry/tuned~1").split() == [
        "checks/tuned/run.py",
        "stock/linear/w12.py",
    ]
    assert git(deployment, "diff", "--name-only", "entry/tuned~1", "entry/tuned") == ".spt/entries/tuned/entry.yaml"
    assert git(deployment, "fsck", "--strict", "--no-dangling") == ""


def test_trailers_say_what_an_entry_stands_on(deployment):
    """P and R carry the documented trailers; R names the trees as well."""
    patch, record = (
        git(deployment, "log", "-1", "--format=%(trailers:only)", r) for r in ("entry/tuned~1", "entry/tuned")
    )
    delta = git(deployment, "log", "-1", "--format=%(trailers:key=Spt-Delta,valueonly)", "entry/fast-linear")

    assert patch.splitlines() == record.splitlines()[:3]
    assert patch.splitlines()[0] == "Spt-Entry: tuned"
    assert f"Spt-Requires: fast-linear@{delta}" in patch
    assert record.splitlines()[3:] == [
        f"Spt-Base-Tree: {git(deployment, 'rev-parse', 'entry/tuned~2^{tree}')}",
        f"Spt-Result-Tree: {git(deployment, 'rev-parse', 'entry/tuned~1^{tree}')}",
    ]


def test_ids_are_the_same_on_every_machine(tmp_path, shipped):
    """Neither file modes, umask, time zone, locale nor anyone's git configuration changes a single id."""
    other = tmp_path / "copy"
    shutil.copytree(shipped, other)
    for path in other.rglob("*.py"):
        path.chmod(0o755)
    (other / "stock" / "__pycache__").mkdir()
    (other / "stock" / "__pycache__" / "x.pyc").write_bytes(b"x")
    config = tmp_path / "gitconfig"
    config.write_text(
        "[user]\n name = Someone\n email = else@example.com\n[commit]\n gpgSign = true\n[core]\n autocrlf = true\n"
        f"[init]\n templateDir = {tmp_path / 'template'}\n defaultBranch = other\n[i18n]\n commitEncoding = latin1\n"
    )
    hook = tmp_path / "template" / "hooks" / "reference-transaction"
    write(hook.parent, {hook.name: f"#!/bin/sh\ntouch {tmp_path}/fired\n"})
    hook.chmod(0o755)
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": str(config), "HOME": str(tmp_path), "TZ": "Asia/Kathmandu"}
    environment |= {"PYTHONPATH": str(ROOT), "GIT_DIR": str(tmp_path / "nowhere"), "GIT_AUTHOR_DATE": "@1 +0000"}
    command = f"umask 077; exec {sys.executable} -m spt init two --from {other}"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert spt("init", "one", "--from", shipped, cwd=tmp_path).code == 0

    assert references(tmp_path / "one") == references(tmp_path / "two")
    assert not (tmp_path / "fired").exists()


def test_ids_are_literal(deployment):
    """The toy's ids are these: a change of how they are made is a change of everyone's repositories."""
    assert references(deployment).splitlines() == LITERAL


def test_again_changes_nothing(tmp_path, shipped, deployment):
    """The same command run again finds everything done."""
    before = snapshot(deployment)
    ran = spt("init", deployment, "--from", shipped, cwd=tmp_path)

    assert ran.code == 0
    assert "3 unchanged" in ran.err
    assert snapshot(deployment) == before


def test_a_new_release_moves_stock_and_entries(tmp_path, shipped, deployment):
    """Run with newer files, stock and entries move, old tips stay under rescue, and the branch stays where it is."""
    newer = make_root(tmp_path / "newer")
    write(newer, {"kernels/mm.py": "# a better kernel\n"})
    head, tip = git(deployment, "rev-parse", "HEAD"), git(deployment, "rev-parse", "entry/tuned")
    ran = spt("init", deployment, "--from", newer, cwd=tmp_path)

    assert ran.code == 0
    assert git(deployment, "rev-parse", "HEAD") == head
    assert git(deployment, "rev-parse", f"refs/spt/rescue/tuned/{tip[:12]}") == tip
    assert git(deployment, "show", "refs/spt/stock/current:kernels/mm.py") == "# a better kernel"
    assert git(deployment, "show", "entry/tuned:kernels/mm.py") == "# a better kernel"
    assert git(deployment, "status", "--porcelain") == ""


def test_what_the_user_changed_is_kept(tmp_path, shipped, deployment):
    """A release replaces what was shipped, and leaves an entry that was edited here, and what builds on it, alone."""
    edit_and_write_back(deployment, "fast-linear", {"kernels/w12.py": "# my own\n"})
    assert spt("entry", "refresh", "--all", cwd=deployment).code == 0
    mine = git(deployment, "rev-parse", "entry/fast-linear")
    other = git(deployment, "rev-parse", "entry/tree-select")
    newer = make_root(tmp_path / "newer")
    write(newer, {"kernels/mm.py": "# a better kernel\n"})
    ran = spt("init", deployment, "--from", newer, "--json", cwd=tmp_path)

    assert ran.json["entries"] == {"fast-linear": "kept", "tree-select": "changed", "tuned": "kept"}
    assert f"tree-select: changed; its old tip is 'refs/spt/rescue/tree-select/{other[:12]}'" in ran.err
    assert "note: fast-linear is kept" in ran.err
    assert git(deployment, "rev-parse", "entry/fast-linear") == mine
    taken = spt("entry", "import", newer / "entries", "fast-linear", cwd=deployment)
    assert taken.code == 0, taken.err
    assert f"its old tip is 'refs/spt/rescue/fast-linear/{mine[:12]}'" in taken.err
    assert (
        spt("init", deployment, "--from", newer, "--json", cwd=tmp_path).json["entries"]["fast-linear"] == "unchanged"
    )


def test_evidence_is_no_change_of_an_entry(tmp_path, shipped, deployment):
    """Records that were added to a shipped entry are carried on, and its new release is taken."""
    folder = tmp_path / "entries"
    folder.mkdir()
    assert spt("entry", "export", "tree-select", "--to", folder, cwd=deployment).code == 0
    write(folder, {"tree-select/evidence/2026-01-02-toy.jsonl": evidence_line(deployment, "tree-select")})
    assert spt("entry", "import", folder, cwd=deployment).code == 0
    newer = make_root(tmp_path / "newer")
    write(newer, {"kernels/mm.py": "# a better kernel\n"})
    ran = spt("init", deployment, "--from", newer, "--json", cwd=tmp_path)

    assert ran.json["entries"] == dict.fromkeys(("fast-linear", "tree-select", "tuned"), "changed")
    assert "0.25" in git(deployment, "show", "entry/tree-select:.spt/entries/tree-select/evidence/2026-01-02-toy.jsonl")


def test_a_folder_of_a_deployment_is_no_place_for_another(deployment):
    """`spt init .` below a deployment's root names the root."""
    assert errors_well(spt("init", ".", cwd=deployment / "stock"), 2, "lies in the deployment", str(deployment))


def test_bundles_are_read_once(tmp_path, monkeypatch):
    """A fresh repository gets what was composed and checked before it was made."""
    from spt import initialise

    fetched = []
    admit = initialise.admit_sources
    monkeypatch.setattr(
        initialise, "admit_sources", lambda memory, bundle: (fetched.append(bundle), admit(memory, bundle))
    )
    assert spt("init", tmp_path / "one", cwd=tmp_path).code == 0

    assert len(fetched) == len(set(fetched)) == len(list((ROOT / "entries/sources").glob("*.bundle"))) > 0


def test_deployment_yaml_is_private(deployment):
    """The deployment file in the root, and what running a system leaves, are never offered to git."""
    write(deployment, {"deployment.yaml": "spt: 1\n", "stock/__pycache__/x.pyc": "x"})

    assert git(deployment, "status", "--porcelain") == ""


def test_any_repository_can_be_stock(tmp_path):
    """`--stock REV` pins the tree of a revision, without records, and touches no branch, index or file."""
    folder = tmp_path / "mine"
    git(tmp_path, "init", "-q", "-b", "trunk", "mine")
    write(folder, {"src/a.py": "a\n", ".spt/system.yaml": "spt: 1\n", "README": "r\n"})
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    before = git(folder, "rev-parse", "HEAD")
    ran = spt("init", ".", "--stock", "trunk", "--json", cwd=folder)

    assert ran.code == 0
    assert git(folder, "ls-tree", "-r", "--name-only", "refs/spt/stock/current").split() == ["README", "src/a.py"]
    assert ran.json["stock"] == git(folder, "rev-parse", "refs/spt/stock/current^{tree}")
    assert git(folder, "rev-parse", "HEAD") == before
    assert git(folder, "status", "--porcelain") == ""


def make_sha256(folder):
    git(folder.parent, "init", "-q", "--object-format=sha256", folder.name)


def make_reftable(folder):
    git(folder.parent, "init", "-q", folder.name)
    with (folder / ".git" / "config").open("a") as config:
        config.write("[core]\n repositoryformatversion = 1\n[extensions]\n refstorage = reftable\n")


def make_partial(folder):
    git(folder.parent, "init", "-q", folder.name)
    with (folder / ".git" / "config").open("a") as config:
        config.write("[core]\n repositoryformatversion = 1\n[extensions]\n partialClone = origin\n")


@pytest.mark.parametrize(
    ("make", "code", "word"),
    [
        (make_sha256, 5, "'sha256'"),
        (make_reftable, 5, "'reftable'"),
        (make_partial, 5, "extensions.partialclone"),
        (lambda folder: folder.mkdir(), 2, "not in a git repository"),
        (lambda folder: git(folder.parent, "init", "-q", folder.name), 4, "no commit is named 'HEAD'"),
    ],
    ids=["sha256", "reftable", "partial", "plain", "empty"],
)
def test_unsupported_repositories_are_named(tmp_path, make, code, word):
    """What cannot be a stock says why, in one line with a hint, and is left alone."""
    make(tmp_path / "mine")
    before = snapshot(tmp_path)

    assert errors_well(spt("init", "mine", "--stock", "HEAD", cwd=tmp_path), code, word)
    assert snapshot(tmp_path) == before


def test_a_folder_with_files_is_not_taken(tmp_path, shipped):
    """A folder that holds files, or a repository of someone else's, is refused and left alone."""
    write(tmp_path / "full", {"note": "mine\n"})
    git(tmp_path, "init", "-q", "repo")
    write(tmp_path / "repo", {"a": "a\n"})
    git(tmp_path / "repo", "add", "-A")
    git(tmp_path / "repo", "commit", "-q", "-m", "mine")
    before = snapshot(tmp_path)

    assert errors_well(spt("init", "full", "--from", shipped, cwd=tmp_path), 2, "not empty")
    assert errors_well(spt("init", "repo", "--from", shipped, cwd=tmp_path), 2, "spt did not make", "--stock REV")
    assert snapshot(tmp_path) == before


def with_entry(root, text, extra=()):
    write(root / "entries" / "bad", {"entry.yaml": text, **dict(extra)})


@pytest.mark.parametrize(
    ("text", "extra", "code", "word"),
    [
        (card("bad", surprise="x"), {}, 2, "unknown key 'surprise'"),
        (card("bad").replace('"title"', '"name"'), {}, 2, "duplicate key 'name'"),
        ("a: &x [1]\nb: *x\n", {}, 2, "anchors are not allowed"),
        ("a: !!python/object/apply:os.system [x]\n", {}, 2, "tags are not allowed"),
        (card("other"), {}, 2, "lies in folder 'bad'"),
        (card("bad", requires=["nobody"]), {"tree/stock/x.py": "x\n"}, 4, "requires 'nobody'"),
        (card("bad", requires=["bad"]), {"tree/stock/x.py": "x\n"}, 2, "requires itself"),
        (card("bad"), {}, 2, "changes nothing"),
        (card("bad"), {"tree/stock/x.exe": "x\n"}, 2, "'stock/x.exe'"),
        (card("bad"), {"tree/harness/x.py": "x\n"}, 2, "'harness/x.py'"),
        (card("bad"), {"tree/checks/other/x.py": "x\n"}, 2, "'checks/other/x.py'"),
        (card("bad"), {"tree/stock/engine.py": "x\n"}, 3, "'stock/engine.py', which is there already"),
        (card("bad"), {"tree/stock/Engine.py": "x\n"}, 3, "one name where case does not count"),
        (card("bad"), {"tree/stock/select/best2.py": "x\n"}, 2, "`seams` in entry.yaml says {}"),
        (card("bad", options=["x"]), {"tree/stock/x.py": "x\n"}, 2, "`options` in entry.yaml says ['x']"),
        (card("bad"), {"tree/stock/options/bad.toml": STOCK["stock/options/stock.toml"]}, 2, "declared twice"),
        (card("bad"), {"tree/stock/options/bad.toml": "[x]\ntype = 'int'\n"}, 2, "key 'default' is missing"),
        (card("bad"), {"tree/stock/x.py": "x\n", "notes.txt": "x\n"}, 2, "'notes.txt' has no place"),
        (card("bad"), {"tree/stock/x.py": "x\n", "edits.patch": "garbage\n"}, 2, "no `diff --git` line"),
        (card("bad"), {"tree/stock/x.py": "x\n", "source.jsonl": "{}\n"}, 2, "'entries' is missing"),
        (card("bad").replace("com>", "com>\\n"), {"tree/stock/x.py": "x\n"}, 2, "'commit.author'"),
        (card("bad").replace("do it", "do it\\n"), {"tree/stock/x.py": "x\n"}, 2, "'commit.subject'"),
        ("[" * 50, {}, 2, "nested deeper than 20"),
        ("a: " + "x" * 70000, {}, 2, "more than the 65536"),
    ],
)
def test_a_bad_entry_is_named_and_nothing_is_made(tmp_path, text, extra, code, word):
    """Whatever is wrong with an entry's files, one line says it and no repository appears."""
    root = make_root(tmp_path / "root")
    with_entry(root, text, extra)

    assert errors_well(spt("init", "new", "--from", root, cwd=tmp_path), code, word)
    assert not (tmp_path / "new").exists()


def test_cycles_are_named(tmp_path):
    """Entries that require one another are refused with the circle."""
    root = make_root(tmp_path / "root")
    for name, other in (("ring-a", "ring-b"), ("ring-b", "ring-a")):
        write(root / "entries" / name, {"entry.yaml": card(name, requires=[other]), "tree/stock/x.py": "x\n"})

    assert errors_well(spt("init", "new", "--from", root, cwd=tmp_path), 2, "'ring-a' -> 'ring-b' -> 'ring-a'")


def test_editing_the_worker_is_refused(tmp_path):
    """The protocol belongs to stock."""
    root = make_root(tmp_path / "root")
    write_entry(root, "bad", None, {"stock/worker.py": (STOCK["stock/worker.py"], "# mine now\n")})

    assert errors_well(spt("init", "new", "--from", root, cwd=tmp_path), 2, "'stock/worker.py'")


def test_a_lock_that_is_behind_is_named(tmp_path):
    """An entry whose files are not what the lock says is refused."""
    root = make_root(tmp_path / "root")
    line = json.dumps({"name": "tuned", "delta_id": "2" * 64, "base_tree": "1" * 40, "result_tree": "3" * 40})
    write(root / "entries", {"lock.jsonl": line + "\n"})

    assert errors_well(spt("init", "new", "--from", root, cwd=tmp_path), 1, "its lock says 222222222222")


def test_links_in_an_entry_folder_are_refused(tmp_path):
    """An entry folder cannot pull in files from elsewhere."""
    root = make_root(tmp_path / "root")
    (root / "entries" / "tuned" / "tree" / "stock").mkdir(parents=True)
    (root / "entries" / "tuned" / "tree" / "stock" / "x.py").symlink_to("/etc/hostname")

    assert errors_well(spt("init", "new", "--from", root, cwd=tmp_path), 2, "is a link")


def test_environment_of_a_hook_points_nowhere(deployment, shipped, tmp_path):
    """Run inside a hook of another repository, spt works on the folder it was given."""
    environment = ENVIRONMENT | {
        "GIT_DIR": str(deployment / ".git"),
        "GIT_INDEX_FILE": "/nowhere",
        "PYTHONPATH": str(ROOT),
    }
    before = snapshot(deployment)
    command = [sys.executable, "-m", "spt", "init", str(tmp_path / "second"), "--from", str(shipped)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    assert snapshot(deployment) == before
    assert references(tmp_path / "second") == references(deployment)
