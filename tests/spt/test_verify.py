"""spt entry new and verify: an entry is what its source was, and every way of not being it has a name."""

import json

import pytest

from tests.spt.toys import (
    CONTRACT,
    ENGINE,
    card,
    commit_files,
    edit_and_write_back,
    engine,
    errors_well,
    evidence_line,
    git,
    make_root,
    new,
    report,
    snapshot,
    spt,
    write,
    write_entry,
)


def kinds(finding):
    return {(difference["kind"], difference["path"], difference["entry"]) for difference in finding["differences"]}


# New.


def test_interleaved_commits_become_entries_that_recompose(distilled, system):
    """Each mechanism becomes one delta on stock, and together they are the system, to the id."""
    for name in ("alpha", "beta"):
        code, found = report(distilled, name)
        assert (code, [found[question]["answer"] for question in ("recompose", "source", "record")]) == (0, ["ok"] * 3)
    tree = spt("entry", "apply", "alpha", "beta", "--tree-only", cwd=distilled).out.strip()

    assert tree == git(distilled, "rev-parse", "round^{tree}")
    assert git(distilled, "rev-parse", f"refs/spt/source/{tree[:12]}") == system["b2"]
    assert git(distilled, "diff", "--name-only", "entry/beta~2", "entry/beta~1").split() == [
        "stock/engine.py",
        "stock/options/beta.toml",
        "stock/select/beta.py",
    ]


def test_a_card_is_made_from_the_newest_commit(distilled):
    """Without --yaml, words, author and date come from the commit, options and seam values from the delta."""
    text = git(distilled, "show", "entry/beta:.spt/entries/beta/entry.yaml")

    assert (
        git(distilled, "log", "-1", "--format=%s|%an|%at", "entry/beta~1") == "beta: the other half|A U Thor|1767323045"
    )
    assert "beta-size" in text
    assert "select:" in text


def test_a_system_with_other_commits_is_refused(deployment, system):
    """Commits that belong to no entry are named: exit 1, nothing written."""
    before = snapshot(deployment)

    assert errors_well(new(deployment, "alpha", system["a1"], system["a2"]), 1, system["b1"][:12], "and 1 more")
    assert snapshot(deployment) == before


def test_partial_names_what_is_residual(deployment, system):
    """With --partial the entry is kept, and verify says which commits wait, with exit 1."""
    assert new(deployment, "alpha", system["a1"], system["a2"], extra=["--partial"]).code == 0
    code, found = report(deployment, "alpha")

    assert (code, found["source"]["answer"]) == (1, "residual")
    assert [difference["text"].split()[1] for difference in found["source"]["differences"]] == [
        system["b1"][:12],
        system["b2"][:12],
    ]


def test_a_commit_on_top_of_one_left_out_is_refused(deployment):
    """A commit that builds on another one cannot be distilled without it."""
    git(deployment, "switch", "-q", "-c", "round")
    commit_files(deployment, {"stock/engine.py": engine(line20="200")})
    second = commit_files(deployment, {"stock/engine.py": engine(line20="201")})

    assert errors_well(new(deployment, "late", second, extra=["--partial"]), 3, "'stock/engine.py'", "left out")


def test_commits_are_named_as_the_user_knows_them(tmp_path):
    """On a stock of the user's own, whose commits are copied to be kept, errors name the originals."""
    folder = tmp_path / "mine"
    git(tmp_path, "init", "-q", "-b", "main", "mine")
    commit_files(folder, {"a.py": "a = 1\n", "b.py": "b = 1\n"})
    assert spt("init", "--stock", "main", cwd=folder).code == 0
    first = commit_files(folder, {"a.py": "a = 2\n"})
    second = commit_files(folder, {"a.py": "a = 3\n"})
    third = commit_files(folder, {"b.py": "b = 2\n"})
    said = ("--contract", "rounding", "--invariant", "same")

    left = spt("entry", "new", "mine", "--system", "main", "--from", first, "--from", second, *said, cwd=folder)
    late = spt("entry", "new", "mine", "--system", "main", "--from", second, *said, cwd=folder)

    assert errors_well(left, 1, f"commit {third[:12]} of the source belongs to no entry")
    assert errors_well(late, 3, f"commit {second[:12]} changes 'a.py'")


@pytest.mark.parametrize(
    ("given", "absent"),
    [
        ([], "name --contract and --invariant"),
        (["--contract", "rounding"], "name --invariant"),
        (["--invariant", "same"], "name --contract"),
    ],
)
def test_what_a_contract_lacks_is_named(deployment, system, given, absent):
    """A contract is a kind and at least one invariant; the flag that is not there is named."""
    ran = spt("entry", "new", "alpha", "--system", "round", "--from", system["a1"], *given, cwd=deployment)

    assert errors_well(ran, 2, absent)


def test_requires_puts_an_entry_under_the_new_one(deployment):
    """A system that applied an entry: the new one is made on top of it, and its source lists both."""
    git(deployment, "switch", "-q", "-c", "round")
    spt("entry", "apply", "fast-linear", cwd=deployment)
    commit = commit_files(deployment, {"stock/linear/w12.py": "# 12 bits\nbetter = 1\n"}, "better 12 bits")
    refused = new(deployment, "better", commit)
    kept = new(deployment, "better", commit, extra=["--requires", "fast-linear", "--json"])

    assert errors_well(refused, 3, "'stock/linear/w12.py'")
    assert kept.code == 0
    assert [pin.split("@")[0] for pin in kept.json["entries"]] == ["fast-linear", "better"]
    assert report(deployment, "better")[0] == 0


def test_a_requirement_that_changed_leaves_the_source_as_it_was(deployment):
    """An entry whose requirement gets a new delta while its own stays is checked with the deltas of its source."""
    git(deployment, "switch", "-q", "-c", "round")
    spt("entry", "apply", "fast-linear", cwd=deployment)
    commit = commit_files(deployment, {"stock/linear/other.py": "other = 1\n"}, "another")
    assert new(deployment, "another", commit, extra=["--requires", "fast-linear"]).code == 0
    git(deployment, "switch", "-q", "main")
    before = report(deployment, "another")[1]
    edit_and_write_back(deployment, "fast-linear", {"checks/fast-linear/more.py": "1\n"})
    assert spt("entry", "refresh", "--all", cwd=deployment).code == 0
    code, found = report(deployment, "another")

    assert (code, found["source"]["answer"], found["recompose"]["answer"]) == (0, "ok", "ok")
    assert before["source"]["answer"] == "ok"


def test_a_whole_card_can_be_given(deployment, system):
    """--yaml records a card as it is written; one that lies about options is refused."""
    write(
        deployment.parent,
        {"good.yaml": card("beta", options=["beta-size"], seams={"select": ["beta"]}), "bad.yaml": card("beta")},
    )
    arguments = ["--system", "round", "--from", system["b1"], "--from", system["b2"], "--partial"]
    bad = spt("entry", "new", "beta", *arguments, "--yaml", "../bad.yaml", cwd=deployment)
    good = spt("entry", "new", "beta", *arguments, "--yaml", "../good.yaml", cwd=deployment)

    assert errors_well(bad, 2, "`options` in entry.yaml says []")
    assert good.code == 0
    assert git(deployment, "log", "-1", "--format=%s", "entry/beta~1") == "beta: do it"


@pytest.mark.parametrize(
    ("name", "commits", "extra", "code", "word"),
    [
        ("Alpha", ["a1"], [], 2, "'Alpha' cannot be a name"),
        ("tuned", ["a1"], [], 2, "there is an entry 'tuned' already"),
        ("alpha", ["main"], [], 4, "is not in the system"),
        ("alpha", ["nowhere"], [], 4, "'nowhere'"),
        ("alpha", ["a1"], ["--requires", "nobody"], 4, "'nobody'"),
    ],
)
def test_bad_requests_are_refused(deployment, system, name, commits, extra, code, word):
    """A request that cannot be met says why and writes nothing."""
    before = snapshot(deployment)
    chosen = [system.get(commit, commit) for commit in commits]

    assert errors_well(new(deployment, name, *chosen, extra=[*extra, "--partial"]), code, word)
    assert snapshot(deployment) == before


def odd_commit(folder, author="A <a@example.com> 1 +0000", message="a change\n"):
    """A branch `odd` with one commit on stock whose bytes no tool would have written."""
    git(folder, "switch", "-q", "-c", "scratch")
    commit_files(folder, {"kernels/odd.py": "x\n"})
    tree, parent = git(folder, "rev-parse", "HEAD^{tree}"), git(folder, "rev-parse", "main")
    data = f"tree {tree}\nparent {parent}\nauthor {author}\ncommitter {author}\n\n{message}"
    raw = data.encode(errors="surrogateescape")
    commit = git(folder, "hash-object", "-t", "commit", "-w", "--stdin", "--literally", stdin=raw)
    git(folder, "branch", "odd", commit)
    git(folder, "switch", "-q", "main")


@pytest.mark.parametrize(
    "author",
    ["A <a@b> 1 +9959", "A <a@b> 1 -0030", "<> 1 +0000", "A <> 1 +0000", "\udce9 <\udce9@b> 1 +0000"],
)
def test_odd_authors_make_a_card(deployment, author):
    """Whatever identity git let a commit have, a card can be made of it, and the entry verifies."""
    odd_commit(deployment, author=author)

    ran = spt("entry", "new", "odd", "--system", "odd", "--from", "odd", *CONTRACT, cwd=deployment)

    assert ran.code == 0, ran.err
    assert spt("entry", "verify", "odd", cwd=deployment).code == 0


@pytest.mark.parametrize(
    ("odd", "word"),
    [
        ({"author": "A <a@b> 99999999999999 +0000"}, "'99999999999999'"),
        ({"author": "A <a@b> -5 +0000"}, "author and date"),
        ({"message": ""}, "has no message"),
        ({"message": "\x1b[31mred\n"}, "control characters"),
        ({"message": "x" * 70000}, "more than the 65536"),
    ],
)
def test_commits_that_make_no_card_are_named(deployment, odd, word):
    """A commit whose date or message no card can hold is refused in one line, and nothing is written."""
    odd_commit(deployment, **odd)
    before = snapshot(deployment)

    ran = spt("entry", "new", "odd", "--system", "odd", "--from", "odd", *CONTRACT, cwd=deployment)

    assert errors_well(ran, 2, word)
    assert snapshot(deployment) == before


@pytest.mark.parametrize("command", ["python 'x", "", " "])
def test_checks_that_are_no_commands_fail(tmp_path, command):
    """A check that cannot be split into words fails by name; it is no traceback and no pass."""
    root = make_root(tmp_path / "root")
    write_entry(root, "odd", {"kernels/odd.py": "x\n"}, checks=[command])
    spt("init", tmp_path / "new", "--from", root, cwd=tmp_path)

    ran = spt("entry", "verify", "odd", "--checks", cwd=tmp_path / "new")

    assert ran.code == 1
    assert "not a command" in ran.out


def test_a_shallow_repository_is_unavailable(deployment, tmp_path):
    """Where an entry's history was cut off, no answer is `ok` and none is `differs`; importing from it says why."""
    shallow = tmp_path / "shallow"
    refs = [f"+{one}:{one}" for one in ("refs/spt/*", "refs/heads/entry/*")]
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{deployment}", "shallow")
    git(shallow, "fetch", "-q", "--depth", "1", "origin", *refs)
    git(shallow, "symbolic-ref", "refs/spt/stock/current", git(deployment, "symbolic-ref", "refs/spt/stock/current"))

    ran = spt("entry", "verify", "tuned", "--json", cwd=shallow)

    assert ran.code == 4
    assert {ran.json[0][question]["answer"] for question in ("recompose", "source", "record")} == {"unavailable here"}
    assert errors_well(spt("entry", "import", shallow, cwd=deployment), 4, "is not in this repository")


def test_a_contract_is_needed(deployment, system):
    """An entry without a contract is no entry."""
    ran = spt("entry", "new", "alpha", "--system", "round", "--from", system["a1"], cwd=deployment)

    assert errors_well(ran, 2, "needs a contract")


# Verify: what is broken has a name.


def amend_patch(folder, name, change):
    """Rebuilds an entry's branch with another P tree under the same records: `change` edits a checked-out P."""
    work = folder.parent / f"amend-{name}"
    git(folder, "worktree", "add", "-q", "--detach", work, f"entry/{name}~1")
    change(work)
    git(work, "add", "-A")
    git(work, "commit", "-q", "--amend", "--no-edit")
    git(work, "checkout", "-q", f"entry/{name}", "--", ".spt")
    message = git(folder, "log", "-1", "--format=%B", f"entry/{name}")
    git(work, "commit", "-q", "-m", message)
    git(folder, "update-ref", f"refs/heads/entry/{name}", git(work, "rev-parse", "HEAD"))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda work: write(work, {"stock/select/more.py": "x\n"}), ("path", "stock/select/more.py", None)),
        (lambda work: (work / "stock/select/best.py").unlink(), ("path", "stock/select/best.py", "tree-select")),
        (lambda work: (work / "stock/select/best.py").chmod(0o755), ("mode", "stock/select/best.py", "tree-select")),
        (lambda work: write(work, {"stock/select/best.py": "x\n"}), ("blob", "stock/select/best.py", "tree-select")),
    ],
    ids=["path-more", "path-less", "mode", "blob"],
)
def test_recompose_names_a_broken_path_mode_or_blob(deployment, change, difference):
    """A P that is not requirements plus delta is named by path, by kind, and by the entry that diverges."""
    amend_patch(deployment, "tree-select", change)
    code, found = report(deployment, "tree-select")

    assert (code, found["recompose"]["answer"]) == (1, "differs")
    assert difference in kinds(found["recompose"])
    assert found["record"]["answer"] == "differs"


def test_recompose_names_a_broken_dependency(deployment):
    """A base that is not what the requirements make is named by path and requirement."""
    work = deployment.parent / "work"
    git(deployment, "worktree", "add", "-q", "--detach", work, "entry/tuned~2")
    write(work, {"kernels/w12.py": "# another\n"})
    base = git(deployment, "rev-parse", "entry/tuned~2^{tree}")
    git(work, "add", "-A")
    git(work, "commit", "-q", "--amend", "-m", base)
    for revision in ("entry/tuned~1", "entry/tuned"):
        git(work, "cherry-pick", "--allow-empty", revision)
    git(deployment, "update-ref", "refs/heads/entry/tuned", git(work, "rev-parse", "HEAD"))
    code, found = report(deployment, "tuned")

    assert (code, found["recompose"]["answer"]) == (1, "differs")
    assert ("dependency", "kernels/w12.py", "fast-linear") in kinds(found["recompose"])


def rewrite_source(folder, name, change):
    """Replaces the newest source line of an entry, as someone with an editor would."""
    work = folder.parent / f"source-{name}"
    git(folder, "worktree", "add", "-q", "--detach", work, f"entry/{name}")
    path = work / f".spt/entries/{name}/source.jsonl"
    *older, newest = path.read_text().splitlines()
    line = json.loads(newest)
    change(line)
    path.write_text("".join(f"{text}\n" for text in [*older, json.dumps(line)]))
    git(work, "commit", "-qam", git(folder, "log", "-1", "--format=%B", f"entry/{name}"))
    git(folder, "update-ref", f"refs/heads/entry/{name}", git(work, "rev-parse", "HEAD"))


def drop(name):
    def change(line):
        line["entries"] = [pin for pin in line["entries"] if not pin.startswith(f"{name}@")]

    return change


def test_source_names_a_broken_order(distilled):
    """A source whose entries do not stand in composition order is named by the first that is misplaced."""
    rewrite_source(distilled, "beta", lambda line: line["entries"].reverse())
    code, found = report(distilled, "beta")

    assert (code, kinds(found["source"])) == (1, {("order", None, "beta")})


def test_source_names_a_missing_dependency(deployment):
    """A source that does not list what an entry requires is named by both."""
    git(deployment, "switch", "-q", "-c", "round")
    spt("entry", "apply", "fast-linear", cwd=deployment)
    commit = commit_files(deployment, {"stock/linear/w12.py": "# 12 bits\nbetter = 1\n"})
    new(deployment, "better", commit, extra=["--requires", "fast-linear"])
    rewrite_source(deployment, "better", drop("fast-linear"))
    code, found = report(deployment, "better")

    assert (code, kinds(found["source"])) == (1, {("dependency", None, "better")})
    assert "'fast-linear'" in found["source"]["differences"][0]["text"]


def test_source_names_what_a_missing_entry_leaves(distilled):
    """A source that lacks an entry differs at exactly the paths that only that entry touches, or that it shares."""
    rewrite_source(distilled, "beta", drop("alpha"))
    code, found = report(distilled, "beta")

    assert (code, kinds(found["source"])) == (1, {("blob", "stock/engine.py", "beta")})


def other_tree(folder, files):
    git(folder, "switch", "-q", "--detach", "round")
    commit = commit_files(folder, files)
    git(folder, "update-ref", "refs/keep/other", commit)
    git(folder, "switch", "-q", "main")
    return git(folder, "rev-parse", f"{commit}^{{tree}}")


@pytest.mark.parametrize(
    ("files", "difference"),
    [
        ({"stock/select/more.py": "x\n"}, ("path", "stock/select/more.py", None)),
        ({"stock/select/beta.py": None}, ("path", "stock/select/beta.py", "beta")),
        ({"stock/select/beta.py": "x\n"}, ("blob", "stock/select/beta.py", "beta")),
        ({"stock/engine.py": ENGINE}, ("blob", "stock/engine.py", "alpha")),
    ],
    ids=["path-more", "path-less", "blob", "shared-blob"],
)
def test_source_names_a_broken_path_or_blob(distilled, files, difference):
    """A source tree that its entries do not make is named by path and by the first entry that diverges."""
    tree = other_tree(distilled, files)
    rewrite_source(distilled, "beta", lambda line: line.update(tree=tree))
    code, found = report(distilled, "beta")

    assert (code, kinds(found["source"])) == (1, {difference})


def test_source_names_a_broken_mode(distilled):
    """An executable bit alone is a difference."""
    git(distilled, "switch", "-q", "--detach", "round")
    (distilled / "stock/select/beta.py").chmod(0o755)
    git(distilled, "commit", "-qam", "mode")
    tree = git(distilled, "rev-parse", "HEAD^{tree}")
    git(distilled, "update-ref", "refs/keep/other", "HEAD")
    rewrite_source(distilled, "beta", lambda line: line.update(tree=tree))
    code, found = report(distilled, "beta")

    assert (code, kinds(found["source"])) == (1, {("mode", "stock/select/beta.py", "beta")})


@pytest.mark.parametrize("key", ["stock_tree", "tree"])
def test_missing_history_is_unavailable_never_ok(distilled, key):
    """Where stock or source tree are not here, the answer is exit 4."""
    rewrite_source(distilled, "beta", lambda line: line.update({key: "1" * 40}))
    code, found = report(distilled, "beta")

    assert (code, found["source"]["answer"]) == (4, "unavailable here")


def test_missing_deltas_are_unavailable_never_ok(distilled):
    """Where a delta of that time is not here, the answer is exit 4."""
    for name in git(distilled, "for-each-ref", "--format=%(refname)", "refs/spt/patch/alpha").splitlines():
        git(distilled, "update-ref", "-d", name)
    code, found = report(distilled, "beta")

    assert (code, found["source"]["answer"]) == (4, "unavailable here")


def test_without_a_source_nothing_is_proven(deployment):
    """An entry that was written by hand recomposes, and its source is unavailable."""
    code, found = report(deployment, "tuned")

    assert (code, found["recompose"]["answer"], found["source"]["answer"]) == (4, "ok", "unavailable here")


def rewrite_record(folder, name, change, message=None):
    work = folder.parent / f"record-{name}"
    git(folder, "worktree", "add", "-q", "--detach", work, f"entry/{name}")
    change(work)
    git(work, "add", "-A")
    git(
        work, "commit", "-q", "--allow-empty", "-m", message or git(folder, "log", "-1", "--format=%B", f"entry/{name}")
    )
    git(folder, "update-ref", f"refs/heads/entry/{name}", git(work, "rev-parse", "HEAD"))


def rewritten(work, old, text):
    path = work / ".spt/entries/tuned/entry.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, text))


@pytest.mark.parametrize(
    ("change", "message", "word"),
    [
        (
            lambda work: rewritten(work, '"tuned: do it"', '"tuned: did it"'),
            None,
            "has not the author, date and message",
        ),
        (lambda work: rewritten(work, '"fast-linear"', '"tree-select"'), None, "entry.yaml requires"),
        (lambda work: rewritten(work, '"options": []', '"options": ["x"]'), None, "`options` in entry.yaml says ['x']"),
        (lambda work: rewritten(work, '"title"', '"titel"'), None, "'title' is missing"),
        (lambda work: write(work, {".spt/entries/other/entry.yaml": "x"}), None, "is no record of 'tuned'"),
        (lambda work: write(work, {".spt/entries/tuned/evidence/x.jsonl": "{}\n"}), None, "is missing"),
        (lambda work: None, "no trailers", "is missing from R"),
        (lambda work: None, "x\n\nSpt-Entry: other", "trailer 'Spt-Entry: other' is wrong on R"),
    ],
)
def test_a_broken_record_is_named(deployment, change, message, word):
    """Card, trailers, branch and records are held against each other."""
    rewrite_record(deployment, "tuned", change, message)
    code, found = report(deployment, "tuned")

    assert (code, found["record"]["answer"]) == (1, "differs")
    assert any(word in difference["text"] for difference in found["record"]["differences"])


def test_a_missing_reference_is_named(deployment):
    """Every P is kept by a reference; one that is gone is a difference."""
    (name,) = git(deployment, "for-each-ref", "--format=%(refname)", "refs/spt/patch/tuned").splitlines()
    git(deployment, "update-ref", "-d", name)
    code, found = report(deployment, "tuned")

    assert code == 1
    assert f"reference '{name}' does not keep" in found["record"]["differences"][0]["text"]


def test_evidence_is_held_to_its_samples(deployment):
    """Samples that are not here are unavailable; samples that are others are a difference."""
    samples = {"path": "samples/x.jsonl.gz", "sha256": "0" * 64}
    line = evidence_line(deployment, "tuned", samples=samples)
    rewrite_record(
        deployment, "tuned", lambda work: write(work, {".spt/entries/tuned/evidence/2026-01-02-toy.jsonl": line})
    )
    missing = report(deployment, "tuned")
    git(deployment, "worktree", "remove", "--force", deployment.parent / "record-tuned")
    rewrite_record(
        deployment, "tuned", lambda work: write(work, {".spt/entries/tuned/evidence/samples/x.jsonl.gz": "other"})
    )
    other = report(deployment, "tuned")

    assert (missing[0], missing[1]["record"]["answer"]) == (4, "unavailable here")
    assert (other[0], other[1]["record"]["answer"]) == (1, "differs")


def test_a_branch_that_is_no_entry_is_reported_with_the_others(deployment):
    """One broken branch neither hides nor stops the rest."""
    git(deployment, "update-ref", "refs/heads/entry/junk", "main")
    ran = spt("entry", "verify", "--all", cwd=deployment)

    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines() if not line.startswith(" ")] == [
        "fast-linear",
        "junk",
        "tree-select",
        "tuned",
    ]


def test_list_names_what_it_leaves_out(deployment):
    """One bad card or branch is a warning, and the other entries are listed."""
    git(deployment, "update-ref", "refs/heads/entry/junk", "main")
    rewrite_record(deployment, "tuned", lambda work: rewritten(work, '"title"', '"titel"'))
    ran = spt("entry", "list", "--json", cwd=deployment)

    assert ran.code == 0
    assert [row["name"] for row in ran.json] == ["fast-linear", "tree-select"]
    assert [line.split("'")[1] for line in ran.err.splitlines()] == ["junk", "tuned"]


def test_verify_writes_nothing(distilled):
    """Verification reads; references, index and files stay as they are."""
    before = snapshot(distilled)
    objects = git(distilled, "count-objects", "-v")
    spt("entry", "verify", "--all", cwd=distilled)

    assert snapshot(distilled) == before
    assert git(distilled, "count-objects", "-v") == objects


def test_entries_of_older_requirements_still_recompose(deployment):
    """An entry whose requirement moved on is recomposed with the delta that it was made on."""
    edit_and_write_back(deployment, "fast-linear", {"kernels/w12.py": "# faster\n"})
    code, found = report(deployment, "tuned")

    assert (code, found["recompose"]["answer"], found["record"]["answer"]) == (4, "ok", "ok")


def test_neither_name_nor_all_is_usage(deployment):
    """What to verify must be said."""
    assert errors_well(spt("entry", "verify", cwd=deployment), 2, "--all")
    assert errors_well(spt("entry", "verify", "nobody", cwd=deployment), 4, "'nobody'")


# Checks.


def test_checks_run_in_a_clean_export_and_say_whose_they_are(deployment):
    """A contract's commands run only when asked for, on stock plus closure, with the environment cleared."""
    ran = spt("entry", "verify", "fast-linear", "--checks", cwd=deployment)

    assert ran.code == 4
    assert "check (author's own): passes" in ran.out
    assert "gates nothing alone" in ran.err


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (
            "import os\nraise SystemExit(any('SECRET' in name for name in os.environ) or os.path.exists('.git'))\n",
            "passes",
        ),
        ("while True:\n    print('y' * 10**6)\n", "fails"),
        ("import os, sys\nsys.exit(0 if sorted(os.listdir('.')) == ['checks', 'kernels', 'stock'] else 9)\n", "passes"),
        ("import os\nos.abort()\n", "fails (-6)"),
    ],
    ids=["environment", "flood", "clean", "crash"],
)
def test_checks_are_bounded(tmp_path, monkeypatch, code, word):
    """A command that floods, crashes or looks around is contained, and its end is reported."""
    monkeypatch.setenv("MY_SECRET", "x")
    root = make_root(tmp_path / "root", entries=False)
    write_entry(root, "e", {"checks/e/run.py": code}, checks=["python checks/e/run.py"])
    spt("init", tmp_path / "d", "--from", root, cwd=tmp_path)
    ran = spt("entry", "verify", "e", "--checks", cwd=tmp_path / "d")

    assert f"check (author's own): {word}" in ran.out
    assert ran.code == (4 if word == "passes" else 1)  # 4: the toy's entries have no source


def test_checks_that_hang_are_ended(deployment):
    """Time is bounded, and what a command started ends with it."""
    from spt.checks import run_checks
    from spt.memory import Memory

    root = make_root(deployment.parent / "root", entries=False)
    code = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)\n"
    write_entry(root, "slow", {"checks/slow/run.py": code}, checks=["python checks/slow/run.py"])
    spt("entry", "import", root / "entries", cwd=deployment)
    (result,) = run_checks(Memory.open(deployment), "slow", time_limit_s=0.5)

    assert result.status is None
    assert result.seconds_s < 5


def test_nothing_runs_unless_asked(tmp_path):
    """Importing, showing, applying and verifying an entry never starts its code."""
    root = make_root(tmp_path / "root", entries=False)
    trap = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    write_entry(
        root,
        "trap",
        {"checks/trap/run.py": trap, "checks/trap/conftest.py": trap},
        checks=["python checks/trap/run.py"],
    )
    spt("init", tmp_path / "d", "--from", root, cwd=tmp_path)
    for arguments in (["list"], ["show", "trap"], ["verify", "--all"], ["apply", "trap"]):
        spt("entry", *arguments, cwd=tmp_path / "d")

    assert not (tmp_path / "ran").exists()
